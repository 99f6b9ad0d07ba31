"""Random tensors for the operator tests: Hypothesis draws shapes, dtypes and seeds, and the seed makes the numbers."""

import torch
from hypothesis import strategies as st
from torch import Tensor

LEADS = st.lists(st.integers(1, 3), max_size=3).map(tuple)  # any leading axes, none among them
WIDTHS = st.integers(1, 6)
SEEDS = st.integers(0, 2**31 - 1)
DTYPES = st.sampled_from([torch.float32, torch.float64])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, the same (up to rounding) in every dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def positive(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, spread: float = 1.0) -> Tensor:
    """exp of ``spread`` times standard normal numbers."""
    return (spread * normal(*shape, seed=seed)).exp().to(dtype)


def close(actual: Tensor, expected: Tensor, roundings: float = 100.0) -> None:
    """Equal shape, and within so many roundings (of the dtype of ``actual``) of the largest expected entry."""
    bound = roundings * torch.finfo(actual.dtype).eps * float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=bound)
