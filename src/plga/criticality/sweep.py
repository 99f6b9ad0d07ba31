"""Runs the trials of a sweep, several processes at a time; interrupted at any moment, it goes on when started again."""

import multiprocessing
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from plga.criticality import worker
from plga.criticality.files import write_json
from plga.criticality.results import Figures, Row, best_near_critical
from plga.criticality.shared_study import BEAT_EVERY, SharedStudy, Taken
from plga.criticality.sweep_settings import Sweep
from plga.model.atomic import locked
from plga.model.files import read_json

PLACE = "sweep.json"
_ATTEMPTS = 3  # at a run whose process is killed
_SPAWN = multiprocessing.get_context("spawn")  # a fork of a process that has used a GPU cannot use it

Target = Callable[[dict[str, Any], Path, Connection], None]


def run(
    sweep: Sweep,
    out: Path,
    storage: str | None = None,
    on_end: Callable[[Row, list[Row]], None] = lambda row, rows: None,
    target: Target = worker.run,
) -> list[Row]:
    """Run what is left of a sweep, alone or with other machines on the same storage.

    Args:
        sweep: what to run.
        out: folder for the runs; a new or empty one, or that of this sweep, which is continued.
        storage: SQLAlchemy URL; None: ``sweep.db`` in ``out``.
        on_end: called when a run here has ended, with its row and those of all.
        target: what a process does for a run; see :func:`plga.criticality.worker.run`.

    Returns:
        A row a trial; some may be running still, elsewhere.

    Raises:
        ValueError: a folder or a storage of something else.
        OSError: a full disk, data or a storage that cannot be read; running trials go on from their checkpoints when
            the sweep is started again.
        KeyboardInterrupt: SIGINT or SIGTERM came; as above.
    """
    with held(out) as place:
        study = _study(sweep, out, storage, place)
        with _Workers(sweep, out, study, on_end, target) as workers:
            workers.work()
        return study.rows()


