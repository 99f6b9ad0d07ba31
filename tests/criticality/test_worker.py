"""One run of a sweep: what it leaves when it ends, fails, is stopped, or loses its parent."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from plga.criticality.results import Figures
from plga.criticality.windows import measured, probe, unseen
from plga.model.checkpoint import load_model
from plga.training.data.dataset import open_data
from plga.training.run import Stopped
from tests.criticality.workers import start
from tests.training import runs


def outcome(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "outcome.json").read_text())
    found.get("figures", {}).pop("tokens_per_second", None)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended. Not to be written to."""
    folder = tmp_path_factory.mktemp("sweep") / "trial-0"
    assert start(folder).ended() is None
    return folder


def test_what_a_run_leaves(finished: Path) -> None:
    assert {path.name for path in finished.iterdir() if not path.name.startswith(".")} == {
        "final",
        "history.json",
        "log.txt",
        "outcome.json",
    }
    history = json.loads((finished / "history.json").read_text())
    looks = [entry for entry in history if "order_parameter" in entry]
    assert [look["step"] for look in looks] == [5, 10, 15, 20]
    figures = Figures(**json.loads((finished / "outcome.json").read_text())["figures"])
    smallest = min(looks, key=lambda look: look["order_parameter"])
    assert figures.order_parameter == looks[-1]["order_parameter"]
    assert figures.order_parameter_A_LM == looks[-1]["order_parameter_A_LM"]
    assert (figures.smallest, figures.smallest_step) == (smallest["order_parameter"], smallest["step"])
    assert figures.validation_loss == looks[-1]["validation_loss"]
    assert figures.loss == [entry for entry in history if "grad_norm" in entry][-1]["loss"]
    assert figures.tokens_per_second > 0
    assert figures.looks == [[e["step"], e["order_parameter"], e["validation_loss"]] for e in looks]
    assert figures.dragon_kings == []


def test_it_is_measured_again_where_nothing_looked(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = runs.settings(finished)
    monkeypatch.setattr("plga.training.data.dataset.standard_library", lambda: iter(runs.texts()))
    data = open_data(settings.data, runs.VOCABULARY, runs.CONTEXT, 0, batch=1)
    windows = data.validation(6)["input_ids"]
    assert probe(data, settings)["input_ids"].tolist() == windows[:2].tolist()
    assert unseen(data, settings)["input_ids"].tolist() == windows[4:].tolist()
    model = load_model(finished / "final")
    found = outcome(finished)["figures"]
    assert measured(model, unseen(data, settings)) == pytest.approx(
        (found["unseen_order_parameter"], found["unseen_loss"]), rel=1e-5
    )
    assert measured(model, probe(data, settings))[0] == pytest.approx(found["order_parameter"], rel=1e-5)


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    before = (finished / "outcome.json").read_bytes()
    assert start(finished, error=ValueError("it ran")).ended() is None
    assert (finished / "outcome.json").read_bytes() == before


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FloatingPointError("step 3: A of layer 0 is not finite"), "step 3: A of layer 0 is not finite"),
        (ValueError("too few windows"), "too few windows"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("CUDA out of memory"), "RuntimeError: CUDA out of memory"),
    ],
)
def test_a_run_that_fails_keeps_why(tmp_path: Path, error: Exception, message: str) -> None:
    folder = tmp_path / "trial-3"
    assert start(folder, error=error).ended() is None
    assert outcome(folder) == {"message": message}
    assert ("Traceback" in (folder / "log.txt").read_text()) == isinstance(error, RuntimeError)


def test_an_error_of_the_machine_is_told_and_is_no_outcome(tmp_path: Path) -> None:
    folder = tmp_path / "trial-3"
    assert start(folder, error=OSError(28, "No space left on device", "x")).ended() == (
        "[Errno 28] No space left on device: 'x'"
    )
    assert not (folder / "outcome.json").exists()
    (tmp_path / "file").touch()
    told = start(tmp_path / "file" / "trial-3").ended()
    assert told is not None and "Not a directory" in told


def test_stopped_it_leaves_no_outcome(tmp_path: Path) -> None:
    folder = tmp_path / "trial-3"
    assert start(folder, error=Stopped("stopped by SIGTERM at step 3")).ended() is None
    assert not (folder / "outcome.json").exists()


def test_stopped_and_continued_it_ends_alike(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trial-0"
    first = start(folder)
    while not list(folder.glob("checkpoint-*")):
        time.sleep(0.01)
    assert first.process.pid is not None
    os.kill(first.process.pid, signal.SIGTERM)
    assert first.ended() is None
    assert not (folder / "outcome.json").exists()
    assert list(folder.glob("checkpoint-*"))
    assert start(folder).ended() is None
    assert outcome(folder) == outcome(finished)


def test_it_does_not_outlive_its_parent(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "trial-0"
    assert start(folder, orphan=True).ended() is None
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    assert not (folder / "outcome.json").exists()
    assert start(folder).ended() is None
    assert outcome(folder) == outcome(finished)


def test_two_processes_never_run_the_same(tmp_path: Path, finished: Path) -> None:
    folder = tmp_path / "trial-0"
    both = [start(folder), start(folder)]
    assert [one.ended() for one in both] == [None, None]
    assert outcome(folder) == outcome(finished)
