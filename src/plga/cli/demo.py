"""``plga demo``: watch an operator collapse, freeze it, and compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plga.cli.units import counted

if TYPE_CHECKING:
    from rich.console import Console


def command(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoints, the picture and demo.json.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the initialization and of the data order.")
    ] = 0,
    learning_rate: Annotated[
        float | None, typer.Option(help="Maximum learning rate; 1e-3 shows a run that does not collapse.")
    ] = None,
    stop: Annotated[
        int | None, typer.Option(help="Step to stop at, 1 to 300; the schedule stays that of 300 steps.")
    ] = None,
) -> None:
    """Train a small PLDR-LLM on Python's own sources, freeze its operator, and compare the two.

    That takes a few minutes on two cores. Interrupted, it resumes where it last saved when
    started again with the same options.
    """
    import json
    import shutil

    from plga.audit import demo
    from plga.audit.plots import training_curve
    from plga.cli.training_progress import TrainingProgress
    from plga.model.atomic import new_file
    from plga.model.checkpoint import save_model

    settings = demo.settings(out / "training", seed, learning_rate=learning_rate, stop=stop)
    progress = TrainingProgress(settings)
    console = progress.console

    with progress:
        outcome = demo.run(settings, lambda stage: console.print(f"[bold]{stage}[/bold]"), [progress.callback])
    report = outcome.report
    for name, model in (("learned", outcome.model), ("constant", outcome.frozen)):
        save_model(model, out / name, overwrite=True, tokenizer=outcome.tokenizer)
    with new_file(out / "demo.png", overwrite=True) as file:
        training_curve(report["training"], report["chosen"]["step"], demo.COLLAPSED, file)
    with new_file(out / "demo.json", overwrite=True) as file:
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(out / "training")
    _print_report(report, console)
    console.print(f"checkpoints  {out}/learned  {out}/constant", highlight=False, markup=False, soft_wrap=True)
    console.print(f"picture      {out}/demo.png", highlight=False, markup=False, soft_wrap=True)
    console.print(f"all figures  {out}/demo.json", highlight=False, markup=False, soft_wrap=True)


def _print_report(report: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    chosen, decoding = report["chosen"], report["decoding"]
    table = Table(title=f"Fluctuation over {report['windows']['measured_on']} other windows, step {chosen['step']}")
    for name in (*report["fluctuation"], "s2/s1 of A (median)"):
        table.add_column(name, justify="right")
    cells = [f"{x:.1e}" for x in report["fluctuation"].values()]
    table.add_row(*cells, f"{report['A_s2_over_s1']['median']:.1e}")
    console.print(table)

    modes = Table(title=f"Greedy decoding, {decoding['prompts']} prompts x {decoding['new_tokens']} tokens")
    for name in (
        "operator",
        "tokens as recomputed",
        "largest logit deviation",
        "2 x deviation < margin",
        "tokens/s",
        "speed-up",
    ):
        modes.add_column(name, justify="right")
    for name, mode in decoding["modes"].items():
        modes.add_row(
            name,
            f"{mode['agreeing']} of {mode['total']}",
            f"{mode['largest_deviation']:.1e}",
            f"{mode['within_margin']} of {mode['total']}",
            f"{mode['tokens_per_second']:.0f}",
            f"{mode['speedup']:.1f}x",
        )
    console.print(modes)
    console.print(f"smallest decoding margin {decoding['smallest_margin']:.1e}", highlight=False)
    losses = report["validation_loss"]
    console.print(
        f"validation loss (block) {losses['learned']:.3f} learned, {losses['constant']:.3f} constant", highlight=False
    )
    seconds = report["seconds"]
    console.print(
        f"training took {seconds['training']:.0f} s, everything {sum(seconds.values()):.0f} s, "
        f"on {counted(report['machine']['threads'], 'thread')}",
        highlight=False,
    )
    fluctuation = report["fluctuation"]["G_LM"]
    if report["collapsed"]:
        console.print(
            f"[bold green]collapsed[/]: G_LM fluctuates by {fluctuation:.1e}; a constant replaces its network"
        )
    else:
        console.print(
            f"[bold red]not collapsed[/]: G_LM fluctuates by {fluctuation:.1e}; "
            "the table shows what keeping it costs in tokens and logits"
        )
