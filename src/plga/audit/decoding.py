"""Section G: greedy decoding with G kept from the prompt, against G rebuilt from the known prefix at each step.

The recomputed decoding (the online contract) writes the text. The kept operator, with its keys and values, then reads
the prompt and that text token by token, as it decodes, so that each step compares both on one prefix and a token on
which they disagree does not hide what comes after it. Where they agree at every step, the kept operator writes the
same text by itself. 2 B < margin is sufficient for the same token, B the largest deviation of a logit
(arXiv:2608.10288).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import NotMeasurable, Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import dtype_name, room
from plga.collapse.fidelity import decode
from plga.model.cache import PldrCache

_NEW_TOKENS = 16
_STEPS = "prompt and step"
_PAPER = "cached_decoding_4_prompts_48_steps"
_DEVIATION = "B = max |kept logit - recomputed logit|"


@dataclass(frozen=True)
class CachedDecoding:
    """Of N prompts, T steps each; step t reads the prompt and the t tokens before it.

    Attributes:
        tokens: that the recomputed decoding writes, [N, T].
        logits: of the token that is written, by the recomputed and by the kept operator, [2, N, T].
        deviation: B, the largest difference of a logit between the two on one prefix, [N, T].
        margin: between the best and the second best recomputed logit, [N, T].
        same: whether the kept operator's best token is the recomputed one, [N, T].
        curvature_apart: largest |G_kept - G_rebuilt| of an entry of a layer, [N, T, L].
        curvature_size: largest |G_rebuilt| of an entry of a layer, [N, T, L].
    """

    tokens: np.ndarray
    logits: np.ndarray
    deviation: np.ndarray
    margin: np.ndarray
    same: np.ndarray
    curvature_apart: np.ndarray
    curvature_size: np.ndarray


@torch.no_grad()
def measure(subject: Subject) -> CachedDecoding:
    """Decode T tokens after each prompt, T = 16 or what the context has room for.

    Logits are compared in float32, as generation gives them.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram; no prompts, or one that fills the context; or a non-finite
            operator or logit.
    """
    new_tokens = room(subject, _NEW_TOKENS)
    try:
        rows = [_of_prompt(subject, prompt, new_tokens) for prompt in subject.prompts]
    except FloatingPointError as error:
        raise NotMeasurable(str(error)) from error
    tokens, logits, *others = (torch.stack(tensors).cpu().numpy() for tensors in zip(*rows, strict=True))
    return CachedDecoding(tokens, np.moveaxis(logits, 1, 0), *others)


def _of_prompt(subject: Subject, prompt: Tensor, new_tokens: int) -> tuple[Tensor, ...]:
    """The fields of CachedDecoding for one prompt, in their order; ``logits`` [2, T]."""
    model = subject.model
    assert model is not None
    ids = prompt.unsqueeze(0).to(model.device)
    with _rebuilt(subject) as curvatures:
        recomputed = decode(model, ids, new_tokens, "recompute")
    rebuilt = torch.stack(curvatures).unflatten(0, (new_tokens, -1))  # [T, L, H, d, d]
    cache = PldrCache(model.config, "prompt")
    logits = []
    for read in (ids, *recomputed.tokens.split(1, dim=1)[:-1]):
        logits.append(model(read, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1])
    kept, ours = torch.stack(logits).float(), recomputed.logits[0]
    for name, found in (("recomputed", ours), ("kept", kept)):
        if not bool(found.isfinite().all()):
            raise FloatingPointError(f"logits of the {name} operator are not finite in {dtype_name(model.dtype)}")
    of_prompt = [cache.curvature(layer) for layer in range(len(subject.layers))]
    kept_curvature = torch.cat([curvature for curvature in of_prompt if curvature is not None]).double()
    written = recomputed.tokens[0]
    return (
        written,
        torch.stack([of.double().gather(1, written[:, None])[:, 0] for of in (ours, kept)]),
        (kept.double() - ours.double()).abs().amax(dim=-1),
        recomputed.margins[0].double(),
        kept.argmax(dim=-1) == written,
        (rebuilt - kept_curvature).abs().amax(dim=(-3, -2, -1)),
        rebuilt.abs().amax(dim=(-3, -2, -1)),
    )


@contextmanager
def _rebuilt(subject: Subject) -> Iterator[list[Tensor]]:
    """Every G_LM that a decoding of one prompt builds, [H, d, d], in float64, step by step and layer by layer."""
    curvatures: list[Tensor] = []

    def see(module: Any, given: Any, out: Any) -> None:
        curvatures.append(out.curvature[0].double())

    handles = [layer.self_attn.operator.register_forward_hook(see) for layer in subject.layers]
    try:
        yield curvatures
    finally:
        for handle in handles:
            handle.remove()


def quantities(raw: CachedDecoding) -> list[Quantity]:
    """Deviations, margins and agreement of the steps, the operators apart, and what the text repeats."""
    steps = f"of {raw.same.size} steps, {raw.same.shape[0]} prompts of {raw.same.shape[1]}"
    margins = published(_PAPER, "smallest_margin_per_prompt")
    deviations = published(_PAPER, "max_logit_deviation")
    assert isinstance(margins, list) and isinstance(deviations, list)
    return [
        Quantity("logit of the written token, recomputed", spread(raw.logits[0]), _STEPS),
        Quantity("logit of the written token, kept", spread(raw.logits[1]), _STEPS),
        Quantity("logit deviation B", spread(raw.deviation), _STEPS, formula=_DEVIATION),
        Quantity(
            "largest logit deviation B",
            float(raw.deviation.max()),
            f"maximum over {_STEPS}",
            formula=_DEVIATION,
            published=max(deviations),
        ),
        Quantity("decoding margin", spread(raw.margin), _STEPS, formula="best logit - second best, recomputed"),
        Quantity(
            "smallest decoding margin of a prompt",
            spread(raw.margin.min(axis=1)),
            "prompt, each the minimum over its steps",
            published=spread(np.array(margins)),
        ),
        ratios.each(
            "logit deviation over half the margin",
            2 * raw.deviation,
            raw.margin,
            _STEPS,
            formula="2 B / margin; below 1 the token is the same",
            claim="theorem",
        ),
        Quantity(
            "steps with 2 B < margin",
            int((2 * raw.deviation < raw.margin).sum()),
            steps,
            formula="sufficient for the same token",
            claim="theorem",
        ),
        Quantity("steps with the same token", int(raw.same.sum()), steps),
        Quantity(
            "steps with another token", int((~raw.same).sum()), steps, published=published(_PAPER, "disagreements")
        ),
        ratios.each(
            "ε_G",
            raw.curvature_apart,
            raw.curvature_size,
            "layer, prompt and step",
            formula="max |G_kept - G_rebuilt| / max |G_rebuilt|, both over the heads and entries of a layer",
        ),
        Quantity(
            "largest |G_kept - G_rebuilt|",
            float(raw.curvature_apart.max()),
            "maximum over layer, prompt and step",
            published=published(_PAPER, "G_deviation"),
        ),
        *_repetition(raw.tokens),
    ]


def _repetition(tokens: np.ndarray) -> list[Quantity]:
    """Of the recomputed text, [N, T]; they describe it and judge nothing."""
    over = f"prompt, {tokens.shape[1]} new tokens each"
    shares = [len(set(pairwise(row))) / (len(row) - 1) for row in tokens.tolist() if len(row) > 1]
    return [
        Quantity(
            "share of distinct 2-grams of the text",
            spread(np.array(shares)) if shares else None,
            over,
            formula="distinct 2-grams / 2-grams, of the new tokens",
        ),
        Quantity(
            "longest run of one token in the text",
            spread(np.array([_longest_run(row) for row in tokens.tolist()])),
            over,
            formula="tokens in a row that are one token, of the new tokens",
        ),
    ]


def _longest_run(row: list[int]) -> int:
    return max(len(list(run)) for _, run in groupby(row))


SECTION = Section("G", "Cached against recomputed decoding", "model", CachedDecoding, measure, quantities)