@contextmanager
def held(out: Path) -> Iterator[dict[str, Any]]:
    """Hold the folder of a sweep; what its ``sweep.json`` says, new if there was none."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out is {out}, a file; expected a folder")
    if out.is_dir() and not (out / PLACE).exists() and any(path.name != ".lock" for path in out.iterdir()):
        raise ValueError(f"--out is {out}, which holds something else; expected a new or empty folder, or a sweep's")
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", otherwise=f"{out}: another sweep is writing there; choose another --out"):
        if (out / PLACE).exists():
            yield read_json(out / PLACE, "it is of a sweep")
        else:
            place = {"place": secrets.token_hex(8), "study": None}
            write_json(out / PLACE, place)
            yield place


def _study(sweep: Sweep, out: Path, storage: str | None, place: dict[str, Any]) -> SharedStudy:
    study = SharedStudy(
        storage or f"sqlite:///{(out / 'sweep.db').absolute()}", sweep, place["place"], create=place["study"] is None
    )
    if place["study"] not in (None, study.identity):
        raise ValueError(f"{out} is of another sweep than the one in {study.masked}; choose another --out or --storage")
    write_json(out / PLACE, {**place, "study": study.identity, "storage": study.masked})
    return study


@dataclass
class _Running:
    taken: Taken
    process: SpawnProcess
    told: Connection
    attempts: int


class _Workers:
    """The processes of this place, one a slot."""

    def __init__(
        self, sweep: Sweep, out: Path, study: SharedStudy, on_end: Callable[[Row, list[Row]], None], target: Target
    ) -> None:
        self.sweep, self.out, self.study, self.on_end, self.target = sweep, out, study, on_end, target
        self.slots: list[_Running | None] = [None] * sweep.settings.workers
        self.asked: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "_Workers":
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            for running in self._running():
                running.process.terminate()
            for running in self._running():
                running.process.join()
        finally:
            for running in self._running():  # who asks twice does not want to wait
                running.process.kill()
            for number, handler in self.before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked is not None:
            raise KeyboardInterrupt("stopped at once; the same command goes on from the newest checkpoints")
        self.asked = number

    def _running(self) -> list[_Running]:
        return [running for running in self.slots if running is not None]

    def work(self) -> None:
        """Run trials until there is none left to begin and none running here."""
        continued = self.study.mine()
        last_beat = time.monotonic()
        self.study.free_abandoned()
        while True:
            for slot, running in enumerate(self.slots):
                if running is None and self.asked is None:
                    taken = continued.pop(0) if continued else self.study.take(self.out.absolute())
                    self.slots[slot] = None if taken is None else self._begun(taken, slot, attempts=1)
            if self.asked is not None:
                raise KeyboardInterrupt(
                    f"stopped by {signal.Signals(self.asked).name} with {len(self._running()) + len(continued)} runs "
                    "under way; the same command goes on"
                )
            if not self._running():
                return
            wait([running.process.sentinel for running in self._running()], timeout=1.0)
            for slot, running in enumerate(self.slots):
                if running is not None and not running.process.is_alive():
                    self.slots[slot] = self._ended(running, slot)
            if time.monotonic() - last_beat >= BEAT_EVERY:
                last_beat = time.monotonic()
                self._beat(continued)

    def _beat(self, continued: list[Taken]) -> None:
        numbers = [running.taken.number for running in self._running()]
        lost = self.study.beat([*numbers, *(taken.number for taken in continued)])
        for slot, running in enumerate(self.slots):
            if running is not None and running.taken.number in lost:
                running.process.kill()  # another machine runs its point by now
                running.process.join()
                self.slots[slot] = None
        continued[:] = [taken for taken in continued if taken.number not in lost]
        self.study.free_abandoned()

    def _begun(self, taken: Taken, slot: int, attempts: int) -> _Running:
        folder = self.out / f"trial-{taken.number}"
        values = self.sweep.run(taken.point, folder.absolute()).model_dump(mode="json")
        told, telling = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=self.target, args=(values, folder.absolute(), telling))
        with _inherited(slot, len(self.slots)):
            process.start()
        telling.close()
        return _Running(taken, process, told, attempts)

    def _ended(self, running: _Running, slot: int) -> _Running | None:
        """Keep the outcome of a process that ended; the process that is tried next, if it left none."""
        process, number = running.process, running.taken.number
        process.join()
        outcome = self.out / f"trial-{number}" / worker.OUTCOME
        if outcome.exists():
            found = read_json(outcome, "its run has ended")
            if "figures" in found:
                kept = self.study.complete(number, Figures(**found["figures"]))
            else:
                kept = self.study.fail(number, found["message"])
        elif message := _message(running.told):
            raise OSError(f"trial {number}: {message}")
        elif running.attempts < _ATTEMPTS:
            return self._begun(running.taken, slot, running.attempts + 1)
        else:
            code = process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            kept = self.study.fail(
                number, f"its process ended {_ATTEMPTS} times without an outcome, at last with {how}"
            )
        if kept:
            rows = self.study.rows()
            self._keep_best(rows)
            self.on_end(next(row for row in rows if row.number == number), rows)
        return None

    def _keep_best(self, rows: list[Row]) -> None:
        """Of the models trained here, keep that of the best near-critical run only."""
        models = {row.number: self.out / f"trial-{row.number}" / "final" for row in rows if row.state == "complete"}
        here = [row for row in rows if row.number in models and models[row.number].is_dir()]
        best = best_near_critical(here)
        for row in here:
            if row is not best:
                shutil.rmtree(models[row.number])


@contextmanager
def _inherited(slot: int, slots: int) -> Iterator[None]:
    """What a process started within takes over: its share of the processors, one GPU of several, and no Ctrl-C.

    A terminal sends Ctrl-C to all processes at once; this one passes it on, once, as SIGTERM.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = str(max(1, processors // slots))
    changes = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if (devices := torch.cuda.device_count()) > 1:
        names = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))
        changes["CUDA_VISIBLE_DEVICES"] = names.split(",")[slot % devices]
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _message(told: Connection) -> str | None:
    try:
        return told.recv() if told.poll() else None
    except EOFError:
        return None
