"""Runs of a sweep in processes of their own, with a small standard library."""

from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from plga.criticality import worker
from tests.training import runs
from tests.training.processes import CONTEXT


def values(folder: Path, *overrides: str) -> dict[str, Any]:
    """Twenty steps in ``folder``."""
    return runs.settings(folder, *overrides).model_dump(mode="json")


def start(folder: Path, *overrides: str, error: BaseException | None = None, orphan: bool = False) -> "Worker":
    """The run of a folder: real, or one that ends in an error; ``orphan``: its parent is gone."""
    return Worker(values(folder, *overrides), folder, error, orphan)


class Worker:
    """A process and what it tells."""

    def __init__(self, *arguments: Any) -> None:
        self.told, telling = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=_work, args=(*arguments, telling))
        self.process.start()
        telling.close()

    def ended(self) -> str | None:
        """Wait for the end; the error that was not the run's own."""
        self.process.join()
        assert self.process.exitcode == 0
        try:
            return self.told.recv()
        except EOFError:
            return None


def _work(values: dict[str, Any], folder: Path, error: BaseException | None, orphan: bool, telling: Connection) -> None:
    torch.set_num_threads(1)
    runs.install()

    def fails(*arguments: Any) -> None:
        assert error is not None
        raise error

    if error is not None:
        worker.train = fails  # type: ignore[assignment]
    if orphan:
        gone = SimpleNamespace(is_alive=lambda: False)
        worker.multiprocessing = SimpleNamespace(parent_process=lambda: gone)  # type: ignore[assignment]
    worker.run(values, folder, telling)
