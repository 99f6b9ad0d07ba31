"""``plga keygen``: a key pair to seal checkpoints with."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    key: Annotated[Path, typer.Argument(help="The new private key, KEY.pem; the public one goes into KEY.pub.")],
) -> None:
    """Draw an Ed25519 key pair. The private key is readable by its owner alone; nothing is ever overwritten."""
    from plga.model.signing import create_keys, read_public_key

    public = create_keys(key)
    typer.echo(f"wrote {key} (private, keep it away from what it seals) and {public}")
    typer.echo(f"public key: {read_public_key(public)}")
