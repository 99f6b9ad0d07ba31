"""``plga adopt``: any causal LM of Transformers as a PLGA model that begins at G = I."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from transformers import PreTrainedModel

_WIDTH = 120  # where there is no terminal to ask


def command(
    model: Annotated[str, typer.Argument(help="A directory with a causal LM of Transformers, or its id on the hub.")],
    out: Annotated[Path, typer.Option(help="The new folder: configuration, weights with the operators, tokenizer.")],
    operator: Annotated[
        str | None,
        typer.Option(help="constant: a matrix a head; learned: built from the queries; low_rank: I + U Vᵀ a head."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(help="Columns of U and V; with --operator low_rank, 8 by default.")
    ] = None,
    operators: Annotated[
        Path | None, typer.Option(help="A file of operators that plga.adopt.save_operators wrote; they are not at I.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Of what is drawn: V, or the metric learner. By default 0.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there already.")] = False,
) -> None:
    """Give every attention layer of a causal LM an operator, and write the model that this makes.

    At G = I logits and hidden states are those of the original model, to the bit; that is checked before anything is
    written. The base's own files are not touched.
    """
    if operators is not None and any(value is not None for value in (operator, rank, seed)):
        raise ValueError("--operators brings its own kind, rank and seed, expected it without those options")
    if rank is not None and operator != "low_rank":
        raise ValueError(f"--rank is {rank}, expected it with --operator low_rank only")

    from rich.console import Console

    from plga.adopt.adoption import PROBE_TOKENS, adopt
    from plga.adopt.checkpoints import load, load_tokenizer, require_new, save
    from plga.adopt.files import load_operators
    from plga.adopt.settings import OperatorSettings

    require_new(out, model, overwrite)
    settings = OperatorSettings(operator or "constant", 8 if rank is None else rank)
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    console.print(f"loading {model}", markup=False, soft_wrap=True)
    base = load(model)
    if operators is not None:
        load_operators(base, operators)
    else:
        adopt(base, settings.kind, rank=settings.rank, seed=seed or 0)
    _print(base, console)
    held = " at G = I, before the file was read" if operators is not None else ""
    console.print(
        f"logits and hidden states of {PROBE_TOKENS} tokens equal to the bit those of the original{held}",
        soft_wrap=True,
    )
    save(base, out, load_tokenizer(model), overwrite)
    console.print(f"wrote {out}", markup=False, soft_wrap=True)


def _print(model: "PreTrainedModel", console: "Console") -> None:
    from rich.table import Table

    from plga.adopt.classes import base_model_class, operators

    found = operators(model)
    added = sum(p.numel() for module in found.values() for p in module.parameters())
    total = sum(p.numel() for p in model.parameters()) - added
    shapes = list(dict.fromkeys(f"{module.heads} x {module.width}" for module in found.values()))
    kind = model.config.plga_operator["kind"]
    table = Table(show_header=False)
    for name, value in (
        ("base", base_model_class(model).__name__),
        ("attention layers", str(len(found))),
        ("heads x width", ", ".join(shapes)),
        ("operator", f"low_rank, rank {model.config.plga_operator['rank']}" if kind == "low_rank" else kind),
        ("numbers in the base", f"{total:,}"),
        ("numbers added", f"{added:,} ({100 * added / total:.2g} %)"),
    ):
        table.add_row(name, value)
    console.print(table)
