"""Where a constant comes from: prompts, files, other checkpoints."""

import math
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plga.collapse.freeze import freeze
from plga.collapse.invariance import outputs_over
from plga.collapse.prompts import Prompts, neutral_prompts
from plga.collapse.source import chosen, operator_of_checkpoint, operator_of_file
from plga.model.checkpoint import save_model
from plga.training.data.tokenizer import train_tokenizer
from tests.training import examples, runs


def test_first_and_mean() -> None:
    curvature = torch.arange(8.0).view(2, 1, 1, 2, 2)
    assert torch.equal(chosen(curvature, "first"), curvature[0])
    assert torch.equal(chosen(curvature, "mean"), curvature[0] + 2)
    with pytest.raises(ValueError, match="which is 'last', expected 'first' or 'mean'"):
        chosen(curvature, "last")


def test_files_of_both_kinds(tmp_path: Path) -> None:
    curvature = torch.randn(2, 2, 4, 4)
    save_file({"curvature": curvature}, tmp_path / "g.safetensors")
    (tmp_path / "g.pkl").write_bytes(pickle.dumps([[layer[None]] for layer in curvature]))
    assert torch.equal(operator_of_file(tmp_path / "g.safetensors"), curvature)
    assert torch.equal(operator_of_file(tmp_path / "g.pkl"), curvature)


def test_files_that_hold_no_operator(tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    with pytest.raises(FileNotFoundError, match="no such file"):
        operator_of_file(file)
    for tensors, message in (
        ({"G": torch.ones(2, 2)}, "holds G, expected one floating tensor 'curvature'"),
        ({"curvature": torch.ones(2, dtype=torch.int64)}, "expected one floating tensor"),
        ({name: torch.ones(1) for name in "abcde"}, "holds a, b, c and 2 more, expected one"),
        ({"curvature": torch.ones(2, 4, 4)}, r"curvature is \[2, 4, 4\], expected \[L, H, d, d\]"),
        ({"curvature": torch.ones(1, 2, 4, 6)}, r"curvature is \[1, 2, 4, 6\]"),
        ({"curvature": torch.ones(0, 2, 4, 4)}, r"curvature is \[0, 2, 4, 4\]"),
        ({"curvature": torch.full((1, 1, 2, 2), math.inf)}, "curvature is not finite"),
    ):
        save_file(tensors, file)
        with pytest.raises(ValueError, match=message):
            operator_of_file(file)
    file.write_text("hello")
    with pytest.raises(ValueError, match="not a safetensors file"):
        operator_of_file(file)


def test_another_checkpoint(tmp_path: Path) -> None:
    """A learned one is read on the texts as its own tokenizer spells them; a constant one as it is."""
    tokenizer = train_tokenizer(runs.texts(), 300, 24)
    other = examples.model(seed=5, vocab_size=300, max_position_embeddings=24)
    save_model(other, tmp_path / "learned", tokenizer=tokenizer)
    asked = []

    def read(own: object, model: object) -> Prompts:
        asked.append((own, model))
        return neutral_prompts(own, 12)  # type: ignore[arg-type]

    expected = outputs_over(other, neutral_prompts(tokenizer, 12).calibration).curvature
    assert torch.equal(operator_of_checkpoint(tmp_path / "learned", "mean", read), expected.mean(dim=0))
    assert torch.equal(operator_of_checkpoint(tmp_path / "learned", "first", read), expected[0])
    save_model(freeze(other, expected[1]), tmp_path / "constant")
    assert torch.equal(operator_of_checkpoint(tmp_path / "constant", "mean", read), expected[1])
    assert len(asked) == 2
