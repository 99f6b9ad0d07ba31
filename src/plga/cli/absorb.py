"""``plga absorb``: an adopted model back as a plain one, with its operators in the query projections."""

from pathlib import Path
from typing import Annotated

import typer

_WIDTH = 120  # where there is no terminal to ask


def command(
    model: Annotated[str, typer.Argument(help="A directory that plga adopt or a training of its model wrote.")],
    out: Annotated[Path, typer.Option(help="The new folder: a plain model of the class that was adopted.")],
    tolerance: Annotated[
        float, typer.Option(help="Largest residual of an operator that commutes, and difference of logits.")
    ] = 1e-5,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there already.")] = False,
) -> None:
    """Absorb operators that commute with the rotary rotations into the query projections, all or none.

    Where one does not commute nothing is written, and the worst residual is shown.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"--tolerance is {tolerance}, expected from 0 to below 1")

    from rich.console import Console

    from plga.adopt.absorption import absorb
    from plga.adopt.checkpoints import load_adopted, load_tokenizer, require_new, save

    require_new(out, model, overwrite)
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    console.print(f"loading {model}", markup=False, soft_wrap=True)
    adopted = load_adopted(model)
    plain = absorb(adopted, tolerance)
    console.print(f"logits within {tolerance:g} of those of the adopted model, in float32", soft_wrap=True)
    save(plain, out, load_tokenizer(model), overwrite)
    console.print(f"wrote {out}: {type(plain).__name__}", markup=False, soft_wrap=True)
