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


def _scaled_expm1(m: Tensor) -> tuple[Tensor, Tensor]:
    """exp(M ⊙ M) - I as e^c Y: Y [..., d, d] with entries in [0, 1], c >= 0 [..., 1, 1].

    Every number on the way is non-negative, so nothing cancels; the growth goes into the logarithm c, so nothing
    overflows; and the identity is left out, so the smallest losses keep their digits.
    """
    peak = m.abs().amax(dim=(-2, -1), keepdim=True)
    # M ⊙ M may overflow by itself: scale M by 2^-h, which scales M ⊙ M by 4^-h exactly.
    unit = m / torch.where(peak > 0, peak, 1.0)
    log2_norm = 2 * torch.log2(peak) + torch.log2((unit * unit).sum(dim=-2).amax(dim=-1)[..., None, None])
    needed = (float(log2_norm.max()) - math.log2(_TAYLOR_NORM)) / 2 if m.numel() else 0.0
    halvings = max(0, math.ceil(needed)) if math.isfinite(needed) else 0
    x = torch.ldexp(m, torch.tensor(-halvings, device=m.device)).square()

    identity = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    series = identity / _TAYLOR_TERMS
    for order in range(_TAYLOR_TERMS - 1, 0, -1):
        series = (identity + x @ series) / order
    y = x @ series

    log_scale = torch.zeros_like(peak)
    for _ in range(2 * halvings):
        # E = e^c Y  →  2 E + E² = e^2c (2 e^-c Y + Y²)
        y = 2 * torch.exp(-log_scale) * y + y @ y
        # Keep the largest entry at 1 while c > 0: Y² alone may shrink (its largest entry off the diagonal) to nothing.
        largest = torch.maximum(y.amax(dim=(-2, -1), keepdim=True), torch.exp(-2 * log_scale))
        y = y / largest
        log_scale = 2 * log_scale + largest.log()
    return y, log_scale


class _LogTraceExp(torch.autograd.Function):
    """log(tr exp(M ⊙ M) / d) with its analytic gradient 2 M ⊙ exp(M ⊙ M)ᵀ / tr exp(M ⊙ M)."""

    @staticmethod
    def forward(ctx: Any, m: Tensor) -> Tensor:
        wide = m.double()
        y, log_scale = _scaled_expm1(wide)
        width = m.shape[-1]
        unscale = torch.exp(-log_scale)
        trace = y.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        if ctx.needs_input_grad[0]:
            identity = torch.eye(width, dtype=wide.dtype, device=m.device)
            # Without a cycle the numerator is exactly 0; the denominator may underflow to it.
            total = (trace + unscale * width).clamp(min=torch.finfo(wide.dtype).tiny)
            gradient = 2 * wide * (y + unscale * identity).mT / total
            ctx.save_for_backward(gradient.to(m.dtype))
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
