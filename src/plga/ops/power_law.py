"""From the generator A to the energy-curvature tensor G_LM (arXiv:2608.10288, Def. 3.1; arXiv:2410.16703).

Every function acts on [..., H, d, d] and broadcasts over the leading axes. ``check_values`` also looks for
non-finite (or non-positive) entries; on an accelerator that waits for the device, so models that do their own
checking switch it off.
"""

import torch
from torch import Tensor

from plga.ops import _check

EPSILON = 1e-9  # the published floor of A_LM


def iswiglu(u: Tensor, check_values: bool = True) -> Tensor:
    """iSwiGLU(u) = u² σ(u), entrywise and non-negative (arXiv:2608.10288).

    Args:
        u: any shape, floating point.
        check_values: see the module.

    Raises:
        ValueError: ``u`` is not a floating-point tensor, or has a non-finite entry.
    """
    _check.floating("u", u)
    if check_values:
        _check.finite("u", u)
    # u · silu(u), not u² · σ(u): u² overflows long before the product does for large negative u.
    return u * torch.nn.functional.silu(u)


def metric_tensor(
    generator: Tensor, weight: Tensor, bias: Tensor, eps: float = EPSILON, check_values: bool = True
) -> Tensor:
    """Metric tensor A_LM = iSwiGLU(W A + b_W) + eps (arXiv:2608.10288, Def. 3.1).

    Args:
        generator: A, [..., H, d, d].
        weight, bias: W and b_W, [H, d, d].
        eps: floor that keeps every entry positive, >= 0.
        check_values: see the module.

    Returns:
        A_LM, [..., H, d, d], entries >= eps.

    Raises:
        ValueError: a wrong shape or dtype, a negative or non-finite ``eps``, a non-finite entry.
    """
    _check.square("generator", generator)
    _check.same_dtype(generator=generator, weight=weight, bias=bias)
    for name, tensor in (("weight", weight), ("bias", bias)):
        _check.square(name, tensor)
        _check.broadcasts(name, tensor, generator.shape, "[H, d, d] with the H and d of generator")
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps is {eps}, expected a finite number >= 0")
    if check_values:
        for name, tensor in (("generator", generator), ("weight", weight), ("bias", bias)):
            _check.finite(name, tensor)
    return iswiglu(weight @ generator + bias, check_values=False).add_(eps)


def potential_tensor(metric: Tensor, exponent: Tensor | float, check_values: bool = True) -> Tensor:
    """Potential tensor A_P = A_LM^{⊙P}, an entrywise power (arXiv:2608.10288, Def. 3.1).

    Args:
        metric: A_LM, [..., H, d, d], entries > 0.
        exponent: P, [H, d, d] (learned, entrywise), or a number α (the special case P = α).
        check_values: see the module.

    Returns:
        A_P, [..., H, d, d], entries > 0 unless the power leaves the dtype.

    Raises:
        ValueError: a wrong shape or dtype, a non-finite exponent, an entry of ``metric`` that is not positive.
    """
    _check.square("metric", metric)
    if isinstance(exponent, Tensor):
        _check.same_dtype(metric=metric, exponent=exponent)
        if exponent.dim() > 0:
            _check.square("exponent", exponent)
        _check.broadcasts("exponent", exponent, metric.shape, "[H, d, d] with the H and d of metric, or a number")
        if check_values:
            _check.finite("exponent", exponent)
    elif not -float("inf") < exponent < float("inf"):
        raise ValueError(f"exponent is {exponent}, expected a finite number or a tensor [H, d, d]")
    if check_values:
        _check.positive("metric", metric)
    return metric**exponent


def curvature_tensor(potential: Tensor, weight: Tensor, bias: Tensor, check_values: bool = True) -> Tensor:
    """Energy-curvature tensor G_LM = a A_P + b_a (arXiv:2608.10288, Def. 3.1).

    Args:
        potential: A_P, [..., H, d, d].
        weight, bias: a and b_a, [H, d, d].
        check_values: see the module.

    Returns:
        G_LM, [..., H, d, d].

    Raises:
        ValueError: a wrong shape or dtype, a non-finite entry.
    """
    _check.square("potential", potential)
    _check.same_dtype(potential=potential, weight=weight, bias=bias)
    for name, tensor in (("weight", weight), ("bias", bias)):
        _check.square(name, tensor)
        _check.broadcasts(name, tensor, potential.shape, "[H, d, d] with the H and d of potential")
    if check_values:
        for name, tensor in (("potential", potential), ("weight", weight), ("bias", bias)):
            _check.finite(name, tensor)
    return weight @ potential + bias
