"""Fidelity at every step of greedy decoding: the operator rebuilt for each prefix, against a constant.

Each step is compared on one prefix, that of the recomputed text, so that a token on which the two disagree does not
hide what comes after it. Beside it the constant also writes a text of its own, as it will when it serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plga.collapse.fidelity import decode
from plga.model.modeling import PldrForCausalLM


@dataclass(frozen=True)
class Steps:
    """N prompts, T steps each; every tensor [N, T].

    Attributes:
        tokens: that the recomputed operator writes.
        deviation: largest difference of a logit between the two on one prefix.
        margin: between the best and the second best logit of the recomputed operator.
        divergence: KL(recomputed ‖ constant) of the next-token probabilities, nats, >= 0.
        same: whether the constant's best token is the recomputed one, on one prefix.
        free: whether the constant, writing by itself, has the same token in the same place.
    """

    tokens: Tensor
    deviation: Tensor
    margin: Tensor
    divergence: Tensor
    same: Tensor
    free: Tensor

    @property
    def within(self) -> Tensor:
        """Whether 2 · deviation < margin, which is sufficient for the same token (arXiv:2608.10288), [N, T]."""
        return 2 * self.deviation < self.margin


@dataclass(frozen=True)
class Fidelity:
    """Figures of N prompts and T steps; counts are out of ``total``.

    Attributes:
        total: N T, or N at one step.
        largest_deviation, median_deviation: of a logit.
        smallest_margin: of the recomputed operator.
        within: steps where 2 · deviation < margin.
        same, free: tokens that agree, on one prefix and written freely.
        mean_divergence, largest_divergence: KL, nats a token.
    """

    total: int
    largest_deviation: float
    median_deviation: float
    smallest_margin: float
    within: int
    same: int
    free: int
    mean_divergence: float
    largest_divergence: float


@torch.no_grad()
def compare_steps(
    model: PldrForCausalLM, constant: PldrForCausalLM, prompts: Sequence[Tensor], new_tokens: int
) -> Steps:
    """Decode every prompt greedily, and compare each step.

    Args:
        model: with a learned operator, which is rebuilt from the known prefix at each step (the online contract).
        constant: with a constant one, in the same dtype.
        prompts: rows of token ids, [S_i], with room for ``new_tokens`` in the context.
        new_tokens: T >= 1.

    Generation gives logits in float32, so those of a float64 model come rounded.

    Raises:
        FloatingPointError: an operator or a logit that is not finite.
    """
    mode = "chunked" if model.config.gram == "chunked" else "recompute"
    rows = []
    for prompt in prompts:
        ids = prompt.unsqueeze(0).to(model.device)
        recomputed = decode(model, ids, new_tokens, mode)
        text = torch.cat([ids, recomputed.tokens], dim=1)
        # One pass for all steps: with a constant operator row r of a longer call is row r of its own prefix.
        kept = constant(text[:, :-1], use_cache=False, logits_to_keep=new_tokens).logits
        for name, logits in (("recomputed", recomputed.logits), ("constant", kept)):
            if not bool(torch.isfinite(logits).all()):
                raise FloatingPointError(f"logits of the {name} operator are not finite in {model.dtype}")
        ours, theirs = recomputed.logits.double(), kept.double()
        p, q = ours.log_softmax(dim=-1), theirs.log_softmax(dim=-1)
        best = ours.topk(2, dim=-1).values
        rows.append(
            (
                recomputed.tokens,
                (ours - theirs).abs().amax(dim=-1),
                best[..., 0] - best[..., 1],
                (p.exp() * (p - q)).sum(dim=-1).clamp(min=0),  # below zero by rounding alone
                kept.argmax(dim=-1) == recomputed.tokens,
                decode(constant, ids, new_tokens).tokens == recomputed.tokens,
            )
        )
    return Steps(*(torch.cat(tensors) for tensors in zip(*rows, strict=True)))


def summary(steps: Steps) -> Fidelity:
    """The figures of all steps together."""
    return Fidelity(
        total=steps.tokens.numel(),
        largest_deviation=float(steps.deviation.max()),
        median_deviation=float(steps.deviation.median()),
        smallest_margin=float(steps.margin.min()),
        within=int(steps.within.sum()),
        same=int(steps.same.sum()),
        free=int(steps.free.sum()),
        mean_divergence=float(steps.divergence.mean()),
        largest_divergence=float(steps.divergence.max()),
    )


def by_step(steps: Steps) -> list[Fidelity]:
    """The figures of each of the T steps over the prompts."""
    parts = zip(*(tensor.split(1, dim=1) for tensor in vars(steps).values()), strict=True)
    return [summary(Steps(*part)) for part in parts]
