"""``plga sweep``: where, over learning rate, warmup and size, the operator collapses."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plga.cli.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from plga.criticality.results import Row
    from plga.criticality.sweep_settings import Sweep

_WIDTH = 110  # where there is no terminal to ask


def command(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or a ready sweep: tiny.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings over it, as 'axes.learning_rate=[1e-3,1e-2]'."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/sweep"),
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default what CONFIG says.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="SQLAlchemy URL that several machines share; by default sweep.db in --out.")
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="A conjecture to measure: size (collapse threshold against model size) or spectrum (of A_LM, over "
            "the steps of one run)."
        ),
    ] = None,
) -> None:
    """Train over a grid or a sample of learning rate, warmup, size and seed, and draw the phase diagram.

    Interrupted or killed, it goes on when started again with the same options. Started on several
    machines with the same --storage, they share the runs.
    """
    if study not in (None, "size", "spectrum"):
        raise ValueError(f"--study is {study!r}, expected size or spectrum")

    from rich.console import Console

    from plga.criticality.sweep_settings import load

    sweep = load(config, [*(overrides or ()), *([f"workers={workers}"] if workers else [])])
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    if study == "spectrum":
        _spectrum(sweep, out, console)
        return
    if study == "size":
        from plga.criticality import size_study

        size_study.check(sweep)
    rows = _run(sweep, out, storage, console)
    _report(sweep, rows, out, console)
    if all(row.state == "failed" for row in rows):
        raise ValueError(f"all {len(rows)} runs failed; trial {rows[0].number}: {rows[0].message}")
    if study == "size":
        _sizes(sweep, rows, out, console)


def _run(sweep: "Sweep", out: Path, storage: str | None, console: "Console") -> "list[Row]":
    from collections import Counter

    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from plga.criticality.sweep import run

    bar = Progress(
        TextColumn("{task.completed:.0f} of {task.total:.0f} runs"),
        BarColumn(bar_width=20),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("", total=sweep.count)

    def on_end(row: "Row", rows: "list[Row]") -> None:
        console.print(_line(row), soft_wrap=True, markup=False)
        states = Counter(row.state for row in rows)
        bar.update(task, completed=states["complete"] + states["failed"], description=f"{states['failed']} failed")

    console.print(
        f"{sweep.settings.name}: {counted(sweep.count, 'run')} of {counted(sweep.base.optimizer.last, 'step')}, "
        f"{sweep.settings.workers} at a time, in {out}",
        soft_wrap=True,
        markup=False,
    )
    with bar:
        return run(sweep, out, storage, on_end)


def _line(row: "Row") -> str:
    if row.figures is None:
        return f"trial {row.number:3d}  {row.point}  failed: {row.message}"
    figures = row.figures
    return (
        f"trial {row.number:3d}  {row.point}  validation {figures.validation_loss:.3f}  G_LM fluctuation "
        f"{figures.order_parameter:.1e} (smallest {figures.smallest:.1e})  {figures.regime}"
    )


def _report(sweep: "Sweep", rows: "list[Row]", out: Path, console: "Console") -> None:
    from plga.criticality.regimes import RMS_NORMALIZED, stated
    from plga.criticality.report import write

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    report = write(sweep, rows, out)
    say("trials: " + ", ".join(f"{count} {state}" for state, count in report.states.items()))
    say(f"thresholds (fluctuation of G_LM): {stated(RMS_NORMALIZED)}")
    say("ends: " + (", ".join(f"{count} {regime}" for regime, count in report.regimes.items()) or "none"))
    say(f"near-critical at some look: {report.passed}; at the end, after annealing: {report.ended}")
    for onset in report.onsets:
        passing, ending = (
            "none of the grid" if rate is None else f"{rate:g}" for rate in (onset.passing, onset.ending)
        )
        say(
            f"{onset.size}, warmup {onset.warmup:g}: most runs near-critical from learning rate {passing} at some "
            f"look, from {ending} at the end"
        )
    if report.best is None:
        say("best near-critical run: none")
    else:
        assert report.best.figures is not None
        say(
            f"best near-critical run: trial {report.best.number}, {report.best.point}; on windows that no look has "
            f"seen loss {report.best.figures.unseen_loss:.3f}, G_LM fluctuation "
            f"{report.best.figures.unseen_order_parameter:.1e}; {report.best.folder}/final"
        )
    for name in ("phase_diagram.html", "phase_diagram.png", "trials.csv"):
        say(f"{out}/{name}")


def _sizes(sweep: "Sweep", rows: "list[Row]", out: Path, console: "Console") -> None:
    from rich.table import Table

    from plga.criticality import size_study

    table = Table(title="Smallest maximum learning rate of the grid at which a run is near-critical")
    for name in ("size", "parameters", "warmup", "seed", "at some look", "at the end", "runs"):
        table.add_column(name, justify="right")
    for t in size_study.write(sweep, rows, out):
        rates = ("none" if rate is None else f"{rate:g}" for rate in (t.passing, t.ending))
        runs = f"{t.runs} of {len(sweep.learning_rates)}"
        table.add_row(t.size, f"{t.parameters:,}", f"{t.warmup:g}", str(t.seed), *rates, runs)
    console.print(table)
    console.print(size_study.CLAIM, soft_wrap=True, markup=False)
    for name in ("size_study.csv", "size_study.png"):
        console.print(f"{out}/{name}", soft_wrap=True, markup=False)


def _spectrum(sweep: "Sweep", out: Path, console: "Console") -> None:
    from plga.cli.training_progress import TrainingProgress
    from plga.criticality import spectrum_study

    point = spectrum_study.check(sweep)
    progress = TrainingProgress(sweep.run(point, out / "run"), console)
    with progress:
        looks = spectrum_study.run(sweep, out, [progress.callback])
    console.print(f"{len(looks)} looks at the spectrum of A_LM", soft_wrap=True, markup=False)
    console.print(spectrum_study.CLAIM, soft_wrap=True, markup=False)
    for name in ("spectrum.csv", "spectrum.png"):
        console.print(f"{out}/{name}", soft_wrap=True, markup=False)
