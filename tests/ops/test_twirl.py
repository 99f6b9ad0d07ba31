"""The twirl: by hand, and against the averages over positions that it is a formula for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.ops.commutant import commutant_projection
from plga.ops.rotary import inverse_frequencies, rotate_half, rotate_interleaved, tables
from plga.ops.twirl import (
    angular_frequencies,
    mode_frequencies,
    resonant,
    rotary_modes,
    twirl_frequencies,
    twirl_multiplier,
)
from tests.ops.examples import SEEDS, normal

HALVES = st.integers(1, 4)


def test_frequencies_by_hand() -> None:
    assert angular_frequencies(4, 100.0).tolist() == [1.0, 0.1]
    found = twirl_frequencies(torch.tensor([1.0, 0.25]))
    assert found.tolist() == [2.0, 0.5, 0.75, 0.75, 1.25, 1.25]
    assert len(twirl_frequencies(angular_frequencies(64))) == 32 + 2 * 32 * 31
    torch.testing.assert_close(angular_frequencies(64).float(), inverse_frequencies(64), rtol=1e-6, atol=0)


def test_multiplier_by_hand() -> None:
    """S = 2: |cos(ω/2)|. ω = π: 1 / S or 0. ω = 0 and 2π: the limit 1."""
    omega = torch.tensor([0.3, math.pi / 2], dtype=torch.float64)
    torch.testing.assert_close(twirl_multiplier(omega, 2), (omega / 2).cos(), rtol=1e-14, atol=0)
    alternating = torch.tensor([math.pi], dtype=torch.float64)
    assert twirl_multiplier(alternating, 5).item() == pytest.approx(0.2)
    assert twirl_multiplier(alternating, 4).item() < 1e-15
    assert twirl_multiplier(torch.tensor([0.0, 1.7]), 1).tolist() == [1.0, 1.0]
    assert twirl_multiplier(torch.zeros(1), 7).tolist() == [1.0]


@given(st.floats(0.01, 6.0), st.integers(1, 200))
def test_multiplier_is_the_mean_of_the_phases(omega: float, length: int) -> None:
    phases = torch.polar(torch.ones(length).double(), omega * torch.arange(length).double())
    found = twirl_multiplier(torch.tensor([omega], dtype=torch.float64), length).item()
    assert found == pytest.approx(float(phases.mean().abs()), abs=1e-12)
    assert found <= min(1.0, 1 / (length * abs(math.sin(omega / 2))) + 1e-15)


def test_resonance() -> None:
    found = resonant(torch.tensor([0.0, 1e-9, 3.0, 2 * math.pi, 6 * math.pi, 6.2], dtype=torch.float64))
    assert found.tolist() == [True, False, False, True, True, False]


@given(HALVES, SEEDS, st.booleans())
def test_modes_keep_the_energy_and_hold_the_commutant_on_the_diagonal(half: int, seed: int, interleaved: bool) -> None:
    m = normal(3, 2 * half, 2 * half, seed=seed)
    modes = rotary_modes(m, interleaved)
    energy = modes.abs().square()
    torch.testing.assert_close(energy.sum((-2, -1)), m.square().sum((-2, -1)), rtol=1e-12, atol=0)
    kept = commutant_projection(m, interleaved).square().sum((-2, -1))
    torch.testing.assert_close(energy.diagonal(dim1=-2, dim2=-1).sum(-1), kept, rtol=1e-10, atol=1e-12)


@given(HALVES, SEEDS, st.booleans(), st.integers(1, 30))
def test_averaging_over_positions_multiplies_every_mode(half: int, seed: int, interleaved: bool, length: int) -> None:
    """(1/S) Σ R_t M R_tᵀ has the modes of M, each by its multiplier."""
    theta = inverse_frequencies(2 * half)
    turn = rotate_interleaved if interleaved else rotate_half
    cos, sin = tables(torch.arange(length), theta, torch.float64)
    eye = torch.eye(2 * half, dtype=torch.float64).expand(length, -1, -1)
    rotation = turn(eye, cos[:, None], sin[:, None]).mT  # rows of the argument are turned: R_t itself in columns
    m = normal(2 * half, 2 * half, seed=seed)
    averaged = rotary_modes((rotation @ m @ rotation.mT).mean(dim=0), interleaved)
    expected = rotary_modes(m, interleaved).abs() * twirl_multiplier(mode_frequencies(theta.double()), length)
    torch.testing.assert_close(averaged.abs(), expected, rtol=1e-5, atol=1e-5)  # the tables' angles are float32


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="width is 3, expected an even head width"):
        angular_frequencies(3)
    with pytest.raises(ValueError, match="base is inf, expected a finite number > 0"):
        angular_frequencies(4, math.inf)
    with pytest.raises(ValueError, match="length is 0, expected >= 1"):
        twirl_multiplier(torch.ones(1), 0)
    with pytest.raises(ValueError, match="with an even d"):
        rotary_modes(torch.eye(3))
