"""Entry point of ``plga``: puts the commands together and turns expected errors into one line."""

import os
import sys

import typer

from plga.cli import convert, demo, generate, info

app = typer.Typer(
    name="plga",
    help="Power Law Graph Attention and PLDR-LLM: train, load, measure, collapse, generate (arXiv:2608.10288).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (demo, generate, info, convert):
    app.command(module.__name__.rpartition(".")[2])(module.command)


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit code 1, never a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit("plga: interrupted")
    except BrokenPipeError:
        # The reader went away (plga ... | head): nothing to report, but Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError, FloatingPointError, MemoryError) as error:
        if os.environ.get("PLGA_TRACEBACK"):
            raise
        sys.exit(f"plga: error: {' '.join(str(error).split()) or type(error).__name__}")
