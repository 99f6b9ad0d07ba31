"""The twirl: what averaging over the rotary rotations of S positions leaves of a matrix (arXiv:2608.10288).

The rotation by position t multiplies the coordinates z_a = (x_2a + i x_2a+1) / √2 and their conjugates by e^{±i t θ_a}.
In this eigenbasis the entry (j, k) of R_t M R_tᵀ is that of M times e^{i t (φ_j - φ_k)}, φ = (θ, -θ). The mean over
t = 0 .. S - 1 therefore multiplies it by the Dirichlet kernel of ω = φ_j - φ_k, of magnitude

    m_S(ω) = |sin(S ω / 2)| / (S |sin(ω / 2)|),

which is 1 on the diagonal (the commutant) and at most C_Θ / S elsewhere, C_Θ = max 1 / |sin(ω / 2)|, provided that no
such ω is a multiple of 2π (nonresonance).
"""

import math

import torch
from torch import Tensor

from plga.ops import _check


def angular_frequencies(width: int, base: float = 10000.0) -> Tensor:
    """θ_a = base^(-2a / d), float64 [d/2]: those that a model rounds to float32, as the analysis has them.

    Raises:
        ValueError: an odd or non-positive ``width``, a ``base`` that is not a finite number > 0.
    """
    if width < 2 or width % 2:
        raise ValueError(f"width is {width}, expected an even head width >= 2")
    if not 0 < base < math.inf:
        raise ValueError(f"base is {base}, expected a finite number > 0")
    return torch.tensor([base ** (-2 * a / width) for a in range(width // 2)], dtype=torch.float64)


def twirl_frequencies(theta: Tensor) -> Tensor:
    """Frequencies ω at which a twirl turns what does not commute with the rotations.

    Args:
        theta: θ, [n].

    Returns:
        [n + 2 n (n - 1)]: 2 θ_a, within a plane, first; then abs(θ_a - θ_b) and then θ_a + θ_b, each over the ordered
        pairs a ≠ b.
    """
    other = ~torch.eye(len(theta), dtype=torch.bool, device=theta.device)
    apart, total = (theta[:, None] - theta).abs()[other], (theta[:, None] + theta)[other]
    return torch.cat((2 * theta, apart, total))


def resonant(frequencies: Tensor) -> Tensor:
    """Whether ω is a multiple of 2π, so that no averaging over positions reduces its mode: bool, [...].

    As no float but 0 is a multiple of 2π, one within 8 roundings of ω counts.
    """
    distance = torch.remainder(frequencies, 2 * math.pi)
    distance = torch.minimum(distance, 2 * math.pi - distance)
    return distance <= 8 * torch.finfo(frequencies.dtype).eps * frequencies.abs()


def twirl_multiplier(frequencies: Tensor, length: int) -> Tensor:
    """m_S(ω) = |sin(S ω / 2)| / (S |sin(ω / 2)|), its limit 1 where the denominator is 0.

    Args:
        frequencies: ω, [...], float64 for the slow ones.
        length: S >= 1.

    Returns:
        [...], in [0, 1].

    Raises:
        ValueError: ``length`` < 1.
    """
    if length < 1:
        raise ValueError(f"length is {length}, expected >= 1")
    below = length * (frequencies / 2).sin().abs()
    ratio = (length * frequencies / 2).sin().abs() / torch.where(below > 0, below, 1.0)
    return torch.where(below > 0, ratio.clamp(max=1.0), 1.0)


def mode_frequencies(theta: Tensor) -> Tensor:
    """ω of every entry in the eigenbasis, φ_j - φ_k with φ = (θ, -θ): [2n, 2n]."""
    phase = torch.cat((theta, -theta))
    return phase[:, None] - phase


def rotary_modes(m: Tensor, interleaved: bool = True) -> Tensor:
    """Real matrices in the rotary eigenbasis, U M Uᴴ; U is unitary, so the energy Σ abs(·)² stays.

    Args:
        m: [..., d, d], d even.
        interleaved: pairs are (2a, 2a+1), as in :func:`plga.ops.rotary.rotate_interleaved`; False: (a, a + d/2).

    Returns:
        Complex [..., d, d]: coordinates z_0 .. z_{d/2-1}, then their conjugates. The diagonal is the commutant.

    Raises:
        ValueError: ``m`` is not a floating [..., d, d] with an even d.
    """
    _check.square("m", m)
    width = m.shape[-1]
    if width % 2:
        raise ValueError(f"m is {tuple(m.shape)}, expected [..., d, d] with an even d")
    half = torch.arange(width // 2, device=m.device)
    first, second = (2 * half, 2 * half + 1) if interleaved else (half, half + width // 2)
    real, imaginary = torch.zeros(2, width, width, dtype=m.dtype, device=m.device)
    for rows, sign in ((half, 1.0), (half + width // 2, -1.0)):
        real[rows, first] = math.sqrt(0.5)
        imaginary[rows, second] = sign * math.sqrt(0.5)
    unitary = torch.complex(real, imaginary)
    return unitary @ m.to(unitary.dtype) @ unitary.mH
