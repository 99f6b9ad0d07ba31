"""``plga criticality``: how near-critical a checkpoint is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

    from plga.criticality.runs import Runs

_PROMPTS, _LENGTH = 8, 64  # of the default prompts: how many, and tokens of each
_NEW_TOKENS = 32
_WIDTH = 110  # where there is no terminal to ask


def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A checkpoint folder (ours or published), a published .pth file, or what --save wrote.",
        ),
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(help="A text file with a prompt a line. By default passages of a module of Python's library."),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens that a run samples after each prompt; by default 32, at most half the context."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the sampled tokens.")] = 0,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer, if the checkpoint has none beside it.")] = None,
    save: Annotated[Path | None, typer.Option(help="Also write the deductive outputs here (.safetensors).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --save: replace a file that exists.")] = False,
) -> None:
    """Order parameters of A, A_LM, A_P and G_LM over prompts, in three normalizations, and the regime.

    Two runs continue every prompt by sampled tokens and rebuild the operator at each; the cache keeps
    the operator of the prompt.
    """
    from rich.console import Console
    from rich.table import Table

    from plga.criticality.regimes import RMS_NORMALIZED, RMSE_OVER_ABS_MEAN, regime, stated
    from plga.criticality.runs import load_runs, order_parameters, save_runs

    if source.suffix == ".safetensors":
        runs = load_runs(source)
    else:
        runs = sampled(source, prompts, new_tokens, seed, tokenizer)
    if save is not None:
        save_runs(runs, save, overwrite)
    found = order_parameters(runs)
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    table = Table(title=f"Order parameters over {len(runs.run_1.curvature)} prompts")
    for name in ("", "RMSE_12 / |mean|", "RMSE_1C / |mean|", "RMS-normalized", "symmetrized signed"):
        table.add_column(name, justify="right")
    for symbol, values in found.items():
        table.add_row(symbol, *(f"{value:.1e}" for value in values))
    console.print(table)
    published, normalized = found["G_LM"].rmse_1c_over_abs_mean, found["G_LM"].rms_normalized
    for name, value, thresholds in (
        ("RMS-normalized", normalized, RMS_NORMALIZED),
        ("RMSE_1C / |mean|", published, RMSE_OVER_ABS_MEAN),
    ):
        console.print(
            f"{name} of G_LM {value:.1e}: {regime(value, thresholds=thresholds)} ({stated(thresholds)})",
            soft_wrap=True,
            markup=False,
        )
    if save is not None:
        console.print(f"deductive outputs  {save}", soft_wrap=True, markup=False)


def sampled(
    checkpoint: Path, prompts: Path | None, new_tokens: int | None, seed: int, tokenizer: Path | None
) -> "Runs":
    """Two runs of a checkpoint over the prompts of a file, or over passages of a module of Python's library."""
    from plga.criticality.runs import sample_runs
    from plga.model.checkpoint import load_model
    from plga.model.tokenizer import load_tokenizer

    model = load_model(checkpoint)
    text = load_tokenizer(tokenizer or checkpoint, model.config.vocab_size)
    context = model.config.max_position_embeddings
    new_tokens = new_tokens or min(_NEW_TOKENS, context // 2)
    if new_tokens >= context:
        raise ValueError(f"--new-tokens is {new_tokens}, expected less than the context of {context}")
    ids = _passages(text, context - new_tokens) if prompts is None else _lines(text, prompts)
    return sample_runs(model, ids, new_tokens, seed)


def _lines(tokenizer: "PreTrainedTokenizerFast", file: Path) -> "list[Tensor]":
    from plga.criticality.prompts import read_prompts

    return [_encoded(tokenizer, line) for line in read_prompts(file, least=2)]


def _passages(tokenizer: "PreTrainedTokenizerFast", room: int) -> "list[Tensor]":
    """Passages of a module that is on every machine with Python."""
    import argparse

    content = Path(argparse.__file__).read_text(encoding="utf-8")
    length = min(room, _LENGTH)
    return list(_encoded(tokenizer, content)[: _PROMPTS * length].view(_PROMPTS, length))


def _encoded(tokenizer: "PreTrainedTokenizerFast", text: str) -> "Tensor":
    return tokenizer(text, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids[0]
