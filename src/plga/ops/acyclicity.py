"""DAG regularizer by NOTEARS walk counting, fast and safe at any magnitude (arXiv:1803.01422; arXiv:2410.16703).

N = M ⊙ M throughout. Nothing computed from it is ever negative, so nothing cancels: every entry of exp(N) - I keeps a
small error relative to itself, and with it the smallest loss. The work is in float64, because each squaring doubles
the error that the one before left, and on few matrices at a time, so that they stay in the cache.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from plga.ops import _check

# The Taylor polynomial of degree 8 by three products (Bader, Blanes and Casas, arXiv:1710.10989), all of whose
# coefficients are positive: T₈ = I + X + c X² + (A + p X²)(A + q X² + 176 X + r I) / 8! with A = X² (X² + 4 X).
_ROOT = math.sqrt(177.0)
_P, _Q, _R = 2 * _ROOT - 2, 42 - 2 * _ROOT, 1768 - 88 * _ROOT
_C = (857 - 58 * _ROOT) / 630

_SMALLEST_LOSS = 1e-12  # a relative accuracy is promised from here upward
_MOST_SQUARINGS = 2400  # more than the largest float64 asks for
# The squarings that this |N|₁ needs go without a logarithm: no entry exceeds exp(2.3 |N|₁) after them, or 1e256.
_TAME_NORM = 256.0
# Entries of M at most this ratio apart give entries of exp(N) - I at most its inverse fourth power apart (N stands as
# a factor on either side of it), so that none can underflow beside the largest.
_DENSE_RATIO = 2.0**-128
_BALANCE_SWEEPS = 4
# So many numbers at once: on a CPU 2 MB, near its cache, yet with few steps at which threads wait for each other;
# elsewhere enough to occupy the device. The work space is five times as large, whatever the batch.
_CPU_CHUNK, _DEVICE_CHUNK = 2**18, 2**21


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


def _log_size(m: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of |N|₁ and of tr N, each [b], of M [b, d, d]: -inf for zero, and finite where N itself overflows."""
    m = m.to(torch.promote_types(m.dtype, torch.float32))
    peak = m.abs().amax((-2, -1), keepdim=True)
    unit = (m / torch.where(peak > 0, peak, 1.0)).square_()
    sizes = unit.sum(-2).amax(-1), unit.diagonal(dim1=-2, dim2=-1).sum(-1)
    log_norm, log_trace = (size.double().log() + 2 * peak[:, 0, 0].double().log() for size in sizes)
    return log_norm, log_trace


def _squarings(log_norm: Tensor, log_trace: Tensor, width: int, tolerance: float) -> Tensor:
    """The least s, [b], with which T₈(N / n)^n, n = 2^s, gives loss and gradient to a relative ``tolerance``.

    T₈(N / n)^n counts the walks of k edges, N^k / k!, not once but with the chance that k balls thrown into n boxes
    leave at most 8 in each; the missing chance is at most k^9 / (9! n^8). The trace t of exp(N) - I is at least that
    of N. So the error relative to t, of t as of the gradient in norm, is at most either of

    * d |N|^9 max(1, |N|) e^|N| / (9! n^8 t), every walk being bounded by the norm: the better one for a small N;
    * K^9 / (9! n^8) from the walks of at most K edges, whatever the graph, if the longer ones do not matter:
      d |N|^K / K! < d (e |N| / K)^K is nothing beside the smallest loss.

    Both hold where the loss comes from one long cycle, for which what serves exp(N) itself would be too few squarings.
    """
    log_factor = math.lgamma(10) + math.log(tolerance)  # of 9! tolerance
    smallest = math.log(_SMALLEST_LOSS)
    log_least = math.log(width) + smallest
    walks = log_norm.exp() + 9 * log_norm + log_norm.clamp(min=0) + math.log(width) - log_trace.clamp(min=log_least)
    by_norm = ((walks - log_factor) / (8 * math.log(2))).ceil().clamp(min=0)

    s = torch.arange(_MOST_SQUARINGS, dtype=torch.float64, device=log_norm.device)
    log_longest = (log_factor + 8 * math.log(2) * s) / 9  # of K for each s
    # The largest norm for which (e |N| / K)^K is below both the smallest loss and the tolerance, with e^-10 to spare.
    largest_norm = log_longest - 1 + (smallest + math.log(tolerance) - 10) / log_longest.exp()
    by_length = torch.searchsorted(largest_norm, log_norm.contiguous())
    return torch.minimum(by_norm, by_length).to(torch.int64)


