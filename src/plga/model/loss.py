"""Cross-entropy and accuracy of the next tokens, off hidden states and head, without the logits of a batch at once."""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import LinearCrossEntropyOptions

from plga.model.linear import Linear

IGNORED = -100  # the target of a row that has none, as in PyTorch and Transformers
# Each chunk of rows adds once to the gradient of the head, [V, d_model]; with fewer rows that is most of the work.
ROWS = 512


def next_token_cross_entropy(
    hidden_states: Tensor, head: nn.Module, next_tokens: Tensor, num_items: Tensor | int | None = None
) -> Tensor:
    """Cross-entropy of ``head(hidden_states)`` with the next tokens in nats, a scalar in float32 or wider.

    In float32 and float64 head and loss are one function that works by chunks of rows and has the gradients ready when
    it returns (so its backward runs once; PyTorch's LinearCrossEntropyOptions). Under autocast, in lower precision, and
    where something hooks or replaces the head, the head is called and its logits are raised to float32.

    Args:
        hidden_states: [B, S, d_model].
        head: d_model → V.
        next_tokens: [B, S] integers, -100 where there is no target.
        num_items: the sum over the targets is divided by it, where a step consists of several batches; None: by the
            number of targets in this batch. Without any that is NaN.

    Raises:
        ValueError: ``next_tokens`` of another shape.
    """
    if next_tokens.shape != hidden_states.shape[:-1]:
        raise ValueError(
            f"next_tokens is {tuple(next_tokens.shape)}, expected [B, S] = {tuple(hidden_states.shape[:-1])}"
        )
    rows, targets = hidden_states.flatten(0, -2), next_tokens.flatten()
    reduction = "mean" if num_items is None else "sum"
    if _is_plain(head) and rows.dtype in (torch.float32, torch.float64) and not _autocast(rows):
        loss = nn.functional.linear_cross_entropy(
            rows,
            head.weight,
            targets,
            linear_bias=head.bias,
            reduction=reduction,
            ignore_index=IGNORED,
            # Compiled code would switch allow_retain_graph on by itself, with a warning.
            options=LinearCrossEntropyOptions(
                batch_chunk_size=ROWS, chunking_method=None, allow_retain_graph=torch.compiler.is_compiling()
            ),
        )
    else:
        return logits_cross_entropy(head(rows), targets, num_items)
    return loss if num_items is None else loss / num_items


def logits_cross_entropy(logits: Tensor, next_tokens: Tensor, num_items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of logits with the next tokens in nats, a scalar in float32 or wider.

    Args:
        logits: [N, V], raised to float32.
        next_tokens: [N] integers, -100 where there is no target.
        num_items: as for :func:`next_token_cross_entropy`.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    reduction = "mean" if num_items is None else "sum"
    loss = nn.functional.cross_entropy(wide, next_tokens, reduction=reduction, ignore_index=IGNORED)
    return loss if num_items is None else loss / num_items


@torch.no_grad()
def next_token_hits(hidden_states: Tensor, head: nn.Module, next_tokens: Tensor) -> Tensor:
    """How many targets have the largest logit of their row, an integer scalar; the first of equal logits counts.

    Args:
        hidden_states, head, next_tokens: as for :func:`next_token_cross_entropy`.
    """
    rows, targets = hidden_states.flatten(0, -2), next_tokens.flatten()
    # -100 is no index of a logit, so a row without a target never hits.
    return torch.stack(
        [
            (head(some).argmax(dim=-1) == wanted).sum()
            for some, wanted in zip(rows.split(ROWS), targets.split(ROWS), strict=True)
        ]
    ).sum()


def _is_plain(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling ``head`` is nothing but its weight and bias: no adapter, no shard of a tensor-parallel head."""
    return type(head) in (nn.Linear, Linear) and not head._forward_hooks and not head._forward_pre_hooks


def _autocast(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)
