"""Residual units of the metric learner where no gradient is wanted: their arithmetic, without calling their modules.

A learner is some fifty small products. Calling as many modules takes time, and so does memory that was never touched:
here two buffers hold what is inside all SwiGLU blocks. The numbers are those of the modules.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def may_overwrite() -> bool:
    """Whether tensors may be overwritten: nothing is recorded, traced, transformed or differentiated forwards."""
    return not (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def plain_parameters(unit: nn.Module, kinds: tuple[type[nn.Module], ...], dtype: torch.dtype) -> list[Tensor] | None:
    """Parameters of a residual unit in the order of its arithmetic; None where its modules do more than use them.

    Such modules are of another class than ``kinds`` (an adapter), or have hooks or a ``forward`` of their own; or their
    parameters are of another dtype, or of a class of their own (sharded, quantized).
    """
    found: list[Tensor] = []
    for module in _parts(unit):
        if type(module) not in kinds or module._forward_hooks or module._forward_pre_hooks:
            return None
        if "forward" in module.__dict__:
            return None
        for parameter in module._parameters.values():
            if type(parameter) is not nn.Parameter or parameter.dtype != dtype:
                return None
            found.append(parameter)
    return found


def _parts(unit: Any) -> Iterator[nn.Module]:
    yield unit
    for block in unit.blocks:
        yield from (block, block.gate_proj, block.up_proj, block.down_proj)
    yield unit.norm


def through_units(units: nn.ModuleList, kinds: tuple[type[nn.Module], ...], rows: Tensor) -> Tensor | None:
    """Rows [..., d] through residual units one after another; None where their modules have to be called.

    Args:
        units: each with ``blocks`` of ``gate_proj``, ``up_proj`` and ``down_proj``, and with ``norm``.
        kinds: the classes that these modules are of.
        rows: the input; it may be overwritten.
    """
    if nn.modules.module._has_any_global_hook():
        return None
    weights: list[tuple[list[Tensor], Any]] = []
    for unit in units:
        found = plain_parameters(unit, kinds, rows.dtype)
        if found is None:
            return None
        weights.append((found, unit.norm))
    x = rows.reshape(-1, rows.shape[-1])
    gate, up, inner = x.new_empty(0), x.new_empty(0), torch.empty_like(x)
    for (*blocks, scale, shift), norm in weights:
        y = x
        for i in range(0, len(blocks), 6):
            gate_weight, gate_bias, up_weight, up_bias, down_weight, down_bias = blocks[i : i + 6]
            if gate.shape[-1] != len(gate_weight):
                gate, up = (x.new_empty(len(x), len(gate_weight)) for _ in range(2))
            torch.addmm(gate_bias, y, gate_weight.t(), out=gate)
            torch.addmm(up_bias, y, up_weight.t(), out=up)
            nn.functional.silu(gate, inplace=True).mul_(up)
            y = torch.addmm(down_bias, gate, down_weight.t(), out=inner)
        x = nn.functional.layer_norm(y.add_(x), scale.shape, scale, shift, norm.eps)
    return x.view(rows.shape)
