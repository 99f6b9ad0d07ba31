"""``plga serve``: a collapsed checkpoint behind an OpenAI endpoint."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A folder with a collapsed checkpoint (ours or published) and its tokenizer.")
    ],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ENGINE OPTIONS]", help="What follows -- goes to the engine.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    engine: Annotated[
        str, typer.Option(help="vllm, transformers (transformers serve), or auto: vLLM where it is installed.")
    ] = "auto",
) -> None:
    """Serve a collapsed PLDR-LLM over the OpenAI API, with vLLM or else transformers serve."""
    from plga.serving.serve import prepare

    launch = prepare(checkpoint, host, port, engine, options or ())
    typer.echo(f"plga: {launch.engine} serves {checkpoint} on http://{host}:{port}/v1", err=True)
    launch.become()
