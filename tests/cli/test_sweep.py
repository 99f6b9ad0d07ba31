"""``plga sweep``: what it says and leaves, and what it says of bad input."""

import csv
from pathlib import Path

import pytest
import yaml

from plga.model.checkpoint import load_model
from tests.cli.runner import plga
from tests.training import runs


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two learning rates and two sizes, each of a few steps."""
    file = tmp_path / "sweep.yaml"
    base = tmp_path / "base.yaml"
    base.write_text(yaml.safe_dump(runs.BASE))
    sizes = {"small": {"hidden_size": 8}, "large": {"hidden_size": 16}}
    axes = {"learning_rate": [1e-3, 1e-2], "size": sizes}
    file.write_text(yaml.safe_dump({"name": "few", "base": str(base), "axes": axes}))
    return file


def table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_sweep_and_what_it_leaves(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "[b]out"
    ending = plga("sweep", config, "--out", out, "--workers", 2, "--study", "size", small_library=True)
    assert (ending.code, ending.err) == (0, ""), ending
    assert "few: 4 runs of 20 steps, 2 at a time" in ending.out
    for number in range(4):
        assert f"trial   {number}  learning rate 0.0" in ending.out
    for line in (
        "trials: 4 complete",
        "thresholds (fluctuation of G_LM): near-critical up to 0.0001, sub-critical from 0.01",
        "near-critical at some look: 0; at the end, after annealing: 0",
        "small, warmup 4: most runs near-critical from learning rate none of the grid at some look",
        "best near-critical run: none",
        "Smallest maximum learning rate of the grid",
        "Conjecture:",
        "It is falsified here if",
        f"{out}/phase_diagram.html",
        f"{out}/size_study.png",
    ):
        assert line in ending.out, line
    names = {path.name for path in out.iterdir() if not path.name.startswith((".", "trial-", "sweep."))}
    assert names == {"phase_diagram.html", "phase_diagram.png", "trials.csv", "size_study.csv", "size_study.png"}
    rows = table(out / "trials.csv")
    assert [(row["state"], row["learning_rate"], row["size"]) for row in rows] == [
        ("complete", "0.001", "large"),
        ("complete", "0.01", "large"),
        ("complete", "0.001", "small"),
        ("complete", "0.01", "small"),
    ]
    assert [row["size"] for row in table(out / "size_study.csv")] == ["small", "large"]
    assert not list(out.glob("*/final"))  # of the best near-critical run there is none
    assert not list(out.glob("*/checkpoint-*"))

    again = plga("sweep", config, "--out", out, small_library=True)
    assert (again.code, again.err) == (0, "")
    assert "trial   0" not in again.out
    assert "trials: 4 complete" in again.out
    assert table(out / "trials.csv") == rows


def test_a_sweep_whose_runs_all_fail(config: Path, tmp_path: Path) -> None:
    # There are fewer windows than it asks for.
    ending = plga("sweep", config, "settings.logging.probe_windows=100", "--out", tmp_path / "out", small_library=True)
    assert ending.code == 1
    assert ending.out.count("failed: corpus has") == 4
    assert "plga: error: all 4 runs failed; trial 0: corpus has" in ending.err
    assert ending.err.count("\n") == 1
    assert [row["state"] for row in table(tmp_path / "out" / "trials.csv")] == ["failed"] * 4


def test_the_spectrum_of_one_run(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = ("axes.learning_rate=[1e-2]", "axes.size={small: {hidden_size: 8}}", "--study", "spectrum", "--out", out)
    ending = plga("sweep", config, *one, small_library=True)
    assert (ending.code, ending.err) == (0, ""), ending
    for line in ("step 20/20", "4 looks at the spectrum of A_LM", "Conjecture:", f"{out}/spectrum.png"):
        assert line in ending.out, line
    assert len(table(out / "spectrum.csv")) == 4 * 2 * 2
    assert load_model(out / "run" / "final").config.hidden_size == 8
    again = plga("sweep", config, *one, small_library=True)
    assert "4 looks at the spectrum of A_LM" in again.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such file, and no ready sweep (tiny"),
        (["tiny", "axes.depth=[1]"], "tiny: axes.depth is not a setting, expected one of learning_rate, warmup, size"),
        (["tiny", "axes.learning_rate=[]"], "tiny: axes.learning_rate is [], expected"),
        (["tiny", "sampler=random", "trials=0"], "tiny: trials is 0, expected greater than or equal to 1"),
        (["tiny", "nonsense"], "'nonsense': expected section.key=value"),
        (["tiny", "--study", "depth"], "--study is 'depth', expected size or spectrum"),
        (["tiny", "--study", "size"], "--study size needs two sizes or more, but this sweep has one"),
        (["tiny", "--study", "spectrum"], "--study spectrum follows one run, but this sweep has 36"),
        (["tiny", "--storage", "nonsense"], "--storage is 'nonsense', expected one as sqlite:///sweep.db"),
        (["tiny", "--storage", "sqlite:////nowhere/sweep.db"], "/nowhere/sweep.db.lock"),
        (["tiny", "settings.optimizer.steps=2", "axes.warmup=[5]"], "warmup is 5, expected fewer than steps = 2"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    ending = plga("sweep", *arguments, "--out", tmp_path / "out", small_library=True)
    assert message in ending.err
    assert ending.code == 1
    assert ending.err.startswith("plga: error: ") and ending.err.count("\n") == 1
    assert not list(tmp_path.glob("out/trial-*"))


def test_a_folder_of_something_else_is_one_line(config: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    for study in ((), ("--study", "spectrum", "axes.learning_rate=[1e-2]", "axes.size={small: {}}")):
        ending = plga("sweep", config, *study, "--out", tmp_path / "out", small_library=True)
        assert ending.code == 1
        assert "which holds something else; expected a new or empty folder" in ending.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_no_workers_is_a_usage_error() -> None:
    ending = plga("sweep", "tiny", "--workers", 0)
    assert ending.code == 2
    assert "Traceback" not in ending.err
