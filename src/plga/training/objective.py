"""The block objective: next-token cross-entropy of every row of one pass (the block contract)."""

from typing import NamedTuple

from torch import Tensor, nn

from plga.model.loss import IGNORED, next_token_hits
from plga.model.operator import DeductiveOutputs


class BlockLoss(NamedTuple):
    """What one pass over a batch gives; see :func:`block_loss`."""

    loss: Tensor
    hidden_states: Tensor
    deductive: tuple[DeductiveOutputs, ...] | None


def block_loss(
    model: nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    attention_mask: Tensor | None = None,
    num_items: Tensor | int | None = None,
    output_deductive: bool = False,
) -> BlockLoss:
    """Cross-entropy in nats of the next tokens of a batch.

    Every row sees a G_LM built from the later tokens of its sequence too, its target among them (target exposure).
    It is ``model`` that is called, so DDP and FSDP see the pass; head and loss are inside it.

    Args:
        model: PldrForCausalLM, or what wraps one.
        input_ids: [B, S].
        labels: [B, S]: the next token of each, -100 where there is none.
        attention_mask: [B, S], 1 at real tokens; None: all are real.
        num_items: the sum over the labels is divided by it (targets of a whole step, where that has several batches);
            None: the mean over this batch.
        output_deductive: also return A, A_LM, A_P and G_LM of every layer.

    Returns:
        loss: scalar.
        hidden_states: [B, S, d_model], what the head reads.
        deductive: one DeductiveOutputs a layer, or None.
    """
    outputs = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        use_cache=False,
        next_tokens=labels,
        num_items_in_batch=num_items,
        output_deductive=output_deductive,
    )
    return BlockLoss(outputs.loss, outputs.last_hidden_state, outputs.deductive)


def next_token_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """:func:`block_loss` of the windows [B, S + 1], all their tokens being real: a mean, a scalar."""
    return block_loss(model, windows[:, :-1], windows[:, 1:]).loss


def accuracy(hidden_states: Tensor, head: nn.Module, labels: Tensor) -> Tensor:
    """Share of the labels that have the largest logit of their row, a scalar; NaN without labels.

    Args:
        hidden_states: [B, S, d_model], from :func:`block_loss`.
        head: ``lm_head`` of the model. Where FSDP shards it: before ``backward``, which gives the gathered one up.
        labels: [B, S], as for :func:`block_loss`.
    """
    return next_token_hits(hidden_states, head, labels) / (labels != IGNORED).sum()
