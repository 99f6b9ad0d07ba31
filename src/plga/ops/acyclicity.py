"""DAG regularizer by NOTEARS walk counting, safe at any magnitude (arXiv:1803.01422; arXiv:2410.16703)."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plga.ops import _check

# exp(X) - I by its Taylor series for |X|_1 <= 1/2: the first term left out, X^16 / 16!, is below 2^-16 / 16! < 1e-18.
_TAYLOR_TERMS = 15
_TAYLOR_NORM = 0.5
# Below this norm of M ⊙ M no entry of its exponential exceeds e^256, and the trace, >= d, cannot vanish beside it.
_TAME_LOG2_NORM = 8
_BALANCE_SWEEPS = 4


def _cyclic_part(m: Tensor) -> Tensor:
    """M without the edges that lie on no cycle: they change neither tr exp(M ⊙ M) nor its gradient.

    What is left falls into strongly connected components, so no power of it can dwarf its own trace for ever.
    """
    reach = (m != 0) | torch.eye(m.shape[-1], dtype=torch.bool, device=m.device)
    for _ in range((m.shape[-1] - 1).bit_length()):
        reach = (reach.to(m.dtype) @ reach.to(m.dtype)) > 0
    return torch.where(reach & reach.mT, m, 0.0)


def _balance(m: Tensor) -> Tensor:
    """Integers z, [..., d], such that the entries M_ij 2^(z_j - z_i) of each row and column have like maxima.

    That is a similarity, which leaves the trace of every power as it is (the balancing of eigenvalue solvers).
    """
    size = m.abs().log2()
    size.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)  # a similarity leaves the diagonal alone
    z = torch.zeros_like(m[..., 0])
    for _ in range(_BALANCE_SWEEPS):
        for i in range(m.shape[-1]):
            row, column = (size[..., i, :] + z).amax(-1), (size[..., :, i] - z).amax(-1)
            z[..., i] = torch.where(row.isfinite() & column.isfinite(), (row - column) / 2, z[..., i])
    return z.round().to(torch.int32)


def _scaled_expm1(m: Tensor) -> tuple[Tensor, Tensor]:
    """exp(M ⊙ M) - I as e^c Y: Y [..., d, d] with entries in [0, 1], c >= 0 [..., 1, 1].

    Every number on the way is non-negative, so nothing cancels; the growth goes into the logarithm c, so nothing
    overflows; and the identity is left out, so the smallest losses keep their digits.
    """
    # M ⊙ M may overflow by itself: scale M by 2^-h, which scales M ⊙ M by 4^-h exactly; each matrix by its own h.
    needed = (_log2_norm(m) - math.log2(_TAYLOR_NORM)) / 2
    halvings = needed.ceil().clamp(min=0).to(torch.int32)
    x = torch.ldexp(m, -halvings).square()

    identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    series = identity / _TAYLOR_TERMS
    for order in range(_TAYLOR_TERMS - 1, 0, -1):
        series = (identity + x @ series) / order
    y = x @ series

    log_scale = torch.zeros_like(needed)
    for squaring in range(2 * int(halvings.max()) if m.numel() else 0):
        # E = e^c Y  →  2 E + E² = e^2c (2 e^-c Y + Y²)
        square = 2 * torch.exp(-log_scale) * y + y @ y
        # Keep the largest entry at 1 while c > 0: Y² alone may shrink (its largest entry off the diagonal) to nothing.
        largest = torch.maximum(square.amax(dim=(-2, -1), keepdim=True), torch.exp(-2 * log_scale))
        more = squaring < 2 * halvings
        y = torch.where(more, square / largest, y)
        log_scale = torch.where(more, 2 * log_scale + largest.log(), log_scale)
    return y, log_scale


def _log2_norm(m: Tensor) -> Tensor:
    """Base-2 logarithm of the 1-norm of M ⊙ M, [..., 1, 1], whatever its size; -inf for zero."""
    peak = m.abs().amax(dim=(-2, -1), keepdim=True)
    unit = m / torch.where(peak > 0, peak, 1.0)
    return 2 * peak.log2() + unit.square().sum(dim=-2, keepdim=True).amax(dim=-1, keepdim=True).log2()


class _LogTraceExp(torch.autograd.Function):
    """log(tr exp(M ⊙ M) / d) with its analytic gradient 2 M ⊙ exp(M ⊙ M)ᵀ / tr exp(M ⊙ M)."""

    @staticmethod
    def forward(ctx: Any, m: Tensor) -> Tensor:
        wide = m.double()
        shift = torch.zeros(m.shape, dtype=torch.int32, device=m.device)
        if m.numel() and float(_log2_norm(wide).max()) > _TAME_LOG2_NORM:
            wide = _cyclic_part(wide)
            z = _balance(wide)
            shift = z[..., None, :] - z[..., :, None]
            wide = torch.ldexp(wide, shift)
        y, log_scale = _scaled_expm1(wide)
        width = m.shape[-1]
        unscale = torch.exp(-log_scale)
        trace = y.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        if ctx.needs_input_grad[0]:
            identity = torch.eye(width, dtype=wide.dtype, device=m.device)
            # Without a cycle the numerator is exactly 0; the denominator may underflow to it.
            total = (trace + unscale * width).clamp(min=torch.finfo(wide.dtype).tiny)
            gradient = 2 * wide * (y + unscale * identity).mT / total
            # With B = D M D⁻¹ entrywise, ∂/∂M = ∂/∂B · ∂B/∂M.
            ctx.save_for_backward(torch.ldexp(gradient, shift).to(m.dtype))
        # log(1 + e^c t): log1p keeps the digits of a loss near zero while c = 0; beyond it, t = 0 still gives 0.
        mean = trace / width
        grown = torch.logaddexp(log_scale + mean.log(), torch.zeros_like(mean))
        loss = torch.where(log_scale > 0, grown, torch.log1p(mean))
        return loss[..., 0, 0].to(m.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gradient,) = ctx.saved_tensors
        return grad[..., None, None] * gradient


def dag_loss(m: Tensor) -> Tensor:
    """ℓ(M) = |log(tr exp(M ⊙ M) / d)|, zero exactly when the graph of M has no cycle (arXiv:2410.16703).

    M ⊙ M has no negative entry, so the logarithm is never negative and the absolute value is only its name. The
    work is done in float64; the result has the dtype of ``m``, and is infinite only where the loss itself exceeds
    that dtype. Differentiable once.

    Args:
        m: [..., d, d], finite.

    Returns:
        ℓ, [...].

    Raises:
        ValueError: ``m`` is not a finite floating [..., d, d].
    """
    _check.square("m", m)
    _check.finite("m", m)
    return _LogTraceExp.apply(m)
