"""``plga seal``: write down what a checkpoint is, and sign it."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(help="The checkpoint folder, finished: nothing in it may change later.")],
    key: Annotated[Path, typer.Option(help="Private key, as plga keygen writes.")],
    name: Annotated[str | None, typer.Option(help="Of the model; by default that of the folder.")] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(help="File that the operator was frozen on, whose hash goes into the seal; may be repeated."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a seal that is there already.")] = False,
) -> None:
    """Seal a checkpoint: a manifest of every tensor and file with an Ed25519 signature, seal.json."""
    from plga.cli.verify import show
    from plga.collapse.seal import seal

    sealed = seal(directory, key, name, calibration or (), overwrite)
    typer.echo(f"wrote {directory / 'seal.json'}")
    show(sealed)
