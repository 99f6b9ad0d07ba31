"""``plga convert``: from one checkpoint format to another."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

    from plga.model.modeling import PldrForCausalLM

FORMATS = ("plga", "released", "pth")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def command(
    source: Annotated[Path, typer.Argument(help="A checkpoint folder (ours or published) or a published .pth file.")],
    target: Annotated[Path, typer.Argument(help="The new folder; with --to pth the new NAME.pth.")],
    to: Annotated[
        str,
        typer.Option(help="plga: ours; released: the published Transformers format; pth: the published NAME.pth."),
    ] = "plga",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Tokenizer to write along: a folder, tokenizer.json or .model. By default the source's."),
    ] = None,
    curvature: Annotated[
        Path | None,
        typer.Option(help="Pickled list of G_LM: it replaces the learned operator, whose metric learner is dropped."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(DTYPES)}. By default what the source has.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that is there already.")] = False,
) -> None:
    """Convert a checkpoint, tensor for tensor, or replace its operator by a published constant."""
    if to not in FORMATS:
        raise ValueError(f"--to is {to!r}, expected one of {', '.join(FORMATS)}")
    if dtype not in (None, *DTYPES):
        raise ValueError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    if to == "pth" and tokenizer is not None:
        raise ValueError("--tokenizer goes with --to plga and --to released: a .pth holds none")

    import torch

    from plga.model.checkpoint import save_model, save_pth

    wanted = None if dtype is None else getattr(torch, dtype)
    model = _load(source, to, curvature, wanted)
    text = None if to == "pth" else _tokenizer(source, tokenizer, model)
    if to == "pth":
        save_pth(model, target, overwrite)
    else:
        save_model(model, target, overwrite, text)
    operator = "learned" if model.config.operator == "learned" else f"constant ({model.config.constant})"
    count = sum(tensor.numel() for tensor in model.state_dict().values())
    kind = str(model.dtype).removeprefix("torch.")
    typer.echo(f"wrote {target}: {to} format, {count:,} numbers, {kind}, operator {operator}")
    if to != "pth":
        typer.echo(f"tokenizer: {len(text):,} pieces" if text else "tokenizer: none known, pass --tokenizer to add one")


def _load(source: Path, to: str, curvature: Path | None, dtype: "torch.dtype | None") -> "PldrForCausalLM":
    """The model to write, in the class whose format is ``to``."""
    from plga.model.checkpoint import is_released, load_model, load_released
    from plga.model.released_models import PldrllmForCausalLM

    if curvature is None and to == "released" and is_released(source):
        return load_released(source, dtype)  # with what our own format has no place for
    model = load_model(source, dtype)
    if curvature is not None:
        from plga.collapse.freeze import freeze
        from plga.model.pickles import load_curvatures

        constants = load_curvatures(curvature)
        try:
            model = freeze(model, constants)
        except ValueError as error:
            raise ValueError(f"{curvature}: {error}") from error
    return PldrllmForCausalLM.from_plga(model) if to == "released" else model


def _tokenizer(source: Path, given: Path | None, model: "PldrForCausalLM") -> "PreTrainedTokenizerFast | None":
    """The tokenizer to write along, if one is known; its special ids go where the checkpoint names none."""
    from plga.model.tokenizer import NoTokenizerError, load_tokenizer, name_special_tokens

    try:
        tokenizer = load_tokenizer(given or source, model.config.vocab_size)
    except NoTokenizerError:
        if given is not None:
            raise
        return None
    name_special_tokens(model, tokenizer)
    return tokenizer
