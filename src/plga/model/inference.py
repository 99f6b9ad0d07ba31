"""Residual units of the metric learner where no gradient is wanted: their arithmetic, without calling their modules.

A learner is some fifty small products. Calling as many modules takes time, and so does memory that was never touched:
here two buffers hold what is inside all SwiGLU blocks. The numbers are those of the modules; with weights that are laid
out anew, up to the order in which a product sums.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import pad

_version = attrgetter("_version")
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


def runs_apart(module: nn.Module, device: torch.device) -> bool:
    """Whether ``module`` may run in torch's inference mode unnoticed, on a CPU, where that saves time.

    What is made in that mode cannot be used for gradients later. So nothing may be recorded or transformed, and nobody
    may see it: no module has hooks, a ``forward`` of its own, or parameters of another class (sharded, quantized).
    """
    if device.type != "cpu" or not may_overwrite() or torch.is_autocast_enabled("cpu"):  # that keeps what it casts
        return False
    if nn.modules.module._has_any_global_hook():
        return False
    left: list[nn.Module | None] = [module]
    while left:  # by hand, as modules() takes four times as long, at each token
        part = left.pop()
        if part is None:
            continue
        if part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__:
            return False
        if any(type(parameter) is not nn.Parameter for parameter in part._parameters.values() if parameter is not None):
            return False
        left.extend(part._modules.values())
    return True


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


class BlockProducts(NamedTuple):
    """Of the same block: three products that add their biases by themselves, so that no bias is copied first.

    Rows get a last column of ones, which gate [d + 1, m] and up [d + 1, m] turn into their biases; of silu(gate) · up
    column n is 1, and m - n - 1 columns are 0, which fills up whole lanes; down [m, d] turns the 1 into its bias.
    """

    gate: Tensor
    up: Tensor
    down: Tensor


class UnitProducts(NamedTuple):
    """As :class:`UnitWeights`."""

    blocks: list[BlockProducts]
    scale: Tensor
    shift: Tensor
    eps: float


_ONE = 64.0  # silu(64) rounds to 64 in float64, too; times 1/64, it is 1


def as_products(weights: list[UnitWeights]) -> list[UnitProducts]:
    """Copies of the weights, laid out as products read them fastest."""
    return [UnitProducts([_block_products(b) for b in unit.blocks], *unit[1:]) for unit in weights]


def _block_products(block: BlockWeights) -> BlockProducts:
    inner = block.gate.shape[1]
    fill = _LANES - inner % _LANES  # one column at least
    gate, up = (
        pad(torch.cat((weight, bias.unsqueeze(0))), (0, fill))
        for weight, bias in ((block.gate, block.gate_bias), (block.up, block.up_bias))
    )
    gate[-1, inner], up[-1, inner] = _ONE, 1 / _ONE
    down = pad(torch.cat((block.down, block.down_bias.unsqueeze(0))), (0, 0, 0, fill - 1))
    return BlockProducts(gate.contiguous(), up.contiguous(), down.contiguous())


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


def through_products(products: list[UnitProducts], rows: Tensor) -> Tensor:
    """As :func:`through_units`."""
    width = rows.shape[-1]
    flat = rows.reshape(-1, width)
    result = torch.empty_like(flat)
    mm, silu, layer_norm = torch.mm, nn.functional.silu, torch.layer_norm
    with torch.inference_mode():  # torch does less at each call than in case of gradients
        given, inner = (flat.new_ones(len(flat), width + 1) for _ in range(2))
        x, y = given[:, :-1].copy_(flat), inner[:, :-1]  # the last columns stay
        gate, up = flat.new_empty(2, len(flat), 0)
        for blocks, scale, shift, eps in products:
            entering = given
            for to_gate, to_up, to_down in blocks:
                if gate.shape[1] != to_gate.shape[1]:
                    gate, up = flat.new_empty(2, len(flat), to_gate.shape[1])
                mm(entering, to_gate, out=gate)
                mm(entering, to_up, out=up)
                mm(silu(gate, inplace=True).mul_(up), to_down, out=y)
                entering = inner
            x.copy_(layer_norm(y.add_(x), (width,), scale, shift, eps))
        result.copy_(x)
    return result.view(rows.shape)


class KeptWeights:
    """Weights of one learner, laid out once for many passes; anew after one of them was written."""

    def __init__(self) -> None:
        self.products: list[UnitProducts] | None = None
        self._given: list[Tensor] = []
        self._versions: list[int] = []

    def __deepcopy__(self, memo: Any) -> "KeptWeights":
        return KeptWeights()  # of a cache, whose copy lays them out when it needs them

    def of(
        self, units: nn.ModuleList, kinds: tuple[type[nn.Module], ...], dtype: torch.dtype
    ) -> list[UnitProducts] | None:
        """Of what :func:`unit_weights` gives, which is asked, hooks and all, only where nothing is kept."""
        written = self._versions != list(map(_version, self._given))
        if self.products is not None and self._given[0].dtype == dtype and not written:
            return self.products
        self.products = None
        weights = unit_weights(units, kinds, dtype)
        if weights is None:
            return None
        products = as_products(weights)
        self._given = [t for unit in weights for block in unit.blocks for t in block]
        if any(t.is_inference() for t in self._given):  # whether such a tensor was written cannot be told
            self._given = []
            return products
        self._versions = list(map(_version, self._given))
        self.products = products
        return products
