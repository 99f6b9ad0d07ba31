"""Upper bounds of derivatives over an interval, for perturbation bounds (arXiv:2608.10288).

No grid is needed: on [-U, U] the largest magnitude of each derivative stands at a known place, as it is monotone on
u >= 0 up to there and no larger at -u than at u. With σ the logistic function, σ(-u) = 1 - σ(u):

- h(u) = u σ(u): h' = σ + u σ (1 - σ) and h'(-u) = 1 - h'(u). h'' = σ (1 - σ) (2 - u tanh(u / 2)), where u tanh(u / 2)
  increases on u >= 0, so h' increases from 1/2 to its one maximum at u₀ tanh(u₀ / 2) = 2 and then falls to 1. There
  |h'(-u)| = |1 - h'(u)| <= h'(u), so max |h'| = h'(min(U, u₀)).
- f(u) = u² σ(u): f' = u σ (2 + u (1 - σ)). On u >= 0, f'' / σ = 2 + (1 - σ) (4 u - u² (2 σ - 1)) >= 2 - u² e^-u
  >= 2 - 4 e^-2 > 0, so f' increases from 0. |f'(-u)| = u (1 - σ) |2 - u σ| <= u (1 - σ) max(2, u σ) <= f'(u), so
  max |f'| = f'(U).
- x^P on [x₀, x₁], x₀ > 0: |P| x^(P - 1) is monotone in x, so it is largest at one of the two ends.

Every bound is computed in float64 and raised by more than its own rounding.
"""

import torch
from torch import Tensor

from plga.ops import _check

_PEAK = 2.3993572805154674  # u₀ of u tanh(u / 2) = 2
_ROUNDING = 1 + 2.0**-44  # the roundings of a dozen operations in float64, and the distance of h'(u₀) from its maximum


def silu_slope(limit: Tensor) -> Tensor:
    """Upper bound of |d/du u σ(u)| on [-U, U].

    Args:
        limit: U, any shape, >= 0.

    Returns:
        float64, the shape of ``limit``, from 1/2 at U = 0 to below 1.1.

    Raises:
        ValueError: ``limit`` is not a floating-point tensor, or has a negative or non-finite entry.
    """
    u = _limit(limit).clamp(max=_PEAK)
    return (u.sigmoid() + u * u.sigmoid() * (-u).sigmoid()) * _ROUNDING


def iswiglu_slope(limit: Tensor) -> Tensor:
    """Upper bound of |d/du u² σ(u)| on [-U, U].

    Args:
        limit: U, any shape, >= 0.

    Returns:
        float64, the shape of ``limit``; 0 at U = 0, about 2 U for large U.

    Raises:
        ValueError: as :func:`silu_slope`.
    """
    u = _limit(limit)
    return u * u.sigmoid() * (2 + u * (-u).sigmoid()) * _ROUNDING


def log10_power_slope(exponent: Tensor, floor: Tensor, ceiling: Tensor) -> Tensor:
    """Upper bound of log10(|P| x^(P - 1)), the slope of x^P, on [floor, ceiling]; a logarithm, as it may be any size.

    Args:
        exponent: P, any shape.
        floor, ceiling: the ends of the interval, 0 < floor <= ceiling, broadcasting with ``exponent``.

    Returns:
        float64, the broadcast shape; -inf where P is 0.

    Raises:
        ValueError: an argument that is not a finite floating-point tensor, or an interval that is none.
    """
    for name, tensor in (("exponent", exponent), ("floor", floor), ("ceiling", ceiling)):
        _check.floating(name, tensor)
        _check.finite(name, tensor)
    if not bool((floor > 0).all()) or not bool((floor <= ceiling).all()):
        raise ValueError("floor and ceiling are not the ends of an interval, expected 0 < floor <= ceiling")
    power = exponent.double()
    # The logarithms are rounded relative to their own size, which the exponent multiplies.
    grown = [(power - 1) * end.double().log10() for end in (floor, ceiling)]
    return power.abs().log10() + torch.maximum(*(g + (_ROUNDING - 1) * (g.abs() + 1) for g in grown))


def _limit(limit: Tensor) -> Tensor:
    _check.floating("limit", limit)
    _check.finite("limit", limit)
    if not bool((limit >= 0).all()):
        raise ValueError(f"limit has the entry {float(limit.min()):g}, expected entries >= 0")
    return limit.double()
