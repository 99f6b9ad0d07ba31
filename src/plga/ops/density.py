"""Density operator: the Gram of the queries of a sequence (arXiv:2608.10288; arXiv:2410.16703)."""

import torch
from torch import Tensor

from plga.ops import _check


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
        _check.tensor("mask", mask)
        if mask.dtype.is_floating_point or mask.dtype.is_complex:
            raise ValueError(f"mask is {tuple(mask.shape)} {mask.dtype}, expected bool or integer (1 at real tokens)")
        _check.broadcasts("mask", mask, q.shape[:-1], "[..., S]")
        # Selecting, not multiplying: whatever stands at a padded position (even a NaN) never enters the Gram.
        q = torch.where(mask.bool().unsqueeze(-1), q, torch.zeros((), dtype=q.dtype, device=q.device))
    if check_values:
        _check.finite("q", q)
    return q.mT @ q
