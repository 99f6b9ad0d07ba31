"""The report of a sweep: a CSV, the phase diagram, and one HTML file that holds all of it."""

import base64
import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

import yaml
from jinja2 import Environment, StrictUndefined

import plga
from plga.criticality import phase_diagram
from plga.criticality.files import write_csv
from plga.criticality.regimes import RMS_NORMALIZED, stated
from plga.criticality.results import Cell, Row, best_near_critical, cells, record
from plga.criticality.sweep_settings import Sweep
from plga.model.atomic import new_file

_PACKAGES = ("torch", "transformers", "optuna", "numpy")


@dataclass(frozen=True)
class Onset:
    """Where collapse sets in at one size and warmup of a grid.

    Attributes:
        passing, ending: smallest learning rate at which more than half of the complete runs were near-critical at some
            look, and at their end; None: at none.
    """

    size: str
    warmup: float
    passing: float | None
    ending: float | None


@dataclass(frozen=True)
class Report:
    """What a report says.

    Attributes:
        states: how many trials are in each state.
        regimes: how many complete runs ended in each regime.
        passed, ended: how many were near-critical at some look, and how many at their end.
        onsets: of a grid; empty for a sampled sweep.
        best: the best near-critical run; None where there is none. Its ``final`` is kept.
    """

    states: dict[str, int]
    regimes: dict[str, int]
    passed: int
    ended: int
    onsets: list[Onset]
    best: Row | None


def write(sweep: Sweep, rows: Sequence[Row], out: Path) -> Report:
    """Write ``trials.csv``, ``phase_diagram.png`` and ``phase_diagram.html``.

    Raises:
        OSError: a full disk, and whatever else the file system says.
    """
    found = cells(rows)
    figures = [row.figures for row in rows if row.figures is not None]
    report = Report(
        states=dict(Counter(row.state for row in rows)),
        regimes=dict(Counter(f.regime for f in figures)),
        passed=sum(f.passed for f in figures),
        ended=sum(f.ended for f in figures),
        onsets=onsets(found) if sweep.settings.sampler == "grid" else [],
        best=best_near_critical(rows),
    )
    write_csv(out / "trials.csv", [record(row) for row in rows])
    phase_diagram.draw(sweep, rows, out / "phase_diagram.png")
    html = _html(sweep, rows, found, report, (out / "phase_diagram.png").read_bytes())
    with new_file(out / "phase_diagram.html", overwrite=True) as temporary:
        temporary.write_text(html, encoding="utf-8")
    return report


def onsets(found: Sequence[Cell]) -> list[Onset]:
    """One for each size and warmup, from the cells of a grid."""
    columns: dict[tuple[str, float], list[Cell]] = {}
    for cell in found:
        columns.setdefault((cell.size, cell.warmup), []).append(cell)
    return [
        Onset(
            size,
            warmup,
            passing=min((c.learning_rate for c in column if 2 * c.passed > c.complete), default=None),
            ending=min((c.learning_rate for c in column if 2 * c.ended > c.complete), default=None),
        )
        for (size, warmup), column in columns.items()
    ]


def _html(sweep: Sweep, rows: Sequence[Row], found: Sequence[Cell], report: Report, picture: bytes) -> str:
    template = resources.files("plga.criticality").joinpath("report.html").read_text(encoding="utf-8")
    speeds = [row.figures.tokens_per_second for row in rows if row.figures is not None]
    return (
        Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            name=sweep.settings.name,
            report=report,
            thresholds=stated(RMS_NORMALIZED),
            near_critical=RMS_NORMALIZED.near_critical,
            picture=base64.b64encode(picture).decode(),
            cells=found,
            rows=[record(row) for row in rows],
            settings=yaml.safe_dump(sweep.identity(), sort_keys=False),
            speed=f"{statistics.median(speeds):.0f}" if speeds else "",
            versions={
                "plga": plga.__version__,
                "Python": platform.python_version(),
                **{name: metadata.version(name) for name in _PACKAGES},
                "platform": platform.platform(),
            },
        )
    )
