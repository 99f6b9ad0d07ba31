"""``plga absorb``: an adopted model back as a plain one, with its operators in the query projections."""

from pathlib import Path
from typing import Annotated

import typer

_WIDTH = 120  # where there is no terminal to ask


def command(
    model: Annotated[str, typer.Argument(help="A directory that plga adopt or a training of its model wrote.")],
    out: Annotated[Path, typer.Option(help="The new folder: a plain model of the class that was adopted.")],
    tolerance: Annotated[float, typer.Option(help="Residual up to which an operator counts as commuting.")] = 1e-6,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there already.")] = False,
) -> None:
    """Absorb operators that commute with the rotary rotations into the query projections.

    An operator that does not commute cannot be absorbed: then nothing is written, and the residuals are shown.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"--tolerance is {tolerance}, expected from 0 to below 1")

    from rich.console import Console
    from rich.table import Table

    from plga.adopt.absorption import VERIFIED, absorb, commutation
    from plga.adopt.checkpoints import load_adopted, load_tokenizer, require_new, save

    require_new(out, model, overwrite)
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    console.print(f"loading {model}", markup=False, soft_wrap=True)
    adopted = load_adopted(model)
    table = Table("layer", "largest residual", "of head")
    for name, residuals in commutation(adopted).items():
        worst = int(residuals.argmax())
        table.add_row(name, f"{float(residuals[worst]):.3g}", str(worst))
    console.print(table)
    plain = absorb(adopted, tolerance)
    console.print(f"logits within {VERIFIED:g} of those of the adopted model, in float32", soft_wrap=True)
    save(plain, out, load_tokenizer(model), overwrite)
    console.print(f"wrote {out}: {type(plain).__name__}", markup=False, soft_wrap=True)