def _scaled_expm1(wide: Tensor, work: Tensor, squarings: int, tame: int) -> tuple[Tensor, Tensor]:
    """exp(N) - I as e^c Y: Y [b, d, d], c >= 0 [b, 1, 1] and 0 unless ``squarings`` > ``tame``.

    The growth goes into the logarithm c, so nothing overflows; the identity is left out, so the smallest losses keep
    their digits. ``work``, [4, b, d, d], is overwritten: to touch new memory would take longer than to compute.
    """
    x, x2, left, right = work
    # 2^-s N, exactly. Where s is so large that N could overflow and 2^-s underflow, M is scaled first.
    halvings = min(squarings // 2, 1000) if squarings > 1000 else 0
    scaled = wide * 2.0**-halvings if halvings else wide
    torch.addcmul(wide.new_zeros(()), scaled, scaled, value=2.0 ** (2 * halvings - squarings), out=x)

    torch.bmm(x, x, out=x2)
    torch.bmm(x2, torch.add(x2, x, alpha=4, out=left), out=right)  # A
    torch.add(right, x2, alpha=_P, out=left)
    right.add_(x2, alpha=_Q).add_(x, alpha=176).diagonal(dim1=-2, dim2=-1).add_(_R)
    y, spare = x.add_(x2, alpha=_C).baddbmm_(left, right, alpha=1 / math.factorial(8)), x2

    # E = e^c Y  →  2 E + E² = e^2c (2 e^-c Y + Y²)
    for _ in range(min(squarings, tame)):
        y, spare = torch.baddbmm(y, y, y, beta=2, out=spare), y
    log_scale = wide.new_zeros(len(wide), 1, 1)
    for _ in range(squarings - tame):
        # Keep the largest entry at 1 while c > 0: Y² alone may shrink (its largest entry off the diagonal) to nothing.
        peak = torch.maximum(y.amax(dim=(-2, -1), keepdim=True), torch.exp(-log_scale))
        log_scale += peak.log()
        y /= peak
        y, spare = torch.bmm(y, y, out=spare).addcmul_(y, 2 * torch.exp(-log_scale)), y
        log_scale *= 2
    return y, log_scale


def _finish(wide: Tensor, y: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    """log(tr exp(N) / d), [b], and 2 M ⊙ exp(N)ᵀ / tr exp(N), [b, d, d], from exp(N) - I = e^c Y; in place of M."""
    width = wide.shape[-1]
    unscale = torch.exp(-log_scale)
    diagonal = y.diagonal(dim1=-2, dim2=-1)
    trace = diagonal.sum(-1)[:, None, None]
    # log(1 + e^c t): the logarithmic form keeps the digits of a loss near zero, and t = 0 gives 0.
    loss = torch.logaddexp(log_scale + (trace / width).log(), torch.zeros_like(trace))[:, 0, 0]
    # Without a cycle the numerator is exactly 0; the denominator may underflow to it.
    total = (trace + unscale * width).clamp(min=torch.finfo(y.dtype).tiny)
    diagonal += unscale[:, 0]
    return loss, wide.mul_(y.mT).mul_(2 / total)


def _chunks(chosen: Tensor, size: int) -> tuple[Tensor, ...]:
    """The indices at which ``chosen``, [b], is true, ``size`` at a time."""
    index = chosen.nonzero()[:, 0]
    return index.split(size) if len(index) else ()


def _value_and_gradient(m: Tensor, cycles_only: bool = False) -> tuple[Tensor, Tensor]:
    """Loss, [b], and gradient, [b, d, d], of M [b, d, d], in its dtype; ``cycles_only``: M is cyclic and balanced."""
    count, width = len(m), m.shape[-1]
    loss, gradient = m.new_empty(count), torch.empty_like(m, memory_format=torch.contiguous_format)
    if not count:
        return loss, gradient
    chunk = max(1, (_CPU_CHUNK if m.device.type == "cpu" else _DEVICE_CHUNK) // width**2)
    # Half a rounding of the narrower dtypes; in float64 the roundings of the squarings come to about this.
    tolerance = 2.0**-44 if m.dtype == torch.float64 else 2.0**-25
    log_norm, log_trace = map(torch.cat, zip(*(_log_size(part) for part in m.split(chunk)), strict=True))
    squarings = _squarings(log_norm, log_trace, width, tolerance)
    limit = log_norm.new_tensor([math.log(_TAME_NORM)])
    tame = int(_squarings(limit, limit, width, tolerance))

    if not cycles_only:
        # Where growth has to go into a logarithm, edges on no cycle and lop-sided cycles may dwarf the trace.
        # Chunks are larger here: the time goes into the many small steps of balancing.
        for index in _chunks(squarings > tame, 8 * chunk):
            size = m[index].abs()
            index = index[size.amin((-2, -1)).double() < _DENSE_RATIO * size.amax((-2, -1)).double()]
            if not len(index):
                continue
            wide = _cyclic_part(m[index].double())
            z = _balance(wide)
            shift = z[..., None, :] - z[..., :, None]
            # With B = D M D⁻¹ entrywise, ∂/∂M = ∂/∂B · ∂B/∂M.
            balanced_loss, balanced_gradient = _value_and_gradient(torch.ldexp(wide, shift), cycles_only=True)
            loss[index] = balanced_loss.to(m.dtype)
            gradient[index] = torch.ldexp(balanced_gradient, shift).to(m.dtype)
            squarings[index] = -1

    work = m.new_empty(5, min(chunk, count), width, width, dtype=torch.float64)
    # Matrices that need the same number of squarings go together: each gets what it would get alone.
    for needed in squarings[squarings >= 0].unique().tolist():
        for index in _chunks(squarings == needed, chunk):
            part = work[:, : len(index)]
            wide = part[0].copy_(m.index_select(0, index))
            wide_loss, wide_gradient = _finish(wide, *_scaled_expm1(wide, part[1:], needed, tame))
            loss[index] = wide_loss.to(m.dtype)
            gradient.index_copy_(0, index, wide_gradient.to(m.dtype))
    return loss, gradient


# An operator of torch's own kind, as torch.compile cannot trace what depends on the values: it calls it as a whole.
torch.library.define("plga::log_trace_exp", "(Tensor m) -> (Tensor, Tensor)")


@torch.library.impl("plga::log_trace_exp", "CompositeExplicitAutograd")
def _log_trace_exp(m: Tensor) -> tuple[Tensor, Tensor]:
    """log(tr exp(M ⊙ M) / d), [...], and its gradient, [..., d, d], of M [..., d, d]."""
    loss, gradient = _value_and_gradient(m.reshape(-1, *m.shape[-2:]))
    return loss.reshape(m.shape[:-2]), gradient.reshape(m.shape)


@torch.library.register_fake("plga::log_trace_exp")
def _(m: Tensor) -> tuple[Tensor, Tensor]:
    return m.new_empty(m.shape[:-2]), torch.empty_like(m, memory_format=torch.contiguous_format)


class _LogTraceExp(torch.autograd.Function):
    """log(tr exp(M ⊙ M) / d), whose gradient costs little beside the value and is computed with it."""

    @staticmethod
    def forward(ctx: Any, m: Tensor) -> Tensor:
        loss, gradient = torch.ops.plga.log_trace_exp(m)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gradient,) = ctx.saved_tensors
        return grad[..., None, None] * gradient


def dag_loss(m: Tensor) -> Tensor:
    """ℓ(M) = |log(tr exp(M ⊙ M) / d)|, zero exactly when the graph of M has no cycle (arXiv:2410.16703).

    M ⊙ M has no negative entry, so the logarithm is never negative and the absolute value is only its name. The
    work is done in float64, also under autocast; the result has the dtype of ``m``, and is infinite only where the
    loss itself exceeds that dtype. Value and gradient (in norm) are accurate relative to themselves for losses from
    1e-12 upward: to a rounding or so of float32, and in float64 below 1e-10. Differentiable once.

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
