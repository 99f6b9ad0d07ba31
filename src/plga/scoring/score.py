"""Scores under a protocol that fits the model: block where that is proved or measured to be right, else sequential."""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plga.model.modeling import PldrForCausalLM
from plga.scoring.items import Item, fit
from plga.scoring.protocols import Scores, block_logprobs, causal, sequential_logprobs

logger = logging.getLogger(__name__)

PROTOCOLS = ("auto", "block", "sequential")
THRESHOLD = 1e-3  # nats a token
SAMPLE = 8  # items
_TOKENS = 32  # of each, so that a check stays cheap where items are long


@dataclass(frozen=True)
class Check:
    """Block against sequential scores on a sample of the items.

    Attributes:
        items, tokens: how many were compared.
        mean: mean magnitude of block less sequential, nats a token.
        largest: its largest magnitude on a token, nats.
        threshold: up to which ``largest`` passes for none.
    """

    items: int
    tokens: int
    mean: float
    largest: float
    threshold: float

    @property
    def passed(self) -> bool:
        """Whether block scores may stand for sequential ones on this sample; of other items it proves nothing."""
        return self.largest <= self.threshold


@dataclass(frozen=True)
class Scored:
    """Scores of items in their order.

    Attributes:
        protocol: ``block`` or ``sequential``: what the scores are.
        reason: why that one.
        check: what was measured to choose it or to warn of it; None where there was nothing to measure.
        scores: one an item.
    """

    protocol: str
    reason: str
    check: Check | None
    scores: list[Scores]

    @property
    def truncated(self) -> int:
        """How many items lost the beginning of their context."""
        return sum(1 for scores in self.scores if scores.truncated)


def score(
    model: PldrForCausalLM,
    items: Sequence[Item],
    protocol: str = "auto",
    batch: int = 16,
    threshold: float = THRESHOLD,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Scored:
    """Score items under one protocol; :func:`compare` says what is measured.

    ``auto`` takes block scores where both protocols are one (theorem: a constant operator, or a chunked Gram), or where
    on a sample of these very items no token differs by more than ``threshold``; else sequential ones. ``block`` with a
    learned operator looks at such a sample too, and warns where it fails.

    Args:
        model: run as it is, so in evaluation mode to be a function of the items.
        protocol: one of PROTOCOLS.
        batch: rows a pass.
        threshold: nats on a token.
        sample: how many items are compared.
        seed: which ones.

    Raises:
        ValueError: an unknown protocol, a negative threshold, a sample below 1, or an item that cannot be scored.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol is {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    if protocol == "sequential":
        return Scored(protocol, "asked for", None, sequential_logprobs(model, items, batch))
    if causal(model.config):
        kind = "constant operator" if model.config.operator == "constant" else "chunked Gram"
        return Scored("block", f"{kind}: both protocols are one (theorem)", None, block_logprobs(model, items, batch))
    check = compare(model, items, batch, threshold, sample, seed)
    if protocol == "block":
        if not check.passed:
            logger.warning("block scores of a learned operator have seen their targets: %s", stated(check))
        return Scored("block", "asked for", check, block_logprobs(model, items, batch))
    chosen = block_logprobs if check.passed else sequential_logprobs
    return Scored("block" if check.passed else "sequential", stated(check), check, chosen(model, items, batch))


def compare(
    model: PldrForCausalLM,
    items: Sequence[Item],
    batch: int = 16,
    threshold: float = THRESHOLD,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Check:
    """Both protocols on at most ``sample`` of the items, and 32 tokens of each, all drawn under ``seed``.

    Raises:
        ValueError: a negative threshold, a sample below 1, no items, or one that cannot be scored.
    """
    if not threshold >= 0:
        raise ValueError(f"threshold is {threshold:g}, expected >= 0 nats a token")
    if sample < 1:
        raise ValueError(f"sample is {sample}, expected >= 1 items")
    if not items:
        raise ValueError("there are no items to score, expected at least one")
    draw = random.Random(seed)
    chosen = draw.sample(list(items), min(sample, len(items)))
    block: list[Tensor] = []
    asked: list[Item] = []
    for item, row, scores in zip(chosen, fit(chosen, model.config), block_logprobs(model, chosen, batch), strict=True):
        drawn = draw.sample(range(len(scores.logprobs)), min(_TOKENS, len(scores.logprobs)))
        block.append(scores.logprobs[drawn])
        ends = [row.first + place for place in drawn]
        asked += [Item(row.ids[:end], row.ids[end : end + 1], item.name) for end in ends]
    sequential = torch.cat([scores.logprobs for scores in sequential_logprobs(model, asked, batch)])
    gap = (torch.cat(block) - sequential).abs()
    return Check(len(chosen), len(gap), float(gap.mean()), float(gap.max()), threshold)


def stated(check: Check) -> str:
    """The figures of a check in words."""
    return (
        f"block and sequential differ by at most {check.largest:.1e} nats on one of {check.tokens} tokens of "
        f"{check.items} items, {check.mean:.1e} in the mean; threshold {check.threshold:g}"
    )
