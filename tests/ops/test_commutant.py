"""The commutant of the rotations: by hand, as a mean over angles, as a projection, and against rotated queries."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plga.ops.commutant import commutant_projection, commutant_residual
from plga.ops.rotary import inverse_frequencies, rotate_half, rotate_interleaved, tables
from tests.ops.examples import SEEDS

INTERLEAVED = st.booleans()
HALVES = st.integers(1, 4)


def matrix(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(angles: list[float], interleaved: bool) -> Tensor:
    """The matrix R with ``rotate(x) = x R`` where pair a turns by ``angles[a]``."""
    turn = rotate_interleaved if interleaved else rotate_half
    angle = torch.tensor(angles, dtype=torch.float64)
    return turn(torch.eye(2 * len(angles), dtype=torch.float64), angle.cos(), angle.sin())


def test_a_pair_by_hand() -> None:
    g = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(commutant_projection(g), torch.tensor([[2.5, -0.5], [0.5, 2.5]]))
    # What is taken away is [[-1.5, 2.5], [2.5, 1.5]]: √(17 / 30) of the norm.
    assert float(commutant_residual(g)) == pytest.approx(math.sqrt(17 / 30), abs=1e-15)


def test_pairs_of_both_layouts_by_hand() -> None:
    g = torch.arange(16.0).view(4, 4)
    interleaved = torch.tensor([[2.5, -1.5, 0, 0], [1.5, 2.5, 0, 0], [0, 0, 12.5, -1.5], [0, 0, 1.5, 12.5]])
    half = torch.tensor([[5.0, 0, -3, 0], [0, 10, 0, -3], [3, 0, 5, 0], [0, 3, 0, 10]])
    assert torch.equal(commutant_projection(g, interleaved=True), interleaved)
    assert torch.equal(commutant_projection(g, interleaved=False), half)


@given(seed=SEEDS, half=st.integers(1, 2), interleaved=INTERLEAVED)
def test_it_is_the_mean_over_the_turns_of_every_pair(seed: int, half: int, interleaved: bool) -> None:
    """R G Rᵀ has harmonics up to the second in each angle, so three angles a pair give the mean over all."""
    g = matrix(seed, 2 * half, 2 * half)
    turns = [
        rotation([2 * math.pi * step / 3 for step in steps], interleaved)
        for steps in itertools.product(range(3), repeat=half)
    ]
    mean = torch.stack([turn @ g @ turn.mT for turn in turns]).mean(dim=0)
    torch.testing.assert_close(commutant_projection(g, interleaved), mean, rtol=1e-12, atol=1e-13)


@given(seed=SEEDS, half=HALVES, interleaved=INTERLEAVED)
def test_it_commutes_with_the_rotations_of_queries(seed: int, half: int, interleaved: bool) -> None:
    q, g = matrix(seed, 3, 5, 2 * half), matrix(seed + 1, 3, 2 * half, 2 * half)
    turn = rotate_interleaved if interleaved else rotate_half
    table = tables(torch.arange(5) * 7, inverse_frequencies(2 * half), torch.float64)
    projected = commutant_projection(g, interleaved)
    torch.testing.assert_close(turn(q, *table) @ projected, turn(q @ projected, *table), rtol=1e-12, atol=1e-12)


@given(seed=SEEDS, half=HALVES, interleaved=INTERLEAVED)
def test_it_is_an_orthogonal_projection(seed: int, half: int, interleaved: bool) -> None:
    g = matrix(seed, 2, 2 * half, 2 * half)
    projected = commutant_projection(g, interleaved)
    assert torch.equal(commutant_projection(projected, interleaved), projected)
    assert float((projected * (g - projected)).sum().abs()) <= 1e-12 * float(g.square().sum())
    residual = commutant_residual(g, interleaved)
    expected = 1 - projected.square().sum(dim=(-2, -1)) / g.square().sum(dim=(-2, -1))
    torch.testing.assert_close(residual.square(), expected, rtol=1e-10, atol=1e-12)


def test_residuals_at_the_ends() -> None:
    turn = rotation([0.3, 1.7], True)
    assert float(commutant_residual(turn)) < 1e-15
    assert float(commutant_residual(torch.eye(6))) == 0.0
    assert float(commutant_residual(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))) == 1.0
    assert float(commutant_residual(torch.zeros(4, 4))) == 0.0
    assert float(commutant_residual(1e300 * torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))) == (
        pytest.approx(math.sqrt(17 / 30))
    )


@pytest.mark.parametrize("function", [commutant_projection, commutant_residual])
def test_what_is_no_square_of_pairs_is_refused(function: type) -> None:
    with pytest.raises(ValueError, match="even d"):
        function(torch.eye(3))
    with pytest.raises(ValueError, match="g is"):
        function(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="finite"):
        function(torch.full((2, 2), math.nan))
