"""What the tests of this package share."""

from collections.abc import Iterator

import pytest

from plga.audit import demo
from tests.audit import small
from tests.threads import one_thread
from tests.training import runs

__all__ = ["one_thread"]


@pytest.fixture(autouse=True, scope="module")
def small_demo() -> Iterator[None]:
    """Every demo of these tests is a small one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in small.SIZES.items():
            patch.setattr(demo, name, value)
        patch.setattr("plga.training.data.dataset.standard_library", lambda: iter(runs.texts()))
        yield
