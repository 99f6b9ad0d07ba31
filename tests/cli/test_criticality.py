"""``plga criticality``: the order parameters of a checkpoint, and what it says of bad input."""

from pathlib import Path

import pytest

from plga.criticality.order_parameter import SYMBOLS
from plga.criticality.runs import load_runs, order_parameters
from tests.cli.runner import Ending, plga


def figures(ending: Ending) -> dict[str, list[str]]:
    """Cells of the table by symbol."""
    assert (ending.code, ending.err) == (0, ""), ending
    lines = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in ending.out.splitlines() if "│" in line]
    return {cells[0]: cells[1:] for cells in lines if cells[0] in SYMBOLS}


def test_every_statistic_of_every_tensor(checkpoint: Path) -> None:
    ending = plga("criticality", checkpoint, "--new-tokens", 4)
    found = figures(ending)
    assert list(found) == ["A", "A_LM", "A_P", "G_LM"]
    assert all(len(cells) == 4 for cells in found.values())
    assert "Order parameters over 8 prompts" in ending.out
    for name in ("RMSE_12 / |mean|", "RMSE_1C / |mean|", "RMS-normalized", "symmetrized signed"):
        assert name in ending.out
    assert "near-critical up to 0.0001, sub-critical from 0.01" in ending.out
    assert "near-critical up to 0.03, sub-critical from 10" in ending.out


def test_what_is_saved_can_be_read_again(checkpoint: Path, tmp_path: Path) -> None:
    prompts, file = tmp_path / "prompts.txt", tmp_path / "runs.safetensors"
    prompts.write_text("import os\n\ndef f(x):\nreturn\n")
    options = ("--prompts", prompts, "--new-tokens", 3, "--save", file)
    first = plga("criticality", checkpoint, *options)
    assert "over 3 prompts" in first.out
    assert f"deductive outputs  {file}" in first.out
    assert figures(plga("criticality", file)) == figures(first)
    assert figures(first)["A"][2] == f"{order_parameters(load_runs(file))['A'].rms_normalized:.1e}"
    assert "exists, expected a new file, or --overwrite" in plga("criticality", checkpoint, *options).error()
    assert figures(plga("criticality", checkpoint, *options, "--overwrite")) == figures(first)
    assert figures(plga("criticality", checkpoint, *options[:-2], "--seed", 1)) != figures(first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompts", "/missing"), "/missing: No such file or directory"),
        (("--prompts", "ONE"), "1 prompts, expected at least 2, one a line"),
        (("--prompts", "BINARY"), "not UTF-8 text"),
        (("--prompts", "LONG"), "prompt 2 has"),
        (("--new-tokens", "24"), "--new-tokens is 24, expected less than the context of 24"),
        (("--tokenizer", "/missing"), "/missing: no such file"),
    ],
)
def test_bad_options_are_one_line(checkpoint: Path, tmp_path: Path, options: tuple[str, str], message: str) -> None:
    (tmp_path / "ONE").write_text("import os\n\n")
    (tmp_path / "BINARY").write_bytes(b"a\n\xff\n")
    (tmp_path / "LONG").write_text("x\n" + "import os " * 30)
    value = tmp_path / options[1] if options[1].isalpha() else options[1]
    assert message in plga("criticality", checkpoint, options[0], value).error()


def test_what_has_no_order_parameter(frozen: Path, tmp_path: Path) -> None:
    assert "the operator of this model is constant" in plga("criticality", frozen, "--new-tokens", 4).error()
    assert "no such file or directory" in plga("criticality", tmp_path / "missing").error()
    assert "no such file" in plga("criticality", tmp_path / "missing.safetensors").error()
    (tmp_path / "other.safetensors").write_text("hello")
    assert "not a safetensors file" in plga("criticality", tmp_path / "other.safetensors").error()
