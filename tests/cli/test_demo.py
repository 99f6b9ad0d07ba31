"""``plga demo``, small: what it leaves, after an interruption and on a full disk too."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from plga.model.checkpoint import load_model
from tests.cli.runner import Ending, fresh, plga

NAMES = {"learned", "constant", "demo.png", "demo.json"}
# A small demo that waits once it has saved, so that a signal is sure to find it there.
PAUSED = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from plga.cli.main import main
from plga.training import checkpoints
from tests.audit import small

def save_and_wait(*arguments, save=checkpoints.save, **more):
    save(*arguments, **more)
    print("saved", flush=True)
    time.sleep(2)

checkpoints.save = save_and_wait
small.install()
main()
"""


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def report(folder: Path) -> dict[str, Any]:
    """Figures of a run, without times; no NaN and no infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in demo.json")

    figures = json.loads((folder / "demo.json").read_text(), parse_constant=refuse)
    del figures["seconds"]
    for mode in figures["decoding"]["modes"].values():
        del mode["tokens_per_second"], mode["speedup"]
    return figures


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ending]:
    """A demo that ran to its end. Not to be written to."""
    out = tmp_path_factory.mktemp("demo") / "new" / "[b]out"
    return out, plga("demo", "--out", out, small_library=True)


def test_what_a_demo_leaves(finished: tuple[Path, Ending]) -> None:
    out, ending = finished
    assert (ending.code, ending.err) == (0, "")
    assert {path.name for path in out.iterdir()} == NAMES  # no training state, nothing temporary
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    figures = report(out)
    learned, constant = load_model(out / "learned"), load_model(out / "constant")
    assert learned.num_parameters() == figures["parameters"]
    assert (learned.config.operator, constant.config.operator) == ("learned", "constant")
    assert torch.equal(learned.lm_head.weight, constant.lm_head.weight)
    for line in (
        "Fluctuation over 3 other windows",
        "Greedy decoding, 2 prompts x 5 tokens",
        "smallest decoding margin",
    ):
        assert line in ending.out
    assert ("not collapsed" in ending.out) != figures["collapsed"]
    assert f"{out}/demo.json" in ending.out  # in one piece, whatever is in the path


def test_what_a_demo_leaves_can_be_used(finished: tuple[Path, Ending]) -> None:
    out, _ = finished
    for name in ("learned", "constant"):
        assert plga("info", out / name).code == 0
        ending = plga("generate", out / name, "--prompt", "def f", "--max-new-tokens", 3)
        assert ending.code == 0, ending
        assert ending.out.startswith("def f")


def test_a_second_demo_replaces_the_first(finished: tuple[Path, Ending], tmp_path: Path) -> None:
    assert plga("demo", "--out", tmp_path, "--seed", 1, small_library=True).code == 0
    other = content(tmp_path)
    assert plga("demo", "--out", tmp_path, small_library=True).code == 0
    assert report(tmp_path) == report(finished[0])
    first, again = content(finished[0]), content(tmp_path)
    assert first.keys() == again.keys() == other.keys()
    weights = "learned/model.safetensors"
    assert first[weights] == again[weights] != other[weights]


def test_interrupted_it_says_so_and_goes_on(finished: tuple[Path, Ending], tmp_path: Path) -> None:
    process = fresh("demo", "--out", tmp_path, code=PAUSED)
    assert process.stdout is not None and process.stderr is not None
    assert any("saved" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.startswith("plga: stopped by SIGINT at step ")
    assert [path.name for path in tmp_path.iterdir()] == ["training"]

    assert "of another run: optimizer.seed" in plga("demo", "--out", tmp_path, "--seed", 1, small_library=True).err
    assert plga("demo", "--out", tmp_path, small_library=True).code == 0
    assert report(tmp_path) == report(finished[0])
    assert {path.name for path in tmp_path.iterdir()} == NAMES


@pytest.mark.parametrize("limit", [5_000, 30_000])
def test_on_a_full_disk_nothing_is_half_written(finished: tuple[Path, Ending], tmp_path: Path, limit: int) -> None:
    for out, before in ((tmp_path / "empty", {}), (tmp_path / "used", content(finished[0]))):
        if before:
            shutil.copytree(finished[0], out)
        error = plga("demo", "--out", out, small_library=True, file_limit=limit).err
        assert error.startswith("plga: error: ") and "File too large" in error
        assert error.count("\n") == 1
        # The training goes on from its folder; there is nothing else.
        assert {name: b for name, b in content(out).items() if not name.startswith("training/")} == before
        assert not list(out.rglob("*.tmp"))
