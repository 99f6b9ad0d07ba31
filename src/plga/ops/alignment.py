"""Gram alignment: how far the operators that parts of a sequence give lie from the one that all of it gives."""

import torch
from torch import Tensor

from plga.ops import _check


def relative_difference(blocks: Tensor, whole: Tensor) -> Tensor:
    """RMS of ‖G_i - G‖_F / ‖G‖_F over blocks, heads and sequences, a scalar; 0 where the operators are alike.

    Where they are alike its gradient is 0 too.

    Args:
        blocks: G_i, built from each of n blocks of a sequence, [..., n, H, d, d].
        whole: G, built from all of it, [..., H, d, d].

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    _check.square("blocks", blocks)
    _check.square("whole", whole)
    _check.same_dtype(blocks=blocks, whole=whole)
    if blocks.dim() < 4 or blocks.shape[:-4] + blocks.shape[-3:] != whole.shape:
        shapes = tuple(blocks.shape), tuple(whole.shape)
        raise ValueError(f"blocks is {shapes[0]}, expected [..., n, H, d, d] around whole {shapes[1]}")
    whole = whole.unsqueeze(-4)
    # In units of the largest entry of each G, so that no square overflows or vanishes; the unit cancels.
    unit = whole.detach().abs().amax(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(whole.dtype).tiny)
    norm = torch.linalg.vector_norm(whole / unit, dim=(-2, -1), keepdim=True)
    differences = (blocks - whole) / unit / norm.clamp(min=torch.finfo(whole.dtype).tiny)
    # One norm of all of them, as the gradient of a norm at 0 is 0 and that of a square root is not.
    return torch.linalg.vector_norm(differences) / differences.shape[:-2].numel() ** 0.5
