"""One run of a sweep, in a process of its own."""

import math
import multiprocessing
import os
import shutil
import signal
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from plga.criticality.files import write_json
from plga.criticality.results import figures_of
from plga.criticality.windows import measured, unseen
from plga.model.atomic import locked
from plga.model.checkpoint import load_model
from plga.training.config import TrainSettings
from plga.training.run import Stopped, train

OUTCOME = "outcome.json"


def run(values: dict[str, Any], folder: Path, told: Connection) -> None:
    """Train, or go on, and leave ``outcome.json`` in the folder: ``figures``, or the ``message`` of a run that failed.

    What is printed goes to ``log.txt``, the log lines, looks and events to ``history.json``; ``final`` is the model.
    Without an outcome the run was stopped, or met an error that is not its own (a full disk, data that cannot be
    read): then that error is told, and the run can go on later.

    Args:
        values: of TrainSettings, as JSON gives them.
        folder: of the run.
        told: where an error goes that is not the run's own.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        # Whose parent was killed ends after the step it is in; until then the next one for this run waits here.
        with locked(folder / ".worker.lock"):
            if not (folder / OUTCOME).exists():
                write_json(folder / OUTCOME, _outcome(values, folder))
            for checkpoint in folder.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
    except Stopped:
        pass
    except OSError as error:
        traceback.print_exc()
        told.send(str(error))


def _outcome(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    try:
        settings = TrainSettings.checked(values, str(folder))
        trained = train(settings, [_EndsWithItsParent()])
        write_json(folder / "history.json", trained.history)
        model = load_model(folder / "final").to("cuda" if torch.cuda.is_available() else "cpu")
        figures = asdict(figures_of(trained.history, *measured(model, unseen(trained.data, settings))))
        for name, value in figures.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise FloatingPointError(f"{name} is {value} at the end")
        return {"figures": figures}
    except OSError:
        raise
    except (ValueError, FloatingPointError, MemoryError) as error:
        return {"message": str(error) or type(error).__name__}
    except Exception as error:  # a failed run is kept as failed, whatever it failed of
        traceback.print_exc()
        return {"message": f"{type(error).__name__}: {error}"}


class _EndsWithItsParent(TrainerCallback):
    """Ends the run, with a checkpoint, after the step that follows the end of the process that began it."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os.kill(os.getpid(), signal.SIGTERM)
