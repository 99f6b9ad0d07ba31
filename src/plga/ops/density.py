"""Density operator: the Gram of the queries of a sequence or of its blocks (arXiv:2608.10288; arXiv:2410.16703)."""

import torch
from torch import Tensor

from plga.ops import _check


def _check_mask(mask: Tensor, q: Tensor) -> None:
    _check.tensor("mask", mask)
    if mask.dtype.is_floating_point or mask.dtype.is_complex:
        raise ValueError(f"mask is {tuple(mask.shape)} {mask.dtype}, expected bool or integer (1 at real tokens)")
    _check.broadcasts("mask", mask, q.shape[:-1], "[..., S]")


def gram(q: Tensor, mask: Tensor | None = None, check_values: bool = True) -> Tensor:
    """Density operator D = qᵀ q, summed over the real tokens of each sequence (arXiv:2608.10288).

    Args:
        q: queries after the rotary embedding, [..., S, d], floating point.
        mask: True (or 1) at real tokens, False (or 0) at padding; broadcastable to [..., S]. None: all are real.
        check_values: also look for non-finite entries (on an accelerator this waits for it).

    Returns:
        D, [..., d, d], symmetric positive semidefinite, in the dtype of ``q``.

    Raises:
        ValueError: ``q`` is not a finite floating [..., S, d], or ``mask`` does not fit it.
    """
    _check.floating("q", q, min_dims=2)
    if mask is not None:
        _check_mask(mask, q)
        # Selecting, not multiplying: whatever stands at a padded position (even a NaN) never enters the Gram.
        q = torch.where(mask.bool().unsqueeze(-1), q, torch.zeros((), dtype=q.dtype, device=q.device))
    if check_values:
        _check.finite("q", q)
    return q.mT @ q


def block_grams(q: Tensor, blocks: int, mask: Tensor | None = None, check_values: bool = True) -> Tensor:
    """Density operator of each of n blocks of a sequence, as equal as the number T of its real tokens allows.

    Real token i, counted from 0, lies in block ⌊i n / T⌋, so that padding on either side changes nothing. The blocks'
    density operators add up to that of the sequence.

    Args:
        q: queries after the rotary embedding, [..., H, S, d], floating point.
        blocks: n >= 1.
        mask: as for :func:`gram`, broadcastable to [..., H, S].
        check_values: also look for non-finite entries and too few real tokens (on an accelerator this waits for it).

    Returns:
        [..., n, H, d, d], in the dtype of ``q``.

    Raises:
        ValueError: as :func:`gram`; fewer than one block, or fewer real tokens than blocks in a sequence.
    """
    _check.floating("q", q, min_dims=3)
    length = q.shape[-2]
    if not 1 <= blocks <= length:
        raise ValueError(f"blocks is {blocks}, expected from 1 to the {length} tokens of q")
    if mask is None and length % blocks == 0:
        return gram(q.unflatten(-2, (blocks, -1)).transpose(-4, -3), check_values=check_values)
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=q.device)
    _check_mask(mask, q)
    real = mask.bool().expand(q.shape[:-1])
    counts = real.sum(dim=-1, keepdim=True)
    if check_values:
        _check.at_least("the number of real tokens of a sequence", counts, blocks)
    block = (real.cumsum(dim=-1) - 1) * blocks // counts.clamp(min=1)
    numbers = torch.arange(blocks, device=q.device).view(-1, 1, 1)
    of_block = (block.unsqueeze(-3) == numbers) & real.unsqueeze(-3)  # [..., n, H, S]
    return gram(q.unsqueeze(-4).expand(*of_block.shape, -1), of_block, check_values)
