"""Pickles, read without running anything in them: published ``.pth`` files and pickled lists of G_LM."""

import errno
import io
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def _storage_from_bytes(data: bytes) -> Any:
    """The storage inside a pickled tensor, moved to the CPU; torch wrote it as a pickle of its own."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _bytes(text: str, encoding: str) -> bytes:
    """Bytes in a pickle of an old protocol, which has no opcode for them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError("_codecs.encode")
    return text.encode(encoding)


# What a pickle may call. Each of these only builds a tensor or a container.
_CALLABLES: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch.storage", "_load_from_bytes"): _storage_from_bytes,
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): _bytes,
}


class _ContainersOfTensors(pickle.Unpickler):
    """Unpickler of tensors in lists, tuples and dictionaries; anything else is refused by its name."""

    def find_class(self, module: str, name: str) -> Any:
        wanted = _CALLABLES.get((module, name))
        if wanted is None:
            raise pickle.UnpicklingError(f"{module}.{name}")

        # A function of its own, because a pickle can also set attributes on what it was given.
        def call(*args: Any) -> Any:
            return wanted(*args)

        return call

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent id")


def load_tensors(path: Path) -> Any:
    """Content of a file that ``torch.save`` wrote: tensors, numbers, strings and containers of them.

    Args:
        path: file. Tensors of any device come to the CPU.

    Raises:
        ValueError: truncated, not such a file, or holding anything else, which is named and not run.
        OSError: unreadable.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # the error says all there is to say
            return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file can end in any exception, even in a seek to nowhere
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ValueError(f"{path}: {_why(error)}") from error


def load_curvatures(path: str | Path) -> Tensor:
    """G_LM of every layer from a pickled list (the files published with arXiv:2502.13502).

    Args:
        path: pickle of a list of layers, each a list of tensors whose last one is G_LM, [1, H, d, d] or [H, d, d].
            Tensors pickled on a GPU come to the CPU.

    Returns:
        G_LM, [L, H, d, d].

    Raises:
        ValueError: truncated, not such a list, or a pickle that wants anything but tensors and containers: what it
            wanted is named, and not run.
        OSError: unreadable.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            layers = _ContainersOfTensors(file).load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can end in any exception
        raise ValueError(f"{path}: {_why(error)}") from error

    expected = "a list of layers, each a list that ends in G_LM, [1, H, d, d]"
    if not isinstance(layers, list | tuple) or not layers:
        raise ValueError(f"{path}: holds {type(layers).__name__}, expected {expected}")
    curvatures: list[Tensor] = []
    for index, layer in enumerate(layers):
        curvature = layer[-1] if isinstance(layer, list | tuple) and layer else layer
        if not isinstance(curvature, Tensor) or not curvature.is_floating_point():
            raise ValueError(f"{path}: layer {index} holds {type(curvature).__name__}, expected {expected}")
        if curvature.dim() == 4 and curvature.shape[0] == 1:
            curvature = curvature[0]
        shape = tuple(curvature.shape)
        if len(shape) != 3 or shape[1] != shape[2] or (curvatures and shape != tuple(curvatures[0].shape)):
            raise ValueError(f"{path}: layer {index} is {list(shape)}, expected {expected}, alike in every layer")
        curvatures.append(curvature.detach())
    stacked = torch.stack(curvatures)
    if not bool(torch.isfinite(stacked).all()):
        raise ValueError(f"{path}: G_LM is not finite")
    return stacked


def _why(error: Exception) -> str:
    """One line on why a pickle was not read."""
    text = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
    wanted = re.search(r"GLOBAL ([\w.]+)", text)
    if wanted is None and isinstance(error, pickle.UnpicklingError):
        wanted = re.fullmatch(r"(\w+(?:\.\w+)+|a persistent id)", text)
    if wanted:
        return f"refused, because it wants {wanted[1]}; expected tensors and containers only"
    detail = (text.splitlines() or [type(error).__name__])[0]
    return f"truncated, or not a file of tensors ({detail[:100]})"
