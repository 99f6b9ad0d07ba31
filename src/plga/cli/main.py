"""Entry point of ``plga``: puts the commands together and turns expected errors into one line."""

import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from plga.cli import (
    absorb,
    adopt,
    audit,
    claims,
    collapse,
    convert,
    criticality,
    demo,
    export,
    generate,
    info,
    keygen,
    plan,
    score,
    seal,
    serve,
    sweep,
    tokenizer,
    train,
    verify,
)
from plga.cli import eval as evaluation


class _Commands(TyperGroup):
    """Commands that end in one line on stderr, never a traceback, on an expected error or when interrupted."""

    def invoke(self, ctx: Any) -> Any:
        # Here, because around the whole app it would be too late: what typer makes of an interruption changes with
        # its version.
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            _end(str(interruption) or "interrupted", 130)
        except BrokenPipeError:
            raise  # the reader went away (plga ... | head): nothing to report, and typer ends quietly
        except (ValueError, OSError, FloatingPointError, MemoryError) as error:
            if os.environ.get("PLGA_TRACEBACK"):
                raise
            _end(f"error: {_line(error)}", 1)


def _line(error: BaseException) -> str:
    """What an error says, in one line; of the system's own the file first, as other commands have it."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        message = f"{error.filename}: {error.strerror}"
    return " ".join(message.split()) or type(error).__name__


def _end(message: str, code: int) -> NoReturn:
    typer.echo(f"plga: {message}", err=True)
    sys.exit(code)


app = typer.Typer(
    name="plga",
    cls=_Commands,
    help="Power Law Graph Attention and PLDR-LLM: train, load, measure, collapse, generate (arXiv:2608.10288).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (
    demo,
    train,
    plan,
    sweep,
    criticality,
    collapse,
    audit,
    score,
    evaluation,
    generate,
    serve,
    info,
    adopt,
    absorb,
    convert,
    export,
    keygen,
    seal,
    verify,
    claims,
):
    app.command(module.__name__.rpartition(".")[2])(module.command)
app.add_typer(tokenizer.app, name="tokenizer")


def main() -> None:
    """Run the command line."""
    app()
