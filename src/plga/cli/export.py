"""``plga export``: a collapsed checkpoint for another engine."""

from pathlib import Path
from typing import Annotated

import typer

from plga.cli.units import readable_bytes

FORMATS = ("onnx",)


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint folder with a constant operator.")],
    out: Annotated[Path, typer.Option(help="The new file, NAME.onnx.")],
    to: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "onnx",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there already.")] = False,
) -> None:
    """Export a model in constant mode, with its KV-cache as inputs and outputs, in float32."""
    if to not in FORMATS:
        raise ValueError(f"--format is {to!r}, expected one of {', '.join(FORMATS)}")

    from plga.model.checkpoint import load_model
    from plga.serving.onnx import export_onnx

    model = load_model(checkpoint)
    if model.config.operator == "learned":
        raise ValueError(
            f"{checkpoint}: the operator is learned, expected constant; plga collapse {checkpoint} --out DIR freezes it"
        )
    for file in export_onnx(model, out, overwrite):
        typer.echo(f"wrote {file}: {readable_bytes(file.stat().st_size)}")
