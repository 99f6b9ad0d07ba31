"""What the tests of this package share."""

from pathlib import Path

import pytest

from tests.threads import one_thread
from tests.training.data import corpora

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer whose tokens are numbers: "17" is token 17. Not to be written to."""
    folder = tmp_path_factory.mktemp("tokenizer")
    corpora.tokenizer().save_pretrained(folder)
    return folder
