"""Gram alignment: by hand, its invariances, and its gradient where the operators are alike."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.ops.alignment import relative_difference
from tests.ops.examples import SEEDS, WIDTHS, normal


def test_by_hand() -> None:
    whole = torch.tensor([[3.0, 0.0], [0.0, 4.0]])[None, None]  # [B, H, d, d], of norm 5
    first = torch.tensor([[3.0, 1.0], [0.0, 4.0]])  # distance 1
    second = torch.tensor([[0.0, 0.0], [0.0, 8.0]])  # distance 5
    blocks = torch.stack([first, second])[None, :, None]  # [B, n, H, d, d]
    assert float(relative_difference(blocks, whole)) == pytest.approx(math.sqrt((0.2**2 + 1**2) / 2), rel=1e-6)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), WIDTHS, SEEDS, st.floats(-30, 30))
def test_is_a_mean_of_squares_whatever_the_scale_of_each_operator(batch, blocks, heads, width, seed, power) -> None:
    whole = normal(batch, heads, width, width, seed=seed)
    parts = normal(batch, blocks, heads, width, width, seed=seed + 1)
    distances = (parts - whole[:, None]).flatten(-2).norm(dim=-1) / whole.flatten(-2).norm(dim=-1)[:, None]
    expected = float(distances.square().mean().sqrt())
    assert float(relative_difference(parts, whole)) == pytest.approx(expected, rel=1e-12)
    scales = 10.0 ** (power * normal(batch, heads, 1, 1, seed=seed + 2))
    assert float(relative_difference(parts * scales[:, None], whole * scales)) == pytest.approx(expected, rel=1e-9)


def test_gradient() -> None:
    parts, whole = normal(2, 3, 2, 4, 4).requires_grad_(), normal(2, 2, 4, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(relative_difference, (parts, whole))


@pytest.mark.parametrize("entry", [0.0, 1.0, 1e30])
def test_operators_that_are_alike_give_zero_and_no_gradient(entry: float) -> None:
    whole = torch.full((2, 2, 4, 4), entry, requires_grad=True)
    parts = torch.full((2, 3, 2, 4, 4), entry, requires_grad=True)
    difference = relative_difference(parts, whole)
    difference.backward()
    assert difference.item() == 0
    assert not whole.grad.any() and not parts.grad.any()


@pytest.mark.parametrize(
    ("blocks", "whole", "message"),
    [
        (torch.ones(2, 4, 4), torch.ones(2, 4, 4), r"blocks is \(2, 4, 4\), expected \[\.\.\., n, H, d, d\]"),
        (torch.ones(3, 1, 4, 4), torch.ones(2, 4, 4), r"around whole \(2, 4, 4\)"),
        (torch.ones(3, 2, 4, 4), torch.ones(2, 4, 4).double(), r"whole is .* float64, expected the dtype of blocks"),
        (torch.ones(3, 2, 4, 5), torch.ones(2, 4, 4), r"blocks is \(3, 2, 4, 5\)"),
    ],
)
def test_bad_input(blocks, whole, message) -> None:
    with pytest.raises(ValueError, match=message):
        relative_difference(blocks, whole)
