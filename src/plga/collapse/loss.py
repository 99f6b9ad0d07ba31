"""The price of a constant operator in nats a token, under both contracts.

A constant has one loss: block and sequential scores of generalized SDPA are the same (theorem). A learned operator has
two: under the block contract every row sees a G built from later tokens too, its target among them (target exposure).

These are the protocols of plga.scoring, and not its functions: near criticality a price is smaller than what padding
and the rounding of a float32 score move there. So each text is read alone, and scored in float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plga.model.modeling import PldrForCausalLM


@dataclass(frozen=True)
class Change:
    """What a constant does to the scores of one contract, nats a token.

    Attributes:
        loss: mean cross-entropy of the next token with the learned operator.
        price: of the constant less that; negative where the constant gains.
        moved: mean magnitude of the change of a token's log-probability, of which the price is what does not cancel.
    """

    loss: float
    price: float
    moved: float


@dataclass(frozen=True)
class Price:
    """Scores of ``tokens`` true next tokens.

    Attributes:
        tokens: how many.
        constant: mean cross-entropy with the constant, under either contract.
        block: against the operator built from all of a text, one pass (the training objective).
        sequential: against the operator rebuilt for every prefix (the online contract).
    """

    tokens: int
    constant: float
    block: Change
    sequential: Change

    @property
    def moved(self) -> float:
        """The larger of both contracts, nats a token."""
        return max(self.block.moved, self.sequential.moved)


@torch.no_grad()
def price(model: PldrForCausalLM, constant: PldrForCausalLM, texts: Sequence[Tensor]) -> Price:
    """Score the next tokens of some texts with a learned operator and with a constant.

    Args:
        model: with a learned operator.
        constant: with a constant one.
        texts: rows of token ids, [S_i], S_i >= 2; the first token of each has no score.
    """
    rows = [text.unsqueeze(0).to(model.device) for text in texts]
    kept = torch.cat([block_scores(constant, ids) for ids in rows])
    block = torch.cat([block_scores(model, ids) for ids in rows])
    sequential = torch.cat([sequential_scores(model, ids) for ids in rows])
    return Price(len(kept), -float(kept.mean()), _change(block, kept), _change(sequential, kept))


def block_scores(model: PldrForCausalLM, ids: Tensor) -> Tensor:
    """Log-probabilities of the next tokens of ``ids`` [1, S] in one pass over all but the last: [S - 1], float64."""
    return _log_probabilities(model(ids[:, :-1], use_cache=False).logits[0], ids)


def sequential_scores(model: PldrForCausalLM, ids: Tensor) -> Tensor:
    """The same, one call a prefix."""
    rows = [model(ids[:, :end], use_cache=False, logits_to_keep=1).logits[0] for end in range(1, ids.shape[1])]
    return _log_probabilities(torch.cat(rows), ids)


def _log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.double().log_softmax(dim=-1).gather(-1, ids[0, 1:, None]).squeeze(-1)


def _change(learned: Tensor, kept: Tensor) -> Change:
    return Change(-float(learned.mean()), float((learned - kept).mean()), float((learned - kept).abs().mean()))
