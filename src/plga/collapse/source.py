"""Where a constant operator comes from: the model itself, a file, or another model."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from plga.collapse.absorb import constants
from plga.collapse.invariance import outputs_over
from plga.collapse.prompts import Prompts
from plga.model.checkpoint import load_model
from plga.model.files import first, read_safetensors_file
from plga.model.modeling import PldrForCausalLM
from plga.model.pickles import load_curvatures
from plga.model.tokenizer import load_tokenizer

FIRST, MEAN = "first", "mean"
TENSOR = "curvature"  # its name in a safetensors file
# Prompts for a tokenizer and a context: another model may read the same texts as other tokens.
Reader = Callable[[PreTrainedTokenizerFast, PldrForCausalLM], Prompts]


def chosen(curvature: Tensor, which: str) -> Tensor:
    """One operator, [L, H, d, d], of those over N inputs, [N, L, H, d, d]: the first one or the mean.

    Raises:
        ValueError: ``which`` is neither.
    """
    if which not in (FIRST, MEAN):
        raise ValueError(f"which is {which!r}, expected {FIRST!r} or {MEAN!r}")
    return curvature[0] if which == FIRST else curvature.mean(dim=0)


def operator_of_file(file: Path) -> Tensor:
    """G_LM, [L, H, d, d], of a ``.safetensors`` with a tensor ``curvature``, or of a published pickled list.

    Raises:
        ValueError: not such a file, or a non-finite entry.
        OSError: missing or unreadable.
    """
    if file.suffix != ".safetensors":
        return load_curvatures(file)
    tensors = read_safetensors_file(file)
    if list(tensors) != [TENSOR] or not tensors[TENSOR].is_floating_point():
        raise ValueError(f"{file}: holds {first(list(tensors)) or 'nothing'}, expected one floating tensor {TENSOR!r}")
    curvature = tensors[TENSOR]
    if curvature.dim() != 4 or curvature.shape[-1] != curvature.shape[-2] or 0 in curvature.shape:
        raise ValueError(f"{file}: {TENSOR} is {list(curvature.shape)}, expected [L, H, d, d]")
    if not bool(torch.isfinite(curvature).all()):
        raise ValueError(f"{file}: {TENSOR} is not finite")
    return curvature


def operator_of_checkpoint(checkpoint: Path, which: str, read: Reader) -> Tensor:
    """G_LM of another checkpoint, [L, H, d, d]: its constant, or what its learned operator gives on the same texts.

    Raises:
        ValueError, OSError: as ``load_model`` and ``load_tokenizer``.
    """
    other = load_model(checkpoint)
    if other.config.operator == "constant":
        return constants(other)
    tokenizer = load_tokenizer(checkpoint, other.config.vocab_size)
    return chosen(outputs_over(other, read(tokenizer, other).calibration).curvature, which)
