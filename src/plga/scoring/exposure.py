"""Target exposure: what a block pass gains from having seen its own targets (arXiv:2608.10288).

Of a token it is its block less its sequential log-probability, in nats. It is zero where the operator does not depend
on the input (theorem); elsewhere its size is a measurement, of the texts that it was taken on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plga.model.modeling import PldrForCausalLM
from plga.scoring.protocols import block_logprobs, sequential_logprobs
from plga.scoring.windows import windows


class Text(NamedTuple):
    """A text to be scored: token ids, and the bytes that those after the first one stand for."""

    name: str
    ids: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Exposure:
    """Both scores of the M scored tokens of a text.

    Attributes:
        name: of the text.
        bytes: that the scored tokens stand for.
        position: how many tokens each has before it in its window, [M].
        block, sequential: log-probabilities, nats, [M], float64.
    """

    name: str
    bytes: int
    position: Tensor
    block: Tensor
    sequential: Tensor

    @property
    def gap(self) -> Tensor:
        """Block less sequential, nats, [M]."""
        return self.block - self.sequential


class Bin(NamedTuple):
    """The gap of the tokens with ``least`` to ``most`` tokens before them, nats a token."""

    least: int
    most: int
    tokens: int
    mean: float
    magnitude: float
    largest: float


def expose(model: PldrForCausalLM, texts: Sequence[Text], stride: int | None = None, batch: int = 16) -> list[Exposure]:
    """Score texts under both protocols, in windows where they are longer than the context.

    Args:
        model: run as it is, so in evaluation mode to be a function of the texts.
        stride: see :mod:`plga.scoring.windows`.
        batch: rows a pass.

    Raises:
        ValueError: a text of fewer than two tokens, or one that cannot be scored, named; a bad stride or batch.
    """
    pieces = [windows(text.ids, model.config.max_position_embeddings, stride, text.name) for text in texts]
    items = [item for piece in pieces for item in piece]
    pairs = zip(block_logprobs(model, items, batch), sequential_logprobs(model, items, batch), strict=True)
    exposures = []
    for text, piece in zip(texts, pieces, strict=True):
        scores = [next(pairs) for _ in piece]
        positions = [range(len(item.context), len(item.context) + len(item.candidate)) for item in piece]
        exposures.append(
            Exposure(
                text.name,
                text.bytes,
                torch.tensor([position for window in positions for position in window]),
                torch.cat([block.logprobs for block, _ in scores]).double(),
                torch.cat([sequential.logprobs for _, sequential in scores]).double(),
            )
        )
    return exposures


def growth(exposures: Sequence[Exposure]) -> list[Bin]:
    """How the gap depends on how many tokens come before: 1, 2 to 3, 4 to 7, and so on; bins without a token are left
    out."""
    position = torch.cat([exposure.position for exposure in exposures])
    gap = torch.cat([exposure.gap for exposure in exposures])
    bins = []
    for power in range(int(position.max()).bit_length()):
        least, most = 2**power, 2 ** (power + 1) - 1
        inside = gap[(position >= least) & (position <= most)]
        if len(inside):
            magnitude = inside.abs()
            bins.append(
                Bin(least, most, len(inside), float(inside.mean()), float(magnitude.mean()), float(magnitude.max()))
            )
    return bins


def nats_per_token(logprobs: Tensor) -> float:
    """Mean cross-entropy."""
    return -float(logprobs.mean())


def bits_per_byte(logprobs: Tensor, size: int) -> float | None:
    """Cross-entropy in bits over the bytes of the text; None where there are none."""
    return -float(logprobs.sum()) / math.log(2) / size if size else None


def summary(exposures: Sequence[Exposure]) -> dict[str, Any]:
    """Figures of all tokens of some texts, as plain data."""
    block, sequential = (torch.cat([getattr(e, name) for e in exposures]) for name in ("block", "sequential"))
    gap, size = block - sequential, sum(exposure.bytes for exposure in exposures)
    return {
        "tokens": len(gap),
        "bytes": size,
        "block": {"nats_per_token": nats_per_token(block), "bits_per_byte": bits_per_byte(block, size)},
        "sequential": {"nats_per_token": nats_per_token(sequential), "bits_per_byte": bits_per_byte(sequential, size)},
        "gap": {
            "mean": float(gap.mean()),
            "mean_magnitude": float(gap.abs().mean()),
            "largest_magnitude": float(gap.abs().max()),
        },
    }


def record(exposures: Sequence[Exposure]) -> dict[str, Any]:
    """Everything as plain data: of all texts, of each, of each token, and by position."""
    return {
        "all": summary(exposures),
        "growth": [found._asdict() for found in growth(exposures)],
        "texts": [
            {
                "name": exposure.name,
                **summary([exposure]),
                "tokenwise": {
                    "tokens_before": exposure.position.tolist(),
                    "block": exposure.block.tolist(),
                    "sequential": exposure.sequential.tolist(),
                },
            }
            for exposure in exposures
        ],
    }
