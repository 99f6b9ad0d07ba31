"""``plga collapse``: whether a checkpoint may do with a constant operator, what that costs, and that checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plga.cli.convert import DTYPES

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

    from plga.collapse.prompts import Prompts
    from plga.model.modeling import PldrForCausalLM

_WIDTH = 120  # where there is no terminal to ask
_NEW_TOKENS = 32


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint folder (ours or published) or a published .pth file.")
    ],
    out: Annotated[Path, typer.Option(help="The new folder: weights, tokenizer, collapse_report.json, COLLAPSE.md.")],
    prompts: Annotated[
        Path | None, typer.Option(help="A text file with a prompt a line. By default neutral ones of plga's own.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Or documents: standard-library, or files of text, JSONL or parquet. May be repeated."),
    ] = None,
    freeze: Annotated[
        str,
        typer.Option(
            help="mean or first of the calibration prompts, or a file: .safetensors with curvature, or pickle."
        ),
    ] = "mean",
    operator: Annotated[
        Path | None, typer.Option(help="Take the operator of this other checkpoint (transfer), on the same texts.")
    ] = None,
    thresholds: Annotated[Path | None, typer.Option(help="A YAML file with limits of the verdict.")] = None,
    dtype: Annotated[
        str, typer.Option(help="It will serve in: fidelity is measured there too. The weights stay as they are.")
    ] = "bfloat16",
    new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Decoding steps a held-out prompt; by default 32, at most half the context."),
    ] = None,
    project_commutant: Annotated[
        bool,
        typer.Option(
            "--project-commutant", help="Keep of G what commutes with the rotations, and absorb it into the queries."
        ),
    ] = False,
    guard: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Add a runtime guard: it checks the constant every N tokens (64, say) and at close calls."
        ),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer, if the checkpoint has none beside it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write a checkpoint whose operator depends on the input.")] = (
        False
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that is there already.")] = False,
) -> None:
    """Freeze the operator of a checkpoint, measure what that changes, and write it if it may be.

    The verdict is collapsed, nearly invariant or input-dependent; the last writes nothing without --force.
    """
    if dtype not in DTYPES:
        raise ValueError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    if prompts is not None and data:
        raise ValueError("--prompts and --data are both given, expected at most one")
    own = freeze in ("mean", "first")
    if not own and operator is None and not Path(freeze).exists():
        raise ValueError(f"--freeze is {freeze!r}, and there is no such file; expected mean, first or a file")
    if operator is not None and not own:
        raise ValueError(f"--freeze is {freeze!r}, expected mean or first with --operator")
    if guard is not None and guard < 1:
        raise ValueError(f"--guard is {guard}, expected a whole number of tokens >= 1")
    if guard is not None and project_commutant:
        raise ValueError("--guard and --project-commutant are both given, but what is absorbed cannot be watched")

    import torch
    from rich.console import Console

    from plga.collapse.collapse import collapse, write
    from plga.collapse.guard import require_guardable
    from plga.collapse.report import record, texts
    from plga.collapse.source import operator_of_checkpoint, operator_of_file
    from plga.collapse.verdict import load_thresholds
    from plga.model.atomic import check_new_directory
    from plga.model.checkpoint import load_model
    from plga.model.tokenizer import load_tokenizer, name_special_tokens

    check_new_directory(out, overwrite)
    for source in filter(None, (checkpoint, operator)):
        if source.resolve() in (out.resolve(), *out.resolve().parents):
            raise ValueError(f"--out is {out}, expected a folder outside of {source}, which is read and stays as it is")
    limits = load_thresholds(thresholds)
    model = load_model(checkpoint, dtype=None)
    if guard is not None:
        require_guardable(model)
    text = load_tokenizer(tokenizer or checkpoint, model.config.vocab_size)
    name_special_tokens(model, text)
    kept = model.dtype
    model = model.to(torch.promote_types(kept, torch.float32))
    steps = new_tokens or min(_NEW_TOKENS, model.config.max_position_embeddings // 2)

    def read(tokenizer: "PreTrainedTokenizerFast", reader: "PldrForCausalLM") -> "Prompts":
        return _read(tokenizer, reader.config.max_position_embeddings, steps, prompts, data)

    found = read(text, model)
    origin: tuple[str, Tensor | None] = (freeze, None)
    if operator is not None:
        origin = f"that of {operator.name} ({freeze})", operator_of_checkpoint(operator, freeze, read)
    elif not own:
        origin = f"that of {Path(freeze).name}", operator_of_file(Path(freeze))
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    outcome = collapse(
        model,
        found,
        steps,
        origin,
        getattr(torch, dtype),
        limits,
        project_commutant,
        lambda stage: console.print(stage, markup=False, soft_wrap=True),
    )
    report = record(outcome, checkpoint.name)
    _print(report, console)
    write(outcome, out, kept, text, texts(report), overwrite, force, None if guard is None else (model, guard))
    parts = [_kind(report), "COLLAPSE.md", "collapse_report.json", *(["guard.safetensors"] if guard else [])]
    console.print(f"wrote {out}: {', '.join(parts)}", markup=False, soft_wrap=True)


def _read(
    tokenizer: "PreTrainedTokenizerFast", context: int, new_tokens: int, file: Path | None, data: list[str] | None
) -> "Prompts":
    from plga.collapse.prompts import neutral_prompts, prompts_of_data, prompts_of_file

    room = context - new_tokens
    if room < 2:
        raise ValueError(f"--new-tokens is {new_tokens}, expected at most {context - 2}, the context less two")
    if file is not None:
        return prompts_of_file(file, tokenizer, room)
    return prompts_of_data(data, tokenizer, room) if data else neutral_prompts(tokenizer, room)


def _kind(report: dict[str, Any]) -> str:
    return "no operator left" if report["written"]["absorbed"] else "constant operator"


def _print(report: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    from plga.collapse.report import short

    invariance, written = report["invariance"], report["written"]
    table = Table(title=f"Relative fluctuation over {invariance['inputs']} calibration operators")
    for name in (*invariance["fluctuation"], "s2/s1 of A", "rank of A"):
        table.add_column(name, justify="right")
    cells = [short(value) for value in invariance["fluctuation"].values()]
    second = max(max(heads) for heads in invariance["second_singular_value"])
    table.add_row(*cells, short(second), str(max(max(heads) for heads in invariance["rank"])))
    console.print(table)

    candidates = [("constant", report["frozen"])] + ([("projected", written)] if report["projected"] else [])
    table = Table(title="Every step of greedy decoding, recomputed against constant")
    for name in ("", "largest deviation", "smallest margin", "2 x dev. < margin", "same token", "freely", "KL mean"):
        table.add_column(name, justify="right")
    for name, candidate in candidates:
        for dtype, steps in candidate["fidelity"].items():
            figures = steps["all"]
            counts = [f"{figures[key]} of {figures['total']}" for key in ("within", "same", "free")]
            extremes = [short(figures[key]) for key in ("largest_deviation", "smallest_margin")]
            table.add_row(f"{name} {dtype}", *extremes, *counts, short(figures["mean_divergence"]))
    console.print(table)
    for name, candidate in candidates:
        price = candidate["price"]
        for contract in ("block", "sequential"):
            change = price[contract]
            console.print(
                f"price, {name}, {contract}: {change['price']:+.1e} nats a token over {price['tokens']} tokens, "
                f"each score changed by {change['moved']:.1e}",
                soft_wrap=True,
            )
    if (bound := written["bound"]) is not None:
        orders = bound["orders_above_margin"]
        console.print(
            f"bound ({bound['label']}): a logit changes by at most {short(bound['logit_change'])}, measured "
            f"{short(bound['deviation'])}, smallest margin {short(bound['margin'])}"
            + ("" if orders is None else f": misses by {orders:.1f} orders of magnitude"),
            soft_wrap=True,
        )
    residual = max(max(heads) for heads in report["frozen"]["commutant_residual"])
    console.print(f"commuting with the rotations: residual up to {short(residual)}")
    console.print(f"verdict: {'; '.join([report['verdict'], *report['reasons']])}", soft_wrap=True, markup=False)
