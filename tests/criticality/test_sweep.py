"""A sweep: every run once, whatever is killed meanwhile, and on several machines at once."""

import json
import multiprocessing
import os
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plga.criticality import shared_study
from plga.criticality.results import Figures, Row
from plga.criticality.shared_study import SharedStudy
from plga.criticality.sweep import run
from tests.criticality import fakes
from tests.criticality.sweeps import COUNT, faked, in_a_process, sweep
from tests.training.processes import CONTEXT


class Started:
    """A sweep in a process of its own."""

    def __init__(self, out: Path, storage: str | None = None) -> None:
        self._ending, printed = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=in_a_process, args=(out, storage, printed))
        self.process.start()
        printed.close()

    def ending(self) -> str:
        """How it ended: ``done``, or the error."""
        self.process.join(timeout=120)
        return self._ending.recv()


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Starts the sweep in a folder, with a storage, in a process that does not outlive the test."""
    started: list[Started] = []

    def begin(*arguments: Any) -> Started:
        started.append(Started(*arguments))
        return started[-1]

    yield begin
    for one in started:
        if one.process.is_alive():
            one.process.kill()
            one.process.join()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plga.criticality.sweep._SPAWN", CONTEXT)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within a minute")


def points(rows: list[Row]) -> Counter[tuple[float, float, int]]:
    return Counter((row.point.learning_rate, row.point.warmup, row.point.seed) for row in rows if row.point is not None)


def test_every_point_of_a_grid_runs_once(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    out = tmp_path / "new" / "out"
    rows = run(sweep(), out, on_end=lambda row, rows: told.append((row.number, len(rows))), target=fakes.run)
    assert [row.state for row in rows] == ["complete"] * COUNT
    assert points(rows) == Counter((rate, 150.0, seed) for rate in (0.001, 0.02) for seed in (0, 1))
    assert all(fakes.begun(out / f"trial-{row.number}") == 1 for row in rows)
    assert sorted(told) == [(number, COUNT) for number in range(COUNT)]
    for row in rows:
        assert row.point is not None
        assert row.figures == Figures(**fakes.figures(row.point.learning_rate, row.point.warmup, row.point.seed))
        assert row.folder == str(out / f"trial-{row.number}")
        assert row.host


def test_only_the_model_of_the_best_near_critical_run_is_kept(tmp_path: Path) -> None:
    rows = faked(tmp_path)
    kept = [path.parent.name for path in tmp_path.glob("*/final")]
    best = [row for row in rows if row.point is not None and row.point.learning_rate == 0.02 and row.point.seed == 0]
    assert kept == [f"trial-{best[0].number}"]


def test_a_finished_sweep_runs_nothing_again(tmp_path: Path) -> None:
    before = faked(tmp_path)
    (tmp_path / "kill").touch()
    assert faked(tmp_path) == before


def test_a_failed_run_stays_failed_and_stops_nothing(tmp_path: Path) -> None:
    axes = {"learning_rate": [0.001, 0.02], "seed": [12, 13]}
    rows = faked(tmp_path, axes=axes)
    assert Counter(row.state for row in rows) == {"complete": 2, "failed": 2}
    for row in rows:
        failed = row.point is not None and row.point.seed == 13
        assert (row.state == "failed") == failed
        assert row.message == ("step 7: A of layer 0 is not finite in heads [1]" if failed else "")
    assert faked(tmp_path, axes=axes) == rows
    assert all(fakes.begun(tmp_path / f"trial-{row.number}") == 1 for row in rows)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_so_and_goes_on(
    tmp_path: Path, start: Callable[..., Started], number: signal.Signals
) -> None:
    out = tmp_path / "out"
    started = start(out)
    until(lambda: (out / "trial-0" / "outcome.json").exists())
    (out / "hang").touch()
    until(lambda: len(list(out.glob("*/begun"))) > len(list(out.glob("*/outcome.json"))) + 1)
    os.kill(started.process.pid, number)
    assert started.ending() == (
        f"KeyboardInterrupt: stopped by {number.name} with 2 runs under way; the same command goes on"
    )
    (out / "hang").unlink()

    running = sorted(path.parent.name for path in out.glob("*/begun") if not (path.parent / "outcome.json").exists())
    rows = faked(out)
    assert [row.state for row in rows] == ["complete"] * COUNT
    assert set(points(rows).values()) == {1}
    again = sorted(f"trial-{row.number}" for row in rows if fakes.begun(out / f"trial-{row.number}") == 2)
    assert again == running and len(running) == 2  # continued in their own folders, under their own numbers


def test_killed_at_any_moment_it_loses_and_repeats_nothing(tmp_path: Path, start: Callable[..., Started]) -> None:
    out = tmp_path / "out"
    for finished in (0, 1, 2):
        started = start(out)
        until(lambda finished=finished: len(list(out.glob("*/outcome.json"))) > finished)  # type: ignore[misc]
        started.process.kill()
        started.process.join()
    until(lambda: not list(out.glob("*/.outcome")))
    rows = faked(out)
    assert [row.state for row in rows] == ["complete"] * COUNT
    assert set(points(rows).values()) == {1}


def test_an_outcome_that_nobody_saw_counts(tmp_path: Path) -> None:
    """Killed after a run ended and before it was told: the outcome is read, and the run not repeated."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "sweep.json").write_text(json.dumps({"place": "here", "study": None}))
    study = SharedStudy(f"sqlite:///{out / 'sweep.db'}", sweep(), "here", create=True)
    taken = study.take(out)
    assert taken is not None
    folder = out / f"trial-{taken.number}"
    folder.mkdir()
    fakes.finish(folder, {"figures": fakes.figures(1.0, 2.0, 3)})
    (folder / "begun").touch()
    rows = faked(out)
    assert rows[taken.number].figures == Figures(**fakes.figures(1.0, 2.0, 3))
    assert [row.state for row in rows] == ["complete"] * COUNT
    assert (folder / "begun").read_text() == ""


