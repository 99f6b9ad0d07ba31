"""Spectra of operators: singular values, numerical rank, and the Perron triple of a positive matrix."""

from typing import NamedTuple

import torch
from torch import Tensor

from plga.ops import _check

# The published rule counts singular values above 64 float32 roundings of the largest, whatever the dtype.
RANK_TOLERANCE = 64 * torch.finfo(torch.float32).eps

_PLAIN_ITERATIONS = 100


def singular_values(m: Tensor) -> Tensor:
    """Singular values in descending order.

    Args:
        m: [..., n, m], finite.

    Returns:
        [..., min(n, m)], float32 or wider.

    Raises:
        ValueError: ``m`` is not a finite floating-point tensor of two or more axes.
    """
    _check.floating("m", m, min_dims=2)
    _check.finite("m", m)
    return torch.linalg.svdvals(m.to(torch.promote_types(m.dtype, torch.float32)))  # no kernel below float32


def numerical_rank(m: Tensor, tolerance: float = RANK_TOLERANCE) -> Tensor:
    """Number of singular values above ``tolerance`` times the largest.

    Args:
        m: [..., n, m], finite.
        tolerance: relative to s1, 0 <= tolerance < 1; by default the published 64 · eps_float32.

    Returns:
        int64 [...]; 0 for a zero matrix.

    Raises:
        ValueError: as :func:`singular_values`, or ``tolerance`` outside [0, 1).
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance is {tolerance}, expected a number in [0, 1)")
    _check.floating("m", m, min_dims=2)
    # In units of the largest entry: s1 itself may leave the dtype.
    s = singular_values(m / m.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(m.dtype).tiny))
    return (s > tolerance * s[..., :1]).sum(dim=-1)


class Perron(NamedTuple):
    """Perron root and vectors; see :func:`perron`."""

    root: Tensor
    right: Tensor
    left: Tensor
    residual: Tensor
    iterations: int


def perron(m: Tensor, tolerance: float | None = None, max_iterations: int = 10_000) -> Perron:
    """Perron root and both Perron vectors of a positive matrix by power iteration, and Noda's where it is slow.

    Iteration stops once the residual is within ``tolerance`` everywhere, or after ``max_iterations``: the residual
    is returned so that the caller can tell. It is a sum over components: where those of a vector differ by more than
    the dtype's precision, it does not see the small ones.

    Args:
        m: [..., d, d], every entry > 0.
        tolerance: target for the residual; by default 64 roundings of the dtype.
        max_iterations: >= 1.

    Returns:
        Perron with root r [...]; right vector v [..., d], v > 0, Σv = 1; left vector u [..., d], u > 0, u·v = 1;
        residual [...]: the larger of ‖M v - r v‖₁ / (r ‖v‖₁) and ‖Mᵀ u - r u‖₁ / (r ‖u‖₁); iterations taken.

    Raises:
        ValueError: an entry that is not positive and finite, a root beyond the dtype, or ``max_iterations`` < 1.
    """
    _check.square("m", m)
    _check.positive("m", m)
    if max_iterations < 1:
        raise ValueError(f"max_iterations is {max_iterations}, expected >= 1")
    if tolerance is None:
        tolerance = 64 * torch.finfo(m.dtype).eps
    # A common factor changes neither vector; without it the products of large or tiny entries leave the dtype.
    # Float64 within: entries of float32 differ by up to 1e76.
    scale = m.double().amax(dim=(-2, -1), keepdim=True)
    unit = m.double() / scale
    right = torch.full_like(unit[..., :1], 1.0 / m.shape[-1])
    left = right.clone()
    for iteration in range(1, max_iterations + 1):
        image, preimage = unit @ right, unit.mT @ left
        root = image.sum(dim=-2, keepdim=True)  # Σv = 1, so Σ(Mv) estimates r
        residual = torch.maximum(
            (image - root * right).abs().sum(dim=-2) / root[..., 0],
            (preimage - root * left).abs().sum(dim=-2) / root[..., 0],
        )
        open_ = residual[..., 0] > tolerance
        if iteration == max_iterations or not bool(open_.any()):
            break  # what is returned is what was measured
        # Plain iteration is cheap and keeps the digits of tiny components. Where it has not settled, the second
        # eigenvalue is nearly as large as the first, and it would take thousands of steps.
        if iteration > _PLAIN_ITERATIONS:
            image, preimage = right.clone(), left.clone()
            image[open_], preimage[open_] = _noda(unit[open_], right[open_]), _noda(unit.mT[open_], left[open_])
        right, left = image / image.sum(dim=-2, keepdim=True), preimage / preimage.sum(dim=-2, keepdim=True)
    left = left / (left * right).sum(dim=-2, keepdim=True)
    root, right, left, residual = (
        t.to(m.dtype) for t in ((root * scale)[..., 0, 0], right[..., 0], left[..., 0], residual[..., 0])
    )
    if not bool(torch.isfinite(root).all()):
        raise ValueError(f"m is {tuple(m.shape)} with a Perron root beyond {m.dtype}, expected smaller entries")
    return Perron(root, right, left, residual, iteration)


def _noda(m: Tensor, v: Tensor) -> Tensor:
    """One step of Noda's iteration (Numer. Math. 17, 1971), which converges quadratically from any positive vector:
    solve (λ - M) x = v, λ being Collatz and Wielandt's upper bound max (M v)_i / v_i of the root.

    Args:
        m, v: [N, d, d] and [N, d, 1], positive.

    Returns:
        [N, d, 1], positive: the inverse of λ - M is, and what rounding makes of it otherwise is taken back.
    """
    bound = (m @ v / v).amax(dim=-2, keepdim=True)
    bound = bound * (1 + 4 * torch.finfo(m.dtype).eps)  # at the root itself there would be nothing to solve
    # In units of v the components are near one another, so that no digit of a tiny one is lost to a large one.
    balanced = m * v.mT / v
    system = bound * torch.eye(m.shape[-1], dtype=m.dtype, device=m.device) - balanced
    x, _ = torch.linalg.solve_ex(system, torch.ones_like(v))
    x = x / x.abs().amax(dim=-2, keepdim=True)
    usable = torch.isfinite(x).all(dim=-2, keepdim=True) & (x > 0).all(dim=-2, keepdim=True)
    return torch.where(usable, x * v, m @ v)


def cycle_share(m: Tensor) -> Tensor:
    """ρ(M) / σ₁(M), the share of a matrix's size that its cycles carry: the largest eigenvalue over the largest
    singular value.

    It is 0 where the graph of M has no cycle (M is nilpotent) and 1 where nothing of M is lost on the way round
    (M is normal, a permutation for one).

    Args:
        m: [..., d, d], finite.

    Returns:
        [...], float64, in [0, 1]; 0 for a zero matrix.

    Raises:
        ValueError: ``m`` is not a finite floating [..., d, d].
    """
    _check.square("m", m)
    _check.finite("m", m)
    # Both in units of the largest entry, so that neither leaves the dtype.
    peak = m.double().abs().amax(dim=(-2, -1), keepdim=True)
    unit = m.double() / torch.where(peak > 0, peak, 1.0)
    radius = torch.linalg.eigvals(unit).abs().amax(dim=-1)
    norm = torch.linalg.svdvals(unit)[..., 0]
    return torch.where(norm > 0, (radius / norm).clamp(max=1.0), 0.0)
