"""Checkpoints for the command line, made here so that they are on every machine."""

from pathlib import Path

import pytest
import torch

from plga.collapse.freeze import freeze
from plga.model.checkpoint import save_model
from plga.model.modeling import PldrForCausalLM
from plga.training.data.tokenizer import train_tokenizer
from tests.threads import one_thread
from tests.training import examples, runs

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def model() -> PldrForCausalLM:
    return examples.model(vocab_size=300, max_position_embeddings=24)


@pytest.fixture(scope="session")
def checkpoint(model: PldrForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with a learned operator and a tokenizer. Not to be written to."""
    folder = tmp_path_factory.mktemp("checkpoints") / "learned"
    save_model(model, folder, tokenizer=train_tokenizer(runs.texts(), 300, 24))
    return folder


@pytest.fixture(scope="session")
def frozen(model: PldrForCausalLM, checkpoint: Path) -> Path:
    """The same with a constant operator."""
    folder = checkpoint.parent / "frozen"
    generator = torch.Generator().manual_seed(0)
    tokenizer = train_tokenizer(runs.texts(), 300, 24)
    save_model(freeze(model, torch.randn(2, 2, 4, 4, generator=generator)), folder, tokenizer=tokenizer)
    return folder
