"""``plga verify``: is a checkpoint what was sealed?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plga.model.seal import Seal


def command(
    directory: Annotated[Path, typer.Argument(help="The sealed checkpoint folder.")],
    public_key: Annotated[
        Path | None,
        typer.Option(help="KEY.pub that has to have signed; by default a key of PLGA_TRUST."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="That the seal has to be for.")] = None,
    at_least: Annotated[int, typer.Option(min=0, help="The smallest serial number that is accepted.")] = 0,
    remember: Annotated[
        bool, typer.Option("--remember", help="Keep its serial in the file PLGA_TRUST names: refuse older ones.")
    ] = False,
) -> None:
    """Check every tensor and file of a checkpoint against its seal, and the seal against trusted keys."""
    import os
    from dataclasses import replace

    from plga.model.seal import TRUST, check_seal, default_policy, remember_serial
    from plga.model.signing import read_public_key

    trust = os.environ.get(TRUST)
    if remember and not trust:
        raise ValueError(f"--remember is given, but {TRUST} names no file; expected the path of a policy")
    policy = replace(default_policy(), required=True, name=name, at_least=at_least)
    if public_key is not None:
        policy = replace(policy, public_keys=(read_public_key(public_key),))
    if remember and not policy.public_keys:
        raise ValueError("--remember is given without a trusted key: pass --public-key, or name one in the policy")
    seal = check_seal(directory, policy)
    assert seal is not None  # required
    typer.echo(f"{directory}: as sealed")
    show(seal)
    if not policy.public_keys:
        typer.echo("no key is trusted (--public-key, or PLGA_TRUST): this excludes accidents, not forgery")
    if remember and trust:
        remember_serial(Path(trust), seal)
        typer.echo(f"older seals of {seal.name} are refused from now on ({trust})")


def show(seal: "Seal") -> None:
    """Print what a seal says."""
    from datetime import UTC, datetime

    try:
        when = f" ({datetime.fromtimestamp(seal.serial / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC)"
    except (ValueError, OverflowError, OSError):  # a signer with serial numbers of his own
        when = ""
    name = seal.name if seal.name.isprintable() else ascii(seal.name)  # no line, and no colour, of a signer's own
    typer.echo(f"name: {name}, serial: {seal.serial}{when}")
    others = sum("tensors" not in entry for entry in seal.files.values())
    typer.echo(f"covers: {seal.tensors:,} tensors in {len(seal.files) - others} files, and {others} other files")
    for file, digest in seal.calibration.items():
        typer.echo(f"calibration: {file}, SHA-256 {digest}")
    typer.echo(f"signed by: {seal.public_key}")
