"""What a sweep found: a row a run, and the cells of the plane that runs of different seeds share."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from plga.criticality.regimes import NEAR_CRITICAL, RMS_NORMALIZED, regime
from plga.criticality.sweep_settings import Point
from plga.training.monitor import looks_of, steadiest

_MOST_LOOKS = 200  # of a run in the storage, whose text columns are short in some databases


@dataclass(frozen=True)
class Figures:
    """What was measured of a finished run; the order parameter is the RMS-normalized one.

    Attributes:
        order_parameter: of G_LM at the end of the run, on the probe.
        order_parameter_A, order_parameter_A_LM, order_parameter_A_P: of the other deductive outputs, there too.
        smallest: the smallest order parameter of G_LM over the run, and ``smallest_step`` its step; of those that
            float32 cannot tell apart the latest.
        validation_loss: at the end, nats a token, on other windows than the probe.
        unseen_order_parameter, unseen_loss: as the first and this, of the trained model on validation windows that no
            look has seen.
        loss: of training, at the last log line.
        dragon_kings: jumps of the loss: ``event_step``, ``height`` (in standard deviations), ``order_before`` and
            ``order_after``.
        tokens_per_second: median over the log lines.
        looks: (step, order parameter, validation loss).
    """

    order_parameter: float
    order_parameter_A: float
    order_parameter_A_LM: float
    order_parameter_A_P: float
    smallest: float
    smallest_step: int
    validation_loss: float
    unseen_order_parameter: float
    unseen_loss: float
    loss: float
    tokens_per_second: float
    dragon_kings: list[dict[str, Any]] = field(default_factory=list)
    looks: list[list[float]] = field(default_factory=list)

    @property
    def regime(self) -> str:
        """Where the run ended."""
        return regime(self.order_parameter, len(self.dragon_kings))

    @property
    def ended(self) -> bool:
        """Whether its end is near-critical."""
        return self.order_parameter <= RMS_NORMALIZED.near_critical

    @property
    def passed(self) -> bool:
        """Whether it was near-critical at some look, the end among them."""
        return self.smallest <= RMS_NORMALIZED.near_critical


def figures_of(history: Sequence[dict[str, Any]], unseen_order_parameter: float, unseen_loss: float) -> Figures:
    """The figures of a run from the history of its training, and from what was measured afterwards.

    Raises:
        ValueError: a history without a look.
    """
    looks = looks_of(list(history))
    if not looks:
        raise ValueError("the history of the run holds no look at its order parameter, expected one at its end")
    last, best = looks[-1], steadiest(looks)
    lines = [entry for entry in history if "grad_norm" in entry]
    every = math.ceil(len(looks) / _MOST_LOOKS)
    kept = looks[::-1][::every][::-1]  # the last one among them
    event = ("event_step", "height", "order_before", "order_after")
    return Figures(
        order_parameter=last["order_parameter"],
        order_parameter_A=last["order_parameter_A"],
        order_parameter_A_LM=last["order_parameter_A_LM"],
        order_parameter_A_P=last["order_parameter_A_P"],
        smallest=best["order_parameter"],
        smallest_step=best["step"],
        validation_loss=last["validation_loss"],
        unseen_order_parameter=unseen_order_parameter,
        unseen_loss=unseen_loss,
        loss=lines[-1]["loss"],
        tokens_per_second=statistics.median(line["tokens_per_second"] for line in lines),
        dragon_kings=[{k: e[k] for k in event} for e in history if e.get("guard") == "dragon-king"],
        looks=[[look["step"], look["order_parameter"], look["validation_loss"]] for look in kept],
    )


@dataclass(frozen=True)
class Row:
    """A run of a sweep as its storage knows it.

    Attributes:
        number: of the trial in the storage.
        state: ``waiting``, ``running``, ``complete``, ``failed``, or ``abandoned``: its machine went away, and another
            trial has taken its point.
        point: None where a sampled run has not been drawn yet.
        figures: of a complete run.
        message: why it failed.
        host, folder: where it ran.
    """

    number: int
    state: str
    point: Point | None
    figures: Figures | None = None
    message: str = ""
    host: str = ""
    folder: str = ""


def best_near_critical(rows: Iterable[Row]) -> Row | None:
    """Of the runs that ended near-critical and met no dragon king the one with the smallest validation loss."""
    found = [
        (row.figures.validation_loss, row.number, row)
        for row in rows
        if row.figures is not None and row.figures.regime == NEAR_CRITICAL
    ]
    return min(found, key=lambda entry: entry[:2])[-1] if found else None


@dataclass(frozen=True)
class Cell:
    """Runs at one size, warmup and learning rate, which differ in their seeds only.

    Attributes:
        complete, failed: how many runs.
        passed, ended: how many of the complete were near-critical at some look, and at their end.
        with_dragon_king: how many of the complete met one.
        order_parameter, smallest, validation_loss: medians over the complete; NaN where there is none.
    """

    size: str
    warmup: float
    learning_rate: float
    complete: int
    failed: int
    passed: int
    ended: int
    with_dragon_king: int
    order_parameter: float
    smallest: float
    validation_loss: float


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Cells with a run that ended, by size, warmup and learning rate."""
    groups: dict[tuple[str, float, float], list[Row]] = {}
    for row in rows:
        if row.point is not None and row.state in ("complete", "failed"):
            groups.setdefault((row.point.size, row.point.warmup, row.point.learning_rate), []).append(row)
    return [_cell(*key, [row.figures for row in groups[key]]) for key in sorted(groups)]


def _cell(size: str, warmup: float, learning_rate: float, figures: list[Figures | None]) -> Cell:
    complete = [f for f in figures if f is not None]

    def median(name: str) -> float:
        return statistics.median(getattr(f, name) for f in complete) if complete else math.nan

    return Cell(
        size,
        warmup,
        learning_rate,
        complete=len(complete),
        failed=len(figures) - len(complete),
        passed=sum(f.passed for f in complete),
        ended=sum(f.ended for f in complete),
        with_dragon_king=sum(bool(f.dragon_kings) for f in complete),
        order_parameter=median("order_parameter"),
        smallest=median("smallest"),
        validation_loss=median("validation_loss"),
    )


def record(row: Row) -> dict[str, Any]:
    """A row for the CSV: state, point, figures without their looks, message and place."""
    point = dict.fromkeys(Point._fields, "") if row.point is None else row.point._asdict()
    names = [f.name for f in fields(Figures) if f.name not in ("looks", "dragon_kings")]
    figures = row.figures
    return {
        "trial": row.number,
        "state": row.state,
        **point,
        "regime": "" if figures is None else figures.regime,
        "passed_near_critical": "" if figures is None else int(figures.passed),
        "ended_near_critical": "" if figures is None else int(figures.ended),
        **{name: "" if figures is None else getattr(figures, name) for name in names},
        "dragon_kings": "" if figures is None else len(figures.dragon_kings),
        "dragon_king_steps": "" if figures is None else " ".join(str(e["event_step"]) for e in figures.dragon_kings),
        "message": row.message,
        "host": row.host,
        "folder": row.folder,
    }
