"""Progress of a training run for people: a bar while it runs, a line a look, and the guards' own lines."""

import logging
import os
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging

if TYPE_CHECKING:
    from plga.training.config import RunSettings

_WIDTH = 110  # where there is no terminal to ask
_FIGURES = (
    ("loss", "loss", ".3f"),
    ("accuracy", "accuracy", ".3f"),
    ("grad_norm", "gradient norm", ".1e"),
    ("learning_rate", "learning rate", ".1e"),
    ("dag_metric", "DAG A_LM", ".1e"),
    ("dag_potential", "A_P", ".1e"),
    ("dag_curvature", "G_LM", ".1e"),
    ("alignment", "alignment", ".1e"),
    ("tokens_per_second", "tokens/s", ".0f"),
)
_LOOK = (
    ("loss", "loss", ".3f"),
    ("validation_loss", "validation", ".3f"),
    ("validation_accuracy", "accuracy", ".3f"),
    ("learning_rate", "learning rate", ".1e"),
    ("order_parameter", "G_LM fluctuation", ".1e"),
)


class TrainingProgress:
    """Shows a run on the console of process 0; a context manager around it.

    Args:
        settings: of the run.
        console: where to; None: standard output.

    Attributes:
        callback: to be given to :func:`plga.training.run.train`.
    """

    def __init__(self, settings: "RunSettings", console: Console | None = None) -> None:
        self.steps = settings.optimizer.last
        self.console = console or Console(width=None if Console().is_terminal else _WIDTH)
        self.console.quiet = os.environ.get("RANK", "0") != "0"
        self.bar = Progress(
            TextColumn(f"step {{task.completed:.0f}}/{self.steps}"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=self.steps)
        self.callback: TrainerCallback = _Shown(self)
        self._handler = RichHandler(
            console=self.console, show_path=False, show_time=False, show_level=False, highlighter=None
        )

    def __enter__(self) -> Self:
        transformers_logging.set_verbosity_error()  # it would repeat every log line in its own words
        logger = logging.getLogger("plga")
        logger.addHandler(self._handler)
        logger.propagate = False
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()
        logger = logging.getLogger("plga")
        logger.removeHandler(self._handler)
        logger.propagate = True


class _Shown(TrainerCallback):
    def __init__(self, progress: TrainingProgress) -> None:
        self.progress = progress
        self.known: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            self.progress.console.print(f"going on from step {state.global_step}", highlight=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress.bar.update(self.progress.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.known |= logs
        self.progress.bar.update(self.progress.task, description=_line(self.known, _FIGURES))
        if "validation_loss" in logs:
            steps = self.progress.steps
            self.progress.console.print(
                f"step {state.global_step:{len(str(steps))}d}/{steps}  {_line(self.known, _LOOK)}",
                highlight=False,
                soft_wrap=True,
            )


def _line(known: dict[str, float], figures: tuple[tuple[str, str, str], ...]) -> str:
    return "  ".join(f"{label} {known[name]:{form}}" for name, label, form in figures if name in known)
