"""``plga info``: numbers by hand."""

import shutil
from pathlib import Path

import pytest
import torch

from plga.model.checkpoint import save_model
from tests.cli.runner import plga
from tests.training import examples


def rows(out: str) -> dict[str, list[str]]:
    """Cells of the tables' rows by the first one."""
    lines = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in out.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if len(cells) > 1}


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_a_published_checkpoint(reference: Path, name: str) -> None:
    ending = plga("info", reference / f"{name}.pth")
    assert (ending.code, ending.err) == (0, "")
    table = rows(ending.out)
    state = torch.load(reference / f"{name}.pth", weights_only=True)["model_state_dict"]
    assert table["total"] == [f"{sum(tensor.numel() for tensor in state.values()):,}"] == ["1,232,916"]
    assert table["embedding"] == ["262,144"]
    assert table["head"] == [f"{2048 * 128 + 2048:,}"]
    assert table["layer norms"] == [f"{(1 + 2 * 2) * 2 * 128:,}"]
    assert table["heads x width"] == ["4 x 32"]
    assert table["d_model, FFN"] == ["128, 341"]
    assert table["operator"] == ["learned"]
    assert table["metric learner"] == ["268,736"]
    # Keys and values 2·2·128·128·4 B, G_LM 2·4·32²·4 B, prefix 128·(128·4 + 8) B.
    assert table["128"] == ["262 kB", "33 kB", "67 kB"]
    assert table["16"] == ["33 kB", "33 kB", "8 kB"]


def test_a_constant_operator(frozen: Path) -> None:
    table = rows(plga("info", frozen).out)
    assert table["operator"] == ["constant (external)"]
    assert table["modes"] == ["constant"]
    assert table["constant operator (G_LM)"] == [str(2 * 2 * 4 * 4)]
    assert "metric learner" not in table
    assert table["24"] == ["3 kB", "256 B"]


def test_a_chunked_gram(tmp_path: Path) -> None:
    save_model(examples.model(gram="chunked", gram_chunk=4), tmp_path / "saved")
    table = rows(plga("info", tmp_path / "saved").out)
    assert table["modes"] == ["chunked, constant (frozen on a text)"]
    assert table["12"] == ["2 kB", "256 B", "512 B"]  # keys and values 2·2·12·8·4 B, G_LM 2·2·4²·4 B, two Grams


def test_a_path_is_printed_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "[red]name[" / "x]")
    ending = plga("info", folder)
    assert ending.code == 0, ending
    assert "[red]name[/x]" in "".join(ending.out.split())  # however the title was wrapped
