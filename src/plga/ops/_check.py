"""Argument checks shared by the operators: one line that names the argument, what it is and what it should be."""

from collections.abc import Sequence

import torch
from torch import Tensor


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def tensor(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is {type(value).__name__}, expected a torch.Tensor")


def floating(name: str, value: Tensor, min_dims: int = 0) -> None:
    """Raise ValueError unless ``value`` is a floating-point tensor with at least ``min_dims`` axes."""
    tensor(name, value)
    if not value.dtype.is_floating_point:
        raise ValueError(f"{name} is {_describe(value)}, expected a floating-point dtype")
    if value.dim() < min_dims:
        raise ValueError(f"{name} is {_describe(value)}, expected at least {min_dims} axes")


def square(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless ``tensor`` is a floating-point [..., d, d]."""
    floating(name, tensor, min_dims=2)
    if tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] == 0:
        raise ValueError(f"{name} is {_describe(tensor)}, expected [..., d, d] with d >= 1")


def same_dtype(**tensors: Tensor) -> None:
    """Raise ValueError unless all the named tensors share one dtype."""
    (first, reference), *others = tensors.items()
    for name, other in others:
        tensor(name, other)
        if other.dtype != reference.dtype:
            raise ValueError(f"{name} is {_describe(other)}, expected the dtype of {first}, {reference.dtype}")


def broadcasts(name: str, tensor: Tensor, shape: Sequence[int], what: str) -> None:
    """Raise ValueError unless ``tensor`` broadcasts to ``shape``, which ``what`` explains."""
    # By hand: the first call of torch.broadcast_shapes imports a second's worth of modules.
    axes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    if tensor.dim() > len(shape) or any(have not in (1, want) for have, want in axes):
        raise ValueError(f"{name} is {_describe(tensor)}, expected {what}: it must broadcast to {tuple(shape)}")


def _has_values(tensor: Tensor) -> bool:
    # A traced, fake or meta tensor has a shape but no numbers to look at.
    return not (torch.compiler.is_compiling() or tensor.is_meta)


def finite(name: str, tensor: Tensor) -> None:
    """Raise ValueError if an entry of ``tensor`` is infinite or NaN."""
    # Extrema are NaN if an entry is, and cost a tenth of torch.isfinite.
    if _has_values(tensor) and tensor.numel() and not all(bool(x.isfinite()) for x in tensor.aminmax()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{name} is {_describe(tensor)} with {bad} non-finite entries, expected finite entries")


def positive(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless every entry of ``tensor`` is finite and strictly positive."""
    finite(name, tensor)
    if _has_values(tensor) and not bool((tensor > 0).all()):
        smallest = float(tensor.min())
        raise ValueError(f"{name} is {_describe(tensor)} with smallest entry {smallest:g}, expected entries > 0")


def at_least(name: str, tensor: Tensor, least: int) -> None:
    """Raise ValueError unless every entry of ``tensor`` is ``least`` or more."""
    if _has_values(tensor) and bool((tensor < least).any()):
        raise ValueError(f"{name} is {int(tensor.min())}, expected at least {least}")