def test_a_killed_process_is_tried_again_and_then_failed(tmp_path: Path, start: Callable[..., Started]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    started = start(out)
    until(lambda: (out / "sweep.json").exists())
    (out / "kill").touch()
    assert started.ending() == "done"
    rows = faked(out)
    failed = [row for row in rows if row.state == "failed"]
    assert len(failed) >= COUNT - 2
    for row in failed:
        assert row.message == "its process ended 3 times without an outcome, at last with signal 9"
        assert fakes.begun(out / f"trial-{row.number}") == 3


def test_an_error_that_is_not_the_runs_own_stops_the_sweep_and_fails_no_run(
    tmp_path: Path, start: Callable[..., Started]
) -> None:
    out = tmp_path / "out"
    started = start(out)
    until(lambda: (out / "sweep.json").exists())
    (out / "error").touch()
    assert re.fullmatch(r"OSError: trial \d: the disk is full", started.ending())
    with pytest.raises(OSError, match=r"trial \d: the disk is full"):
        faked(out)
    (out / "error").unlink()
    rows = faked(out)
    assert [row.state for row in rows] == ["complete"] * COUNT


def test_two_machines_share_the_runs_of_one_storage(tmp_path: Path, start: Callable[..., Started]) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    machines = [start(tmp_path / name, url) for name in ("one", "two")]
    assert [machine.ending() for machine in machines] == ["done", "done"]
    rows = faked(tmp_path / "one", url)
    assert [row.state for row in rows] == ["complete"] * COUNT
    assert set(points(rows).values()) == {1}
    folders = [Path(row.folder) for row in rows]
    assert {folder.parent.name for folder in folders} <= {"one", "two"}
    for row, folder in zip(rows, folders, strict=True):
        assert fakes.begun(folder) == 1
        other = "two" if folder.parent.name == "one" else "one"
        assert not (tmp_path / other / f"trial-{row.number}").exists()


def test_each_process_has_its_share_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plga.criticality.sweep._SPAWN", multiprocessing.get_context("spawn"))  # as it is
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(9)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    faked(tmp_path)
    seen = {line for file in tmp_path.glob("*/begun") for line in file.read_text().splitlines()}
    assert seen == {"4 0", "4 1"}
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    faked(tmp_path / "more")
    seen = {line for file in (tmp_path / "more").glob("*/begun") for line in file.read_text().splitlines()}
    assert seen == {"4 3", "4 5"}


def test_one_sweep_at_a_time_in_a_folder(tmp_path: Path, start: Callable[..., Started]) -> None:
    out = tmp_path / "out"
    started = start(out)
    until(lambda: (out / "sweep.json").exists())
    (out / "hang").touch()
    with pytest.raises(ValueError, match="another sweep is writing there; choose another --out"):
        faked(out)
    until(lambda: bool(list(out.glob("*/begun"))))
    started.process.terminate()
    assert "stopped by SIGTERM" in started.ending()


def test_folders_of_something_else(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.touch()
    with pytest.raises(ValueError, match=f"--out is {file}, a file; expected a folder"):
        faked(file)
    folder.mkdir()
    (folder / "notes.txt").touch()
    with pytest.raises(ValueError, match=f"--out is {folder}, which holds something else"):
        faked(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_storages_of_something_else(tmp_path: Path) -> None:
    faked(tmp_path / "out")
    with pytest.raises(ValueError, match="holds another sweep 'sweep', with another learning_rate"):
        faked(tmp_path / "out", axes={"learning_rate": [0.5], "seed": [0, 1]})
    with pytest.raises(ValueError, match="holds another sweep 'sweep', with another base"):
        faked(tmp_path / "out", settings={"optimizer": {"batch": 16}})
    with pytest.raises(ValueError, match=r"other\.db holds no sweep 'sweep', though this folder is of one"):
        faked(tmp_path / "out", f"sqlite:///{tmp_path / 'other.db'}")
    faked(tmp_path / "two", f"sqlite:///{tmp_path / 'two.db'}")
    with pytest.raises(ValueError, match="is of another sweep than the one in"):
        faked(tmp_path / "out", f"sqlite:///{tmp_path / 'two.db'}")
    # Two sweeps of different names may share a storage, and a sweep may go on with other workers.
    faked(tmp_path / "third", f"sqlite:///{tmp_path / 'two.db'}", name="third", axes={"learning_rate": [0.5]})
    faked(tmp_path / "out", workers=1)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "--storage is 'nonsense', expected one as sqlite:///sweep.db"),
        ("postgresql//me:secret@host/name", "--storage is not a URL, expected one as"),
        ("sqlite://", "which is gone with this process"),
        ("sqlite:///:memory:", "which is gone with this process"),
        ("nothing://host/name", "nothing://host/name, a database that SQLAlchemy does not know"),
        (
            "mysql+pymysql://me:secret@host/name",
            r"mysql\+pymysql://me:\*\*\*@host/name, and its driver is not installed",
        ),
    ],
)
def test_storages_that_are_none(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        faked(tmp_path / "out", url)
    assert "secret" not in str(caught.value)


def test_storages_that_fail(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, and long enough to be seen not to be one " * 20)
    with pytest.raises(OSError, match=r"the storage sqlite:///.*text\.db fails: .*file is not a database"):
        faked(tmp_path / "out", f"sqlite:///{tmp_path / 'text.db'}")
    with pytest.raises(OSError, match="No such file or directory"):
        faked(tmp_path / "out", f"sqlite:///{tmp_path / 'missing' / 'sweep.db'}")


def test_sampled_sweeps_have_as_many_runs_as_asked_for_within_their_axes(tmp_path: Path) -> None:
    axes = {"learning_rate": [0.001, 0.1], "warmup": [10, 20], "seed": [0, 1], "size": {"a": {}, "b": {}}}
    drawn = {}
    for sampler in ("random", "tpe"):
        for name in ("first", "second"):
            rows = faked(tmp_path / sampler / name, sampler=sampler, trials=8, axes=axes)
            assert [row.state for row in rows] == ["complete"] * 8
            drawn[sampler, name] = [row.point for row in rows]
        assert len(set(drawn[sampler, "first"])) == 8
        for point in drawn[sampler, "first"]:
            assert point is not None
            assert 0.001 <= point.learning_rate <= 0.1
            assert 10 <= point.warmup <= 20 and point.warmup.is_integer()
        assert {point.size for point in drawn[sampler, "first"] if point is not None} == {"a", "b"}
        assert len({point.learning_rate for point in drawn[sampler, "first"] if point is not None}) == 8
    assert drawn["random", "first"] == drawn["random", "second"]  # whoever ran them, in whatever order
    other = faked(tmp_path / "other", sampler="random", trials=8, axes=axes, seed=1)
    assert [row.point for row in other] != drawn["random", "first"]


def test_shares_of_the_steps_are_drawn_as_shares(tmp_path: Path) -> None:
    rows = faked(tmp_path, sampler="random", trials=4, axes={"learning_rate": [0.01], "warmup": [0.1, 0.5]})
    assert all(row.point is not None and 0.1 <= row.point.warmup <= 0.5 for row in rows)
    assert {row.point.learning_rate for row in rows if row.point is not None} == {0.01}


def test_an_interrupted_tpe_sweep_keeps_what_it_has_drawn(tmp_path: Path) -> None:
    axes = {"learning_rate": [0.001, 0.1]}
    study = SharedStudy(f"sqlite:///{tmp_path / 'a.db'}", sweep(sampler="tpe", trials=3, axes=axes), "a", create=True)
    taken = study.take(tmp_path)
    again = SharedStudy(f"sqlite:///{tmp_path / 'a.db'}", sweep(sampler="tpe", trials=3, axes=axes), "a", create=False)
    assert again.mine() == [taken]


def aged(database: Path) -> None:
    """Make every sign of life older than the grace period."""
    with sqlite3.connect(database) as connection:
        connection.execute(
            f"UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-{shared_study.GRACE + 1} seconds')"
        )


def test_a_run_whose_machine_went_away_is_run_elsewhere(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    gone = SharedStudy(url, sweep(), "gone", create=True)
    taken = [gone.take(tmp_path / "gone") for _ in range(2)]
    assert None not in taken
    rows = faked(tmp_path / "here", url)  # it is given time
    assert Counter(row.state for row in rows) == {"complete": COUNT - 2, "running": 2}
    aged(tmp_path / "shared.db")
    rows = faked(tmp_path / "here", url)
    assert Counter(row.state for row in rows) == {"complete": COUNT, "abandoned": 2}
    assert points([row for row in rows if row.state == "complete"]) == points(rows[:COUNT])
    # Back again, it learns that its runs are no longer its own.
    numbers = [trial.number for trial in taken if trial is not None]
    assert gone.beat(numbers) == set(numbers)
    assert not gone.complete(numbers[0], Figures(**fakes.figures(0.1, 1, 1)))
    assert not gone.fail(numbers[1], "late")
    assert gone.mine() == []
    assert faked(tmp_path / "here", url) == rows


def test_a_run_that_another_machine_took_over_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plga.criticality.sweep.BEAT_EVERY", 0.0)
    url, out = f"sqlite:///{tmp_path / 'shared.db'}", tmp_path / "here"
    out.mkdir()
    (out / "sweep.json").write_text(json.dumps({"place": "here", "study": None}))
    (out / "hang").touch()

    def taken_over(study: SharedStudy) -> None:
        for row in study.rows():
            if row.state == "running":
                SharedStudy(url, sweep(), "other", create=False).fail(row.number, "taken over")

    monkeypatch.setattr(SharedStudy, "free_abandoned", taken_over)
    rows = faked(out, url)
    assert [(row.state, row.message) for row in rows] == [("failed", "taken over")] * COUNT
    assert not list(out.glob("*/outcome.json"))


def test_killed_while_it_takes_a_run_it_takes_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    study = SharedStudy(url, sweep(), "here", create=True)
    note = SharedStudy._note

    def killed(self: SharedStudy, number: int, name: str, value: Any) -> None:
        if name == "at":
            raise KeyboardInterrupt
        note(self, number, name, value)

    monkeypatch.setattr(SharedStudy, "_note", killed)
    with pytest.raises(KeyboardInterrupt):
        study.take(tmp_path)
    monkeypatch.undo()
    for place, numbers in (("elsewhere", []), ("here", [0])):
        again = SharedStudy(url, sweep(), place, create=False)
        assert [trial.number for trial in again.mine()] == numbers


def test_whoever_joins_waits_until_all_trials_are_put_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    # As on a server, where nobody holds a lock on the whole.
    monkeypatch.setattr(SharedStudy, "_plan", lambda self, alone, plan=SharedStudy._plan: plan(self, False))
    monkeypatch.setattr(shared_study, "_PLAN_WAIT", 1)
    monkeypatch.setattr(SharedStudy, "_planned", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        SharedStudy(url, sweep(), "first", create=True)
    monkeypatch.undo()
    monkeypatch.setattr(SharedStudy, "_plan", lambda self, alone, plan=SharedStudy._plan: plan(self, False))
    monkeypatch.setattr(shared_study, "_PLAN_WAIT", 1)
    with pytest.raises(ValueError, match="has not put down all its trials; start it there first"):
        SharedStudy(url, sweep(), "second", create=True)
    assert len(SharedStudy(url, sweep(), "first", create=True).rows()) == COUNT
    assert len(SharedStudy(url, sweep(), "second", create=True).rows()) == COUNT
