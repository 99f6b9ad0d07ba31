"""``plga generate``: continue a text, token by token, with the operator in one of its modes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

    from plga.model.modeling import PldrForCausalLM


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint folder (ours or published) or a published .pth file.")
    ],
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    mode: Annotated[
        str | None,
        typer.Option(
            help="recompute: G_LM rebuilt at each token; prompt: kept from the prompt; chunked: rebuilt at each chunk, "
            "for a chunked Gram; constant: frozen. By default what the checkpoint says."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to write at most.")] = 64,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(help="With --sample: temperature.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="With --sample: among the k likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="With --sample: smallest set of this probability.")] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(help="1: none.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="With --sample: seed.")] = 0,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer, if the checkpoint has none beside it.")] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="With --mode constant on a learned operator: the text to freeze it on. "
            "By default a module of Python's standard library."
        ),
    ] = None,
) -> None:
    """Continue a text with a PLDR-LLM and stream what it writes."""
    if not prompt:
        raise ValueError("--prompt is empty, expected at least one token of text")
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise ValueError("--prompt is not valid UTF-8")
    # Beyond these bounds logits of an ordinary size overflow.
    if not 1e-6 <= temperature <= 1e6:
        raise ValueError(f"--temperature is {temperature:g}, expected in [1e-6, 1e6]")
    if not 0 < top_p <= 1:
        raise ValueError(f"--top-p is {top_p:g}, expected in (0, 1]")
    if not 1e-6 <= repetition_penalty <= 1e6:
        raise ValueError(f"--repetition-penalty is {repetition_penalty:g}, expected in [1e-6, 1e6]")
    if mode not in (None, "recompute", "prompt", "chunked", "constant"):
        raise ValueError(f"--mode is {mode!r}, expected one of recompute, prompt, chunked, constant")

    import torch
    from transformers import TextStreamer

    from plga.model.checkpoint import load_model
    from plga.model.tokenizer import load_tokenizer

    model = load_model(checkpoint)
    text = load_tokenizer(tokenizer or checkpoint, model.config.vocab_size)
    ids = text(prompt, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids
    context = model.config.max_position_embeddings
    room = context - ids.shape[1]
    if ids.shape[1] == 0:
        raise ValueError("--prompt has no token in this tokenizer, expected at least one")
    if room < 1:
        raise ValueError(f"--prompt has {ids.shape[1]} tokens, expected at most {context - 1} (context {context})")
    if mode == "constant" and model.config.operator == "learned":
        model = _frozen(model, text, calibration)
    if sample:
        torch.manual_seed(seed)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        operator_mode=mode,
        max_new_tokens=min(room, max_new_tokens),
        do_sample=sample,
        repetition_penalty=repetition_penalty,
        logits_processor=[_require_finite],
        streamer=TextStreamer(text, skip_special_tokens=True),
        return_dict_in_generate=True,
        **({"temperature": temperature, "top_k": top_k, "top_p": top_p} if sample else {}),
    )
    if output.sequences.shape[1] == context and room < max_new_tokens:
        typer.echo(f"plga: stopped at the context of {context} tokens", err=True)
    for seen in getattr(output, "guard", None) or ():
        typer.echo(
            f"plga: guard: {_count(seen.checks, 'check')}, {_count(seen.fallbacks, 'fall-back')}, {seen.recomputed} of "
            f"{_count(seen.tokens, 'token')} recomputed, worst deviation of G {seen.curvature_deviation:.1e}, "
            f"of logits {seen.logit_deviation:.1e}",
            err=True,
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _require_finite(input_ids: "Tensor", logits: "Tensor") -> "Tensor":
    """Stop on a NaN, which greedy decoding would take for the largest logit."""
    if bool(logits.isnan().any()):
        raise FloatingPointError(f"the logits after {input_ids.shape[1]} tokens are not finite")
    return logits


def _frozen(
    model: "PldrForCausalLM", tokenizer: "PreTrainedTokenizerFast", calibration: Path | None
) -> "PldrForCausalLM":
    """The model with its operator frozen on a text, and a line on stderr that says how steady it was."""
    import argparse

    from plga.collapse.freeze import freeze_on

    file = calibration or Path(argparse.__file__)
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    ids = tokenizer(content, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids[0]
    length = min(model.config.max_position_embeddings, len(ids) // 2)
    if length < 1:
        raise ValueError(f"{file} has {len(ids)} tokens, expected at least 2 to freeze the operator on")
    windows = ids[: len(ids) // length * length].view(-1, length)[:16]
    frozen, fluctuation = freeze_on(model, windows)
    typer.echo(
        f"plga: operator frozen at its mean over {len(windows)} windows of {length} tokens of {file.name}, "
        f"where it fluctuates by {fluctuation:.1e}",
        err=True,
    )
    return frozen
