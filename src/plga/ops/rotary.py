"""Rotary embedding of queries and keys, in both published layouts (arXiv:2104.09864; arXiv:2410.16703)."""

import torch
from torch import Tensor

from plga.ops import _check

COMPLEX = {  # what torch's complex numbers are made of on every device
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


def inverse_frequencies(width: int, base: float = 10000.0, device: torch.device | None = None) -> Tensor:
    """θ_a = base^(-2a / d) for a = 0 .. d/2 - 1, float32 [d/2], in radians a position.

    Args:
        width: d, even and >= 2.
        base: > 0.
        device: where to put it.

    Raises:
        ValueError: an odd or non-positive ``width``, a non-positive ``base``.
    """
    if width < 2 or width % 2:
        raise ValueError(f"width is {width}, expected an even head width >= 2")
    if not base > 0:
        raise ValueError(f"base is {base}, expected a number > 0")
    steps = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    return 1.0 / base ** (steps / width)


def tables(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every angle, computed in float32 as published and then cast.

    Args:
        positions: integer positions, [..., S].
        frequencies: θ, [d/2], from :func:`inverse_frequencies`.
        dtype: of the result.

    Returns:
        cos and sin, each [..., S, d/2].
    """
    angles = positions.unsqueeze(-1).float() * frequencies.float()
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _check_rotation(x: Tensor, cos: Tensor, sin: Tensor, check_values: bool) -> None:
    _check.floating("x", x, min_dims=2)
    if x.shape[-1] % 2:
        raise ValueError(f"x is {tuple(x.shape)}, expected [..., S, d] with an even d")
    for name, table in (("cos", cos), ("sin", sin)):
        _check.floating(name, table)
        _check.broadcasts(name, table, (*x.shape[:-1], x.shape[-1] // 2), "[..., S, d/2]")
    if check_values:
        for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
            _check.finite(name, tensor)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor, check_values: bool = True) -> Tensor:
    """Rotate the pairs (x_2a, x_2a+1) by their angles: the published ``reference_rope: true``.

    Args:
        x: [..., S, d], d even.
        cos, sin: broadcastable to [..., S, d/2], from :func:`tables`.
        check_values: also look for non-finite entries (on an accelerator this waits for it).

    Returns:
        [..., S, d].

    Raises:
        ValueError: shapes that do not fit, or a non-finite entry.
    """
    _check_rotation(x, cos, sin, check_values)
    if x.dtype == cos.dtype == sin.dtype and x.dtype in COMPLEX and not torch.compiler.is_compiling():
        return turn_pairs(x, *turns(cos, sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


def turns(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """cos and i·sin as complex numbers, for :func:`turn_pairs`; both in a dtype of ``COMPLEX``, shapes kept."""
    zero = torch.zeros_like(cos)
    return torch.complex(cos, zero), torch.complex(zero, sin)


def turn_pairs(x: Tensor, cos: Tensor, i_sin: Tensor) -> Tensor:
    """:func:`rotate_interleaved` with tables from :func:`turns`, which many calls can share; nothing is checked.

    The pairs lie in memory as complex numbers do, and passes over those are several times faster than over every other
    number. Two products, not one with cos + i sin: a product with 0 is exact, so each entry has the roundings of the
    real formula, whether or not the machine fuses multiplication and addition.

    Args:
        x: [..., S, d], of the dtype that the tables were made of.
        cos, i_sin: complex, broadcastable to [..., S, d/2].
    """
    if not x.is_contiguous() or x.storage_offset() % 2:
        x = x.clone(memory_format=torch.contiguous_format)
    pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
    return torch.view_as_real((pairs * cos).add_(pairs * i_sin)).view(x.shape)


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor, check_values: bool = True) -> Tensor:
    """Rotate the pairs (x_a, x_{a+d/2}) by their angles: the published ``reference_rope: false``.

    Args, returns and errors as for :func:`rotate_interleaved`.
    """
    _check_rotation(x, cos, sin, check_values)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
