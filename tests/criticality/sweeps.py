"""Small sweeps for the tests, of runs that are faked."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from plga.criticality import sweep as sweep_module
from plga.criticality.results import Row
from plga.criticality.sweep import run
from plga.criticality.sweep_settings import Sweep, SweepSettings
from tests.criticality import fakes

AXES: dict[str, Any] = {"learning_rate": [0.001, 0.02], "seed": [0, 1]}
COUNT = 4


def sweep(**changes: Any) -> Sweep:
    """A grid of four, of runs that are never trained."""
    return Sweep(SweepSettings.checked({"base": "tiny", "axes": AXES, "workers": 2, **changes}, "test"))


def in_a_process(out: Path, storage: str | None, printed: Connection) -> None:
    """The sweep in a process of its own, to be stopped or killed; tells how it ended."""
    # A server of its own for the runs; it is there at once, because it has nothing more to import than they.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.criticality.fakes"])
    sweep_module._SPAWN = context  # type: ignore[assignment]
    try:
        faked(out, storage)
    except (KeyboardInterrupt, OSError) as error:
        printed.send(f"{type(error).__name__}: {error}")
    else:
        printed.send("done")


def faked(out: Path, storage: str | None = None, **changes: Any) -> list[Row]:
    """Its rows, once it ran in ``out`` with runs that are faked."""
    return run(sweep(**changes), out, storage, target=fakes.run)
