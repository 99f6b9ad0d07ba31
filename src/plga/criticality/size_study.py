"""Collapse threshold against model size: a measurement of a conjecture (arXiv:2603.23539; arXiv:2608.10288).

The threshold of a size is the smallest maximum learning rate, of those of a grid, at which a run is near-critical.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from plga.criticality.files import write_csv
from plga.criticality.phase_diagram import save
from plga.criticality.regimes import RMS_NORMALIZED
from plga.criticality.results import Row
from plga.criticality.sweep_settings import Point, Sweep
from plga.model.modeling import PldrForCausalLM

CLAIM = (
    "Conjecture: the learning rate at which the operator collapses depends on the size of the model, in one direction. "
    "Measurement at the sizes, seeds and learning rates of this grid. It is falsified here if the thresholds of the "
    "sizes are equal, if they rise and fall with size, or if the seeds of one size lie farther apart than the sizes."
)


@dataclass(frozen=True)
class Threshold:
    """Smallest learning rate of the grid at which the runs of one size, warmup and seed are near-critical.

    Attributes:
        parameters: of the model.
        passing: at some look, the end among them; None: at none of the grid.
        ending: at the end; None: at none of the grid.
        runs: how many were complete, of as many learning rates as the grid has.
    """

    size: str
    parameters: int
    warmup: float
    seed: int
    passing: float | None
    ending: float | None
    runs: int


def check(sweep: Sweep) -> None:
    """Whether a sweep can say anything about sizes.

    Raises:
        ValueError: one size or one learning rate only, or no grid.
    """
    if sweep.settings.sampler != "grid":
        raise ValueError(f"--study size needs a grid, but sampler is {sweep.settings.sampler}; set sampler=grid")
    if len(sweep.sizes) < 2:
        raise ValueError("--study size needs two sizes or more, but this sweep has one; set axes.size")
    if len(sweep.learning_rates) < 2:
        raise ValueError(
            "--study size needs two learning rates or more, but this sweep has one; set axes.learning_rate"
        )


def thresholds(sweep: Sweep, rows: Sequence[Row]) -> list[Threshold]:
    """One for each size, warmup and seed, from the smallest model up."""
    found = []
    for size, parameters in sorted(_parameters(sweep).items(), key=lambda item: item[1]):
        for warmup in sweep.warmups:
            for seed in sweep.seeds:
                runs = {
                    row.point.learning_rate: row.figures
                    for row in rows
                    if row.point is not None
                    and row.figures is not None
                    and row.point == Point(row.point.learning_rate, warmup, size, seed)
                }
                found.append(
                    Threshold(
                        size,
                        parameters,
                        warmup,
                        seed,
                        passing=min((rate for rate, figures in runs.items() if figures.passed), default=None),
                        ending=min((rate for rate, figures in runs.items() if figures.ended), default=None),
                        runs=len(runs),
                    )
                )
    return found


def write(sweep: Sweep, rows: Sequence[Row], out: Path) -> list[Threshold]:
    """Write ``size_study.csv`` and ``size_study.png``.

    Raises:
        OSError: a full disk, and whatever else the file system says.
    """
    found = thresholds(sweep, rows)
    records: list[dict[str, Any]] = [
        {
            "size": t.size,
            "parameters": t.parameters,
            "warmup": t.warmup,
            "seed": t.seed,
            "smallest_learning_rate_passing": "" if t.passing is None else t.passing,
            "smallest_learning_rate_ending": "" if t.ending is None else t.ending,
            "runs": t.runs,
            "learning_rates": len(sweep.learning_rates),
        }
        for t in found
    ]
    write_csv(out / "size_study.csv", records)
    _draw(sweep, found, out / "size_study.png")
    return found


def _parameters(sweep: Sweep) -> dict[str, int]:
    """Parameters of the model of each size."""
    counts = {}
    for size in sweep.sizes:
        settings = sweep.run(Point(sweep.learning_rates[0], sweep.warmups[0], size, sweep.seeds[0]), Path("runs"))
        with torch.device("meta"):  # counted, not made
            counts[size] = PldrForCausalLM(settings.model.config()).num_parameters()
    return counts


def _draw(sweep: Sweep, found: list[Threshold], file: Path) -> None:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    beyond = 1.5 * sweep.learning_rates[-1]  # where runs are drawn that no learning rate of the grid collapsed
    for name, label, color, marker in (
        ("passing", "near-critical at some look", "tab:blue", "o"),
        ("ending", "near-critical at the end", "tab:red", "^"),
    ):
        values = [getattr(t, name) for t in found]
        axes.scatter(
            [t.parameters for t in found],
            [beyond if value is None else value for value in values],
            facecolors=["none" if value is None else color for value in values],
            edgecolors=color,
            marker=marker,
            label=label,
        )
        by_size: dict[int, list[float]] = {}
        for t, value in zip(found, values, strict=True):
            by_size.setdefault(t.parameters, []).append(beyond if value is None else value)
        axes.plot(list(by_size), [statistics.median(v) for v in by_size.values()], color=color, alpha=0.5)
    for rate in sweep.learning_rates:
        axes.axhline(rate, color="gray", linestyle=":", linewidth=0.5)
    axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="smallest maximum learning rate of the grid")
    axes.set_title(
        f"{sweep.settings.name}: collapse (fluctuation of G_LM up to {RMS_NORMALIZED.near_critical:g}) against size\n"
        "hollow: at no learning rate of the grid; lines: medians; measurement of a conjecture",
        fontsize=10,
    )
    axes.legend()
    save(figure, file)
