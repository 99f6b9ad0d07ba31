"""``plga score``: a text or questions under the block and the sequential protocol, and what differs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from plga.model.modeling import PldrForCausalLM
    from plga.scoring.exposure import Text

_WIDTH = 110  # where there is no terminal to ask
_PROTOCOLS = ("auto", "block", "sequential", "both")
_SHOWN = 20  # texts in the table


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint folder (ours or published) or a published .pth file.")
    ],
    file: Annotated[
        Path,
        typer.Argument(
            help="A text file; or .jsonl with text, or with context, candidates and true (indices), on each line."
        ),
    ],
    protocol: Annotated[
        str,
        typer.Option(
            help="block: one pass; sequential: a call a token, as the model generates; both: what differs; auto: block "
            "where it is proved or measured to be the same."
        ),
    ] = "auto",
    stride: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of a text longer than the context: tokens a window scores; by default half the context."
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(min=0.0, help="auto: largest difference on a token that passes for none, in nats.")
    ] = 1e-3,
    batch: Annotated[int, typer.Option(min=1, help="Rows a pass.")] = 16,
    device: Annotated[str, typer.Option(help="Device, as PyTorch names it.")] = "cpu",
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer, if the checkpoint has none beside it.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the figures here (.json), and with both of texts a picture (.png).")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --out: replace files that exist.")] = False,
) -> None:
    """Log-probabilities of texts (nats a token, bits a byte) or of choices (accuracy, MC1, MC2).

    A learned operator reads the whole sequence, so one pass has seen its own targets (target exposure); the
    probability under which the model writes is the sequential one.
    """
    if protocol not in _PROTOCOLS:
        raise ValueError(f"--protocol is {protocol!r}, expected one of {', '.join(_PROTOCOLS)}")
    if out is not None:
        _require_new(out, overwrite)

    from rich.console import Console

    from plga.model.checkpoint import load_model
    from plga.model.tokenizer import load_tokenizer
    from plga.scoring.devices import on_device
    from plga.scoring.exposure import Text
    from plga.scoring.files import Asked, read_file
    from plga.scoring.report import score_questions, score_texts, write_json

    model = on_device(load_model(checkpoint), device)
    found = read_file(file, load_tokenizer(tokenizer or checkpoint, model.config.vocab_size))
    texts = [each for each in found if isinstance(each, Text)]
    questions = [each for each in found if isinstance(each, Asked)]
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    context: int = model.config.max_position_embeddings
    head = {"checkpoint": checkpoint.name, "file": file.name, "context": context}
    if texts and protocol == "both":
        figures = _exposure(model, texts, stride, batch, out, overwrite, console)
    elif texts:
        figures = score_texts(model, texts, protocol, stride, batch, threshold)
        _print_protocol(figures, console)
        _print_texts(figures, console)
    else:
        figures = score_questions(model, questions, protocol, batch, threshold)
        if protocol != "both":
            _print_protocol(figures, console)
        _print_questions(figures, console)
    if out is not None:
        write_json(head | figures, out, overwrite)
        console.print(f"wrote {out}", markup=False, soft_wrap=True)


def _require_new(out: Path, overwrite: bool) -> None:
    """Before anything is computed, which may take long."""
    if out.suffix != ".json":
        raise ValueError(f"--out is {out}, expected a name that ends in .json")
    for file in (out, out.with_suffix(".png")):
        if file.exists() and not overwrite:
            raise FileExistsError(f"{file} exists, expected a new file, or --overwrite")


def _exposure(
    model: "PldrForCausalLM",
    texts: "list[Text]",
    stride: int | None,
    batch: int,
    out: Path | None,
    overwrite: bool,
    console: "Console",
) -> dict[str, Any]:
    from rich.table import Table

    from plga.model.atomic import new_file
    from plga.scoring.exposure import expose, record
    from plga.scoring.plots import exposure_plot

    exposures = expose(model, texts, stride, batch)
    figures = record(exposures)
    table = Table(title="Block and sequential scores; the gap is block less sequential")
    for name in ("", "tokens", "nats/token", "", "bits/byte", "", "mean gap", "largest"):
        table.add_column(name, justify="right")
    table.add_row("", "", "block", "sequential", "block", "sequential", "nats", "nats", style="italic")
    for each in _shown(figures):
        both = each["block"], each["sequential"]
        nats = [f"{one['nats_per_token']:.6f}" for one in both]
        bits = ["-" if one["bits_per_byte"] is None else f"{one['bits_per_byte']:.6f}" for one in both]
        gap = each["gap"]
        table.add_row(
            each["name"], f"{each['tokens']}", *nats, *bits, f"{gap['mean']:+.1e}", f"{gap['largest_magnitude']:.1e}"
        )
    console.print(table)
    table = Table(title="Target exposure by the tokens before, nats a token")
    for name in ("tokens before", "tokens", "mean gap", "mean magnitude", "largest"):
        table.add_column(name, justify="right")
    for found in figures["growth"]:
        table.add_row(
            f"{found['least']} to {found['most']}",
            f"{found['tokens']}",
            f"{found['mean']:+.1e}",
            f"{found['magnitude']:.1e}",
            f"{found['largest']:.1e}",
        )
    console.print(table)
    if out is not None:
        picture = out.with_suffix(".png")
        with new_file(picture, overwrite) as temporary:
            exposure_plot(exposures, temporary)
        console.print(f"wrote {picture}", markup=False, soft_wrap=True)
    return figures


def _shown(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """The first texts, and all of them together."""
    texts: list[dict[str, Any]] = figures["texts"]
    return texts if len(texts) == 1 else [*texts[:_SHOWN], {"name": f"all {len(texts)}", **figures["all"]}]


def _print_protocol(figures: dict[str, Any], console: "Console") -> None:
    console.print(f"protocol: {figures['protocol']} ({figures['reason']})", markup=False, soft_wrap=True)
    if figures["truncated"]:
        console.print(f"{figures['truncated']} items lost the beginning of their context", markup=False)
    check = figures["check"]
    if figures["protocol"] == "block" and check is not None and not check["passed"]:
        console.print(
            f"warning: these scores have seen their targets: up to {check['largest']:.1e} nats on a token of a sample; "
            "the model writes under --protocol sequential",
            markup=False,
            soft_wrap=True,
        )


def _print_texts(figures: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    table = Table()
    for name in ("", "tokens", "nats/token", "bits/byte"):
        table.add_column(name, justify="right")
    for each in _shown(figures):
        bits = each["bits_per_byte"]
        table.add_row(
            each["name"],
            f"{each['tokens']}",
            f"{each['nats_per_token']:.6f}",
            "-" if bits is None else f"{bits:.6f}",
        )
    console.print(table)


def _print_questions(figures: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    table = Table()
    for name in ("", "questions", "accuracy", "length-norm.", "byte-norm.", "MC1", "MC2"):
        table.add_column(name, justify="right")
    for protocol in ("block", "sequential"):
        if protocol in figures:
            count, *means = figures[protocol]["metrics"].values()
            table.add_row(protocol, f"{count}", *(f"{mean:.4f}" for mean in means))
    console.print(table)
    if (found := figures.get("comparison")) is not None:
        console.print(
            f"argmax changes: {found['argmax_changes']} of {found['questions']}; right by block alone "
            f"{found['block_only']}, by sequential alone {found['sequential_only']}; gap at half the margin or more: "
            f"{found['half_margin']}; largest gap {found['largest_gap']:.1e} nats, of MC2 "
            f"{found['largest_mc2_gap']:.1e}",
            markup=False,
            soft_wrap=True,
        )
