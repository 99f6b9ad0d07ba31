import math
import re

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.ops.rotary import inverse_frequencies, rotate_half, rotate_interleaved, tables
from tests import numpy_reference as ref
from tests.ops.examples import DTYPES, LEADS, SEEDS, close, normal

HALVES = st.integers(1, 5)
LENGTHS = st.integers(1, 6)
BOTH = pytest.mark.parametrize("rotate", [rotate_interleaved, rotate_half])
ROTATIONS = st.sampled_from([rotate_interleaved, rotate_half])


def exact_tables(positions: torch.Tensor, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 cosines and sines, for properties that hold to the last digits."""
    angles = positions[..., None].double() * 10000.0 ** (-torch.arange(half).double() / half)
    return angles.cos(), angles.sin()


def test_frequencies_by_hand() -> None:
    assert torch.equal(inverse_frequencies(2), torch.tensor([1.0]))
    torch.testing.assert_close(inverse_frequencies(4), torch.tensor([1.0, 0.01]))
    torch.testing.assert_close(inverse_frequencies(6, base=8.0), torch.tensor([1.0, 0.5, 0.25]))
    assert inverse_frequencies(64).dtype == torch.float32


@pytest.mark.parametrize("width", [2, 32, 64, 128])
def test_frequencies_against_mpmath(width: int) -> None:
    with mpmath.workdps(40):
        exact = [float(mpmath.mpf(10000) ** (-mpmath.mpf(2 * a) / width)) for a in range(width // 2)]
    # Two float32 roundings of the exponent, times ln(10000) = 9.2.
    torch.testing.assert_close(inverse_frequencies(width).double(), torch.tensor(exact).double(), rtol=1e-6, atol=0)


def test_position_zero_is_the_identity() -> None:
    cos, sin = tables(torch.zeros(3, dtype=torch.long), inverse_frequencies(8), torch.float64)
    assert cos.dtype == sin.dtype == torch.float64
    assert torch.equal(cos, torch.ones(3, 4).double()) and torch.equal(sin, torch.zeros(3, 4).double())
    x = normal(2, 3, 8)
    assert torch.equal(rotate_interleaved(x, cos, sin), x) and torch.equal(rotate_half(x, cos, sin), x)


def test_tables_against_mpmath() -> None:
    """The float32 angle is exact data; its cosine and sine are right to a float32 rounding."""
    positions, frequencies = torch.tensor([1, 2, 100, 1023]), inverse_frequencies(8)
    cos, sin = tables(positions, frequencies, torch.float64)
    angles = positions[:, None].float() * frequencies
    with mpmath.workdps(40):
        for index, angle in enumerate(angles.flatten().tolist()):
            assert float(cos.flatten()[index]) == pytest.approx(float(mpmath.cos(angle)), abs=1.2e-7)
            assert float(sin.flatten()[index]) == pytest.approx(float(mpmath.sin(angle)), abs=1.2e-7)


def test_tables_are_float32_whatever_the_dtype() -> None:
    positions, frequencies = torch.arange(50).reshape(2, 25), inverse_frequencies(16)
    narrow = tables(positions, frequencies, torch.float32)
    for wide, table in zip(tables(positions, frequencies, torch.float64), narrow, strict=True):
        assert wide.shape == (2, 25, 8)
        assert torch.equal(wide, table.double())
    for half, table in zip(tables(positions, frequencies.double(), torch.bfloat16), narrow, strict=True):
        assert torch.equal(half, table.bfloat16())
    numpy_tables = ref.rotary_tables(positions.numpy(), 16, 10000.0)
    for theirs, table in zip(numpy_tables, narrow, strict=True):
        assert torch.equal(torch.from_numpy(theirs), table.double())


def test_rotations_by_hand() -> None:
    """A quarter turn of the first pair and a half turn of the second."""
    cos, sin = torch.tensor([[0.0, -1.0]]), torch.tensor([[1.0, 0.0]])
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert torch.equal(rotate_interleaved(x, cos, sin), torch.tensor([[-2.0, 1.0, -3.0, -4.0]]))
    assert torch.equal(rotate_half(x, cos, sin), torch.tensor([[-3.0, -2.0, 1.0, -4.0]]))


@given(ROTATIONS, LEADS, LENGTHS, HALVES, DTYPES, SEEDS)
def test_norms_are_kept(rotate, lead, length, half, dtype, seed) -> None:
    x = normal(*lead, length, 2 * half, seed=seed, dtype=dtype)
    turned = rotate(x, *tables(torch.arange(length) + seed % 1000, inverse_frequencies(2 * half), dtype))
    assert turned.shape == x.shape and turned.dtype == dtype
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    exact = rotate(x.double(), *exact_tables(torch.arange(length) + seed % 1000, half))
    torch.testing.assert_close(exact.norm(dim=-1), x.double().norm(dim=-1), rtol=1e-14, atol=0)


@given(ROTATIONS, st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), HALVES, SEEDS)
def test_scores_depend_on_the_distance_alone(rotate, m, n, shift, half, seed) -> None:
    """(R_m q)·(R_n k) = (R_{m+s} q)·(R_{n+s} k), and R_m R_n = R_{m+n}."""
    q, k = normal(1, 2 * half, seed=seed), normal(1, 2 * half, seed=seed + 1)

    def at(x: torch.Tensor, position: int) -> torch.Tensor:
        return rotate(x, *exact_tables(torch.tensor([position]), half))

    here, there = (at(q, m) * at(k, n)).sum(), (at(q, m + shift) * at(k, n + shift)).sum()
    torch.testing.assert_close(here, there, rtol=0, atol=1e-11)
    close(at(at(q, m), n), at(q, m + n), roundings=1e4)
    # With the published tables the angles are float32, so the distance counts up to a rounding of the position.
    frequencies = inverse_frequencies(2 * half)
    rounded = [
        (rotate(q, *tables(torch.tensor([m + s]), frequencies, torch.float64))
         * rotate(k, *tables(torch.tensor([n + s]), frequencies, torch.float64))).sum()
        for s in (0, shift)
    ]  # fmt: skip
    torch.testing.assert_close(rounded[0], rounded[1], rtol=0, atol=1e-3)


@given(LEADS, LENGTHS, HALVES, DTYPES, SEEDS)
def test_layouts_differ_by_a_permutation(lead, length, half, dtype, seed) -> None:
    x = normal(*lead, length, 2 * half, seed=seed, dtype=dtype)
    cos, sin = tables(torch.arange(length), inverse_frequencies(2 * half), dtype)
    order = torch.cat([torch.arange(0, 2 * half, 2), torch.arange(1, 2 * half, 2)])
    assert torch.equal(rotate_half(x[..., order], cos, sin), rotate_interleaved(x, cos, sin)[..., order])


@given(st.integers(1, 3), st.integers(1, 3), LENGTHS, HALVES, DTYPES, SEEDS)
def test_interleaved_rotation_has_the_bits_of_its_formula(batch, heads, length, half, dtype, seed) -> None:
    """In value and gradient, and wherever the numbers lie: here heads inside of rows, off by one number."""
    count = batch * length * heads * 2 * half
    x = normal(count + 1, seed=seed, dtype=dtype)[1:].view(batch, length, heads, 2 * half).transpose(1, 2)
    x.requires_grad_()
    cos, sin = tables(torch.arange(length), inverse_frequencies(2 * half), dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    formula = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    ours = rotate_interleaved(x, cos, sin)
    assert torch.equal(ours, formula) and ours.is_contiguous()
    direction = normal(*ours.shape, seed=seed + 1, dtype=dtype)
    assert torch.equal(*(torch.autograd.grad(y, x, direction)[0] for y in (ours, formula)))


@given(st.booleans(), st.integers(1, 3), st.integers(1, 3), LENGTHS, HALVES, SEEDS)
def test_equals_the_numpy_reference(interleaved, batch, heads, length, half, seed) -> None:
    x = normal(batch, heads, length, 2 * half, seed=seed)
    positions = torch.arange(length) + torch.arange(batch)[:, None]  # each sequence its own
    cos, sin = (t[:, None] for t in tables(positions, inverse_frequencies(2 * half), torch.float64))
    ours = (rotate_interleaved if interleaved else rotate_half)(x, cos, sin)
    theirs = ref.rotate(x.numpy(), cos.numpy(), sin.numpy(), interleaved)
    close(ours, torch.from_numpy(theirs), roundings=4)


@BOTH
def test_gradient_is_the_rotation_back(rotate) -> None:
    x, (cos, sin) = normal(2, 3, 4).requires_grad_(), exact_tables(torch.arange(3), 2)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), x)
    rotate(x, cos, sin).backward(normal(2, 3, 4, seed=1))
    close(x.grad, rotate(normal(2, 3, 4, seed=1), cos, -sin))


@pytest.mark.parametrize(
    ("width", "base", "message"),
    [
        (0, 1e4, "width is 0, expected an even head width >= 2"),
        (-2, 1e4, "width is -2, expected an even head width >= 2"),
        (7, 1e4, "width is 7, expected an even head width >= 2"),
        (8, 0.0, "base is 0.0, expected a number > 0"),
        (8, -1.0, "base is -1.0, expected a number > 0"),
        (8, math.nan, "base is nan, expected a number > 0"),
    ],
)
def test_bad_frequencies(width, base, message) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        inverse_frequencies(width, base)


X, T = torch.ones(2, 3, 4), torch.ones(3, 2)


@BOTH
@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        (X.long(), T, T, "x is (2, 3, 4) int64, expected a floating-point dtype"),
        (X[0, 0], T, T, "x is (4,) float32, expected at least 2 axes"),
        (X[..., :3], T, T, "x is (2, 3, 3), expected [..., S, d] with an even d"),
        (X, torch.ones(3, 4), T, "cos is (3, 4) float32, expected [..., S, d/2]: it must broadcast to (2, 3, 2)"),
        (X, T, torch.ones(4, 2), "sin is (4, 2) float32, expected [..., S, d/2]: it must broadcast to (2, 3, 2)"),
        (X, torch.ones(5, 2, 3, 2), T, "cos is (5, 2, 3, 2) float32, expected [..., S, d/2]"),
    ],
)
def test_bad_rotation(rotate, x, cos, sin, message) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        rotate(x, cos, sin)
