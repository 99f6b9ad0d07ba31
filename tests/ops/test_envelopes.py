"""Derivative envelopes: above every grid, and no higher than a rounding above it."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plga.ops.envelopes import iswiglu_slope, log10_power_slope, silu_slope
from plga.ops.power_law import iswiglu


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def silu_derivative(u: Tensor) -> Tensor:
    """By automatic differentiation."""
    u = u.clone().requires_grad_()
    return torch.autograd.grad(torch.nn.functional.silu(u).sum(), u)[0]


def iswiglu_derivative(u: Tensor) -> Tensor:
    """By automatic differentiation."""
    u = u.clone().requires_grad_()
    return torch.autograd.grad(iswiglu(u).sum(), u)[0]


@given(limit=st.floats(0, 60))
@pytest.mark.parametrize("derivative, slope", [(silu_derivative, silu_slope), (iswiglu_derivative, iswiglu_slope)])
def test_a_slope_dominates_a_dense_grid_and_is_tight(
    derivative: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], limit: float
) -> None:
    grid = torch.linspace(-limit, limit, 4001, dtype=torch.float64)
    largest, bound = float(derivative(grid).abs().max()), float(slope(scalar(limit)))
    # Autograd has roundings of its own, relative to the terms that it adds up.
    assert largest * (1 - 1e-15) <= bound
    assert bound <= largest * (1 + 1e-3) + 1e-300


def test_slopes_by_hand() -> None:
    assert float(silu_slope(scalar(0.0))) == pytest.approx(0.5)
    assert 1.0998 < float(silu_slope(scalar(1e6))) == float(silu_slope(scalar(3.0))) < 1.1
    assert float(iswiglu_slope(scalar(0.0))) == 0.0
    sigma = 1 / (1 + math.exp(-2))
    assert float(iswiglu_slope(scalar(2.0))) == pytest.approx(2 * 2 * sigma + 4 * sigma * (1 - sigma))
    assert float(iswiglu_slope(scalar(1e200))) == pytest.approx(2e200)
    assert iswiglu_slope(torch.ones(2, 3)).shape == (2, 3) and iswiglu_slope(torch.ones(2, 3)).dtype == torch.float64


@given(
    exponent=st.floats(-3, 3).filter(lambda p: abs(p) > 1e-6),
    ends=st.tuples(st.floats(-9, 4), st.floats(-9, 4)).map(sorted),
)
def test_the_power_slope_dominates_a_dense_grid_and_is_tight(exponent: float, ends: list[float]) -> None:
    x = torch.logspace(*ends, 2001, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad((x**exponent).sum(), x)
    largest = float(slope.abs().max().log10())
    bound = float(log10_power_slope(scalar(exponent), x.detach().min(), x.detach().max()))
    assert largest - 1e-13 <= bound <= largest + 1e-6


def test_the_power_slope_by_hand_and_at_any_size() -> None:
    # P = 2 is steepest at the ceiling, P = -1 at the floor; P = 1 has slope 1, P = 0 none.
    exponents = torch.tensor([2.0, -1.0, 1.0, 0.0], dtype=torch.float64)
    found = log10_power_slope(exponents, scalar(1e-2), scalar(1e3))
    assert found[:3].tolist() == pytest.approx([math.log10(2) + 3, 4.0, 0.0], abs=1e-12)
    assert float(found[3]) == -math.inf
    assert float(log10_power_slope(scalar(-99.0), scalar(1e-9), scalar(1.0))) == pytest.approx(math.log10(99) + 900)


def test_what_is_no_interval_is_refused() -> None:
    for slope in (silu_slope, iswiglu_slope):
        with pytest.raises(ValueError, match="limit has the entry -1"):
            slope(scalar(-1.0))
        with pytest.raises(ValueError, match="non-finite"):
            slope(scalar(math.inf))
    for floor, ceiling in ((0.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="0 < floor <= ceiling"):
            log10_power_slope(scalar(1.0), scalar(floor), scalar(ceiling))
