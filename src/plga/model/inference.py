"""Residual units of the metric learner where no gradient is wanted: their arithmetic, without calling their modules.

A learner is some fifty small products. Calling as many modules takes time, and so does memory that was never touched:
here two buffers hold what is inside all SwiGLU blocks. The numbers are those of the modules.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import pad

_LANES = 16  # columns that a processor multiplies at once, in float32


class BlockWeights(NamedTuple):
    """Of a SwiGLU block d → n → d: gate and up as [d, n], down as [n, d], and their biases."""

    gate: Tensor
    gate_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


class UnitWeights(NamedTuple):
    """Of a residual unit: its blocks, and weight, bias and eps of its LayerNorm."""

    blocks: list[BlockWeights]
    scale: Tensor
    shift: Tensor
    eps: float


def may_overwrite() -> bool:
    """Whether tensors may be overwritten: nothing is recorded, traced, transformed or differentiated forwards."""
    return not (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def unit_weights(
    units: nn.ModuleList, kinds: tuple[type[nn.Module], ...], dtype: torch.dtype
) -> list[UnitWeights] | None:
    """Views of the parameters of residual units; None where their modules do more than compute with these.

    Such modules are of another class than ``kinds`` (an adapter), or have hooks or a ``forward`` of their own; or their
    parameters are of another dtype, or of a class of their own (sharded, quantized).

    Args:
        units: each with ``blocks`` of ``gate_proj``, ``up_proj`` and ``down_proj``, and with ``norm``.
        kinds: the classes that these modules are of.
        dtype: that the parameters have to be in.
    """
    if nn.modules.module._has_any_global_hook():
        return None
    weights = []
    for unit in units:
        found: list[Tensor] = []
        for module in _parts(unit):
            if type(module) not in kinds or module._forward_hooks or module._forward_pre_hooks:
                return None
            if "forward" in module.__dict__:
                return None
            for parameter in module._parameters.values():
                if type(parameter) is not nn.Parameter or parameter.dtype != dtype:
                    return None
                found.append(parameter.t())  # of a bias, itself
        *blocks, scale, shift = found
        each = [BlockWeights(*blocks[i : i + 6]) for i in range(0, len(blocks), 6)]
        norm: Any = unit.norm
        weights.append(UnitWeights(each, scale, shift, norm.eps))
    return weights


def _parts(unit: Any) -> Iterator[nn.Module]:
    yield unit
    for block in unit.blocks:
        yield from (block, block.gate_proj, block.up_proj, block.down_proj)
    yield unit.norm


def laid_out(weights: list[UnitWeights]) -> list[UnitWeights]:
    """Copies as products read them fastest: rows of gate and up lie together, filled up with zeros to whole lanes.

    With zeros in gate and up, silu(gate) · up has zeros there, and down adds zeros: no number changes.
    """
    return [unit._replace(blocks=[_block_laid_out(block) for block in unit.blocks]) for unit in weights]


def _block_laid_out(block: BlockWeights) -> BlockWeights:
    fill = -block.gate.shape[1] % _LANES
    gate, gate_bias, up, up_bias = (pad(t, (0, fill)).contiguous() for t in block[:4])
    return BlockWeights(gate, gate_bias, up, up_bias, pad(block.down, (0, 0, 0, fill)).contiguous(), block.down_bias)


def through_units(weights: list[UnitWeights], rows: Tensor) -> Tensor:
    """Rows [..., d] through residual units one after another; see :func:`may_overwrite`."""
    x = rows.reshape(-1, rows.shape[-1])
    gate, up, inner = x.new_empty(0), x.new_empty(0), torch.empty_like(x)
    for unit in weights:
        y = x
        for block in unit.blocks:
            if gate.shape[-1] != block.gate.shape[1]:
                gate, up = (x.new_empty(len(x), block.gate.shape[1]) for _ in range(2))
            torch.addmm(block.gate_bias, y, block.gate, out=gate)
            torch.addmm(block.up_bias, y, block.up, out=up)
            nn.functional.silu(gate, inplace=True).mul_(up)
            y = torch.addmm(block.down_bias, gate, block.down, out=inner)
        x = torch.layer_norm(y.add_(x), unit.scale.shape, unit.scale, unit.shift, unit.eps)
    return x.view(rows.shape)


class KeptWeights:
    """Weights of one learner, laid out once for many passes; anew after one of them was written."""

    def __init__(self) -> None:
        self.weights: list[UnitWeights] | None = None
        self._given: list[Tensor] = []
        self._versions: list[int] = []

    def __deepcopy__(self, memo: Any) -> "KeptWeights":
        return KeptWeights()  # of a cache, whose copy lays them out when it needs them

    def of(
        self, units: nn.ModuleList, kinds: tuple[type[nn.Module], ...], dtype: torch.dtype
    ) -> list[UnitWeights] | None:
        """As :func:`unit_weights`, which is asked, hooks and all, only where nothing is kept."""
        written = self._versions != [t._version for t in self._given]
        if self.weights is not None and self._given[0].dtype == dtype and not written:
            return self.weights
        self.weights = None
        given = unit_weights(units, kinds, dtype)
        if given is None:
            return None
        self._given = [t for unit in given for block in unit.blocks for t in block]
        if any(t.is_inference() for t in self._given):  # whether such a tensor was written cannot be told
            self._given = []
            return given
        self._versions = [t._version for t in self._given]
        self.weights = laid_out(given)
        return self.weights
