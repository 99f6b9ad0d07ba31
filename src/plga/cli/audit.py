"""``plga audit``: the measurements of arXiv:2608.10288 on a checkpoint, with a report, checked and compared."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plga.cli.convert import DTYPES
from plga.cli.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from plga.audit.record import Record
    from plga.audit.section import Section
    from plga.audit.source import Task

_WIDTH = 110  # where there is no terminal to ask


def command(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            help="A checkpoint folder (ours or published) or a published .pth; audits, with --verify or --compare.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The new folder: audit.json, audit.npz, report.html; or the report of --compare."),
    ] = None,
    sections: Annotated[
        str | None, typer.Option(help="Letters, as A,B,D2. By default all; A alone needs no checkpoint.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A text file with a prompt a line. By default eight neutral ones of plga's own.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Seed of all that is random; 0.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help=f"To measure in: {', '.join(DTYPES)}; float32. The operator is float32 or wider.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer, if the checkpoint has none beside it.")] = None,
    operators: Annotated[
        Path | None,
        typer.Option(help="Audit these G_LM without a model: .safetensors with curvature, or a published pickle."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute every summary of these audits from their arrays.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="One report of these audits side by side, in --out.")] = (
        False
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an audit that is there already.")] = False,
) -> None:
    """Repeat the measurements of the paper's numerical audit, section by section, and write them with a report.

    Interrupted or killed, it goes on after the last finished section when started again with the same options.
    """
    folders = sources or []
    of_audit = {
        "--sections": sections,
        "--prompts": prompts,
        "--seed": seed,
        "--dtype": dtype,
        "--tokenizer": tokenizer,
        "--operators": operators,
    }
    if verify and compare:
        raise ValueError("--verify and --compare are both given, expected at most one")
    if verify or compare:
        mode = "--verify" if verify else "--compare"
        own = of_audit | ({"--out": out, "--overwrite": overwrite or None} if verify else {})
        if given := [name for name, value in own.items() if value is not None]:
            raise ValueError(f"{given[0]} is given with {mode}, which reads finished audits and does not use it")
        if len(folders) < (1 if verify else 2):
            raise ValueError(
                f"{mode} got {counted(len(folders), 'folder')}, expected {'one' if verify else 'two'} or more"
            )
        _verify(folders) if verify else _compare(folders, out, overwrite)
        return
    if len(folders) > 1:
        raise ValueError(f"got {len(folders)} checkpoints, expected one; --compare shows several finished audits")
    if operators is not None and folders:
        raise ValueError(f"--operators and the checkpoint {folders[0]} are both given, expected one")
    if not folders and (given := [name for name in ("--prompts", "--dtype", "--tokenizer") if of_audit[name]]):
        raise ValueError(f"{given[0]} is given without a checkpoint, which it is for")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    if out is None:
        raise ValueError("--out is missing, expected the folder for audit.json, audit.npz and report.html")
    _audit(folders[0] if folders else None, out, sections, prompts, seed or 0, dtype, tokenizer, operators, overwrite)


def _audit(
    checkpoint: Path | None,
    out: Path,
    letters: str | None,
    prompts: Path | None,
    seed: int,
    dtype: str | None,
    tokenizer: Path | None,
    operators: Path | None,
    overwrite: bool,
) -> None:
    import torch

    from plga.audit import source
    from plga.audit.files import AUDIT
    from plga.audit.run import alone
    from plga.audit.sections import chosen
    from plga.model.atomic import check_new_directory

    found = chosen(letters, "model" if checkpoint is not None else "nothing" if operators is None else "operators")
    check_new_directory(out, overwrite, AUDIT)
    if checkpoint is not None:
        task = source.of_checkpoint(checkpoint, prompts, tokenizer, getattr(torch, dtype or "float32"), seed)
    else:
        task = source.of_nothing(seed) if operators is None else source.of_operators(operators, seed)
    with alone(out):
        check_new_directory(out, overwrite, AUDIT)  # once more, as another audit may have ended there meanwhile
        _measure(task, found, out, overwrite)


def _measure(task: "Task", found: "list[Section]", out: Path, overwrite: bool) -> None:
    from rich.status import Status

    from plga.audit.files import write
    from plga.audit.record import FAILED
    from plga.audit.run import Result, clear, run, working_folder

    console = _console()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    bar = Status("", console=console)

    def on_start(section: "Section") -> None:
        bar.update(f"{section.letter} {section.title}")

    def on_end(result: "Result") -> None:
        status = result.status if result.reason is None else f"{result.status}: {result.reason}"
        took = "" if result.seconds < 0.05 else f"  {result.seconds:.1f} s"
        say(f"{result.section.letter:3s} {result.section.title}: {status}{took}")

    try:
        with bar:
            results = run(task.subject, found, working_folder(out, task.identity), on_start, on_end)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command goes on after the last finished section") from None
    record = write(task, results, out, overwrite)
    clear(out)
    _mechanism(record, console)
    say(f"wrote {out}: audit.json, audit.npz, report.html")
    if failed := [result.section.letter for result in results if result.status == FAILED]:
        raise ValueError(
            f"{len(failed)} of {len(results)} sections failed: {', '.join(failed)}; the others are in {out}"
        )


def _mechanism(record: "Record", console: "Console") -> None:
    from rich.table import Table

    if record.mechanism is None:
        return
    table = Table(title="Three-stage mechanism")
    for name in ("stage", "measured", "hypothesis here"):
        table.add_column(name)
    for stage in record.mechanism:
        holds = "not measured" if stage.holds is None else "holds" if stage.holds else "does not hold"
        table.add_row(stage.name, stage.measured, holds)
    console.print(table)


def _verify(folders: list[Path]) -> None:
    from plga.audit.files import verify
    from plga.audit.record import MEASURED

    for folder in folders:
        record = verify(folder)
        measured = [part for part in record.sections.values() if part.status == MEASURED]
        quantities = sum(len(part.quantities) for part in measured)
        typer.echo(
            f"{folder}: {quantities:,} quantities of {counted(len(measured), 'section')} are what the arrays say"
        )


def _compare(folders: list[Path], out: Path | None, overwrite: bool) -> None:
    from plga.audit.files import COMPARISON, compare
    from plga.model.atomic import check_new_directory

    if out is None:
        raise ValueError("--out is missing, expected the folder for report.html")
    check_new_directory(out, overwrite, COMPARISON)
    compare(folders, out, overwrite)
    typer.echo(f"wrote {out}: report.html")


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
