"""The phase diagram of a sweep: order parameter and validation loss over learning rate and warmup."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from plga.criticality.regimes import RMS_NORMALIZED, stated
from plga.criticality.results import Cell, Row, cells
from plga.criticality.sweep_settings import Sweep
from plga.model.atomic import new_file

_PANELS = (
    ("order_parameter", "order parameter at the end of the run"),
    ("smallest", "smallest order parameter over the run"),
    ("validation_loss", "validation loss at the end (nats a token)"),
)
_ORDER = LogNorm(1e-8, 1.0, clip=True)  # one scale for all sweeps; float32 resolves 1e-7


def draw(sweep: Sweep, rows: Sequence[Row], file: Path) -> None:
    """Write the diagram to ``file`` (PNG): four panels a size.

    Three are over learning rate and warmup: medians over the seeds of a grid, single runs of a sampled sweep. A star
    marks runs that met a dragon king, a cross runs that failed. The fourth is the order parameter of every run over
    its steps, and shows whether a collapse outlasts annealing.

    Raises:
        OSError: a full disk, and whatever else the file system says.
    """
    found = cells(rows)
    losses = [cell.validation_loss for cell in found if cell.complete]
    norms = {
        "order_parameter": _ORDER,
        "smallest": _ORDER,
        "validation_loss": Normalize(min(losses), max(losses)) if losses else Normalize(0, 1),
    }
    figure = Figure(figsize=(13, 8.5 * len(sweep.sizes)), layout="constrained")
    axes = figure.subplots(2 * len(sweep.sizes), 2, squeeze=False)
    for index, size in enumerate(sweep.sizes):
        panels = list(axes[2 * index : 2 * index + 2].flat)
        here = [cell for cell in found if cell.size == size]
        for panel, (name, title) in zip(panels, _PANELS, strict=False):
            norm = norms[name]
            if sweep.settings.sampler == "grid":
                _map(panel, sweep, here, name, norm)
            else:
                _scatter(panel, here, name, norm)
            panel.set(xlabel="maximum learning rate", ylabel="warmup", title=f"{size}: {title}")
            figure.colorbar(ScalarMappable(norm, _colors(name)), ax=panel)
        _trajectories(panels[3], sweep, [row for row in rows if row.point is not None and row.point.size == size])
        panels[3].set_title(f"{size}: order parameter over the steps")
    figure.suptitle(
        f"{sweep.settings.name}: order parameter of G_LM, RMS-normalized ({stated(RMS_NORMALIZED)})\n"
        "* a dragon king among the runs of a cell, x a failed run; measurement"
    )
    save(figure, file)


def save(figure: Figure, file: Path) -> None:
    """Write a picture (PNG), replacing what is there.

    Raises:
        OSError: a full disk, and whatever else the file system says.
    """
    with new_file(file, overwrite=True) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def _colors(name: str) -> str:
    return "viridis" if name == "validation_loss" else "magma"


def _marks(cell: Cell) -> str:
    return "*" * (cell.with_dragon_king > 0) + "x" * (cell.failed > 0)


def _map(panel: Axes, sweep: Sweep, found: list[Cell], name: str, norm: Normalize) -> None:
    """One square a cell, with its value and its marks in it; the axes are the values of the grid, not a scale."""
    rates, warmups = sweep.learning_rates, sweep.warmups
    values = np.full((len(warmups), len(rates)), math.nan)
    for cell in found:
        x, y = rates.index(cell.learning_rate), warmups.index(cell.warmup)
        value = values[y, x] = getattr(cell, name)
        number = "" if math.isnan(value) else f"{value:.3f}" if name == "validation_loss" else f"{value:.0e}"
        dark = not math.isnan(value) and float(norm(value)) < 0.6
        text = "\n".join(filter(None, (number, _marks(cell))))
        panel.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    panel.imshow(values, cmap=_colors(name), norm=norm, origin="lower", aspect="auto")
    panel.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    panel.set_yticks(range(len(warmups)), [f"{warmup:g}" for warmup in warmups])


def _scatter(panel: Axes, found: list[Cell], name: str, norm: Normalize) -> None:
    """One dot a run, at its place."""
    whole = [cell for cell in found if cell.complete]
    panel.scatter(
        [cell.learning_rate for cell in whole],
        [cell.warmup for cell in whole],
        c=[getattr(cell, name) for cell in whole],
        cmap=_colors(name),
        norm=norm,
        edgecolors="gray",
        s=80,
    )
    for cell in found:
        panel.annotate(_marks(cell), (cell.learning_rate, cell.warmup), ha="center", va="center", color="tab:cyan")
    panel.set_xscale("log")


def _trajectories(panel: Axes, sweep: Sweep, rows: list[Row]) -> None:
    """One line a run, colored by its learning rate."""
    norm = LogNorm(sweep.learning_rates[0], max(sweep.learning_rates[-1], sweep.learning_rates[0] * 1.01))
    colors = colormaps["turbo"]
    for row in rows:
        if row.figures is not None and row.point is not None:
            steps, orders = [look[0] for look in row.figures.looks], [look[1] for look in row.figures.looks]
            shown = np.clip(orders, _ORDER.vmin, None)
            panel.semilogy(steps, shown, color=colors(norm(row.point.learning_rate)), alpha=0.7, linewidth=1)
    for threshold in RMS_NORMALIZED:
        panel.axhline(threshold, color="gray", linestyle=":")
    panel.set(xlabel="step", ylabel="order parameter", ylim=(_ORDER.vmin, 1))
    panel.figure.colorbar(ScalarMappable(norm, colors), ax=panel, label="maximum learning rate")
