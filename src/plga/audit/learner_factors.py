"""What a bound through the metric learner is made of: norms of its weights, and extrema over the rows of D visited.

From a row of D to a row of A, A = φ(LN(D)), between any two visited rows of one layer, in Euclidean norms:

    ‖A_i - A'_i‖ <= λ_D Π_u λ_u (1 + Π_b β_b) · ‖D_i - D'_i‖

with λ = (max abs γ) / min √(variance + eps) of the LayerNorm that makes LN(D) and of that of each unit u, the 1 for the
residual, and β_b = ‖W_down‖ (max |silu'| ‖W_gate‖ max |u| + ‖W_up‖ max |silu(g)|) of each SwiGLU block b. Every factor
holds between two visited rows, not only near one: gates on the way from one to the other lie in [-U, U] as theirs do,
U = max |g|, and |silu'| is bounded there; and ‖LN(x) - LN(x')‖ <= (max abs γ) ‖x - x'‖ · 2 / (s + s') with s the
√(variance + eps) of a row (the inequality of Dunkl and Williams).
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from plga.collapse.factors import spectral
from plga.model.operator import LayerNorm, MetricLearner, ResidualUnit, SwiGLU


class LearnerFactors(NamedTuple):
    """Of the learner of one layer, U units of B blocks; float64 on the CPU.

    Attributes:
        gamma: max abs γ of the LayerNorm that makes LN(D), then of that of each unit, [1 + U].
        row_scale: min √(variance + eps) of a row before them, [1 + U].
        gate_weight, up_weight, down_weight: ‖W‖ of each block, [U, B].
        gate_range: max |g|, g what the gate's projection gives, [U, B].
        gate_size: max |silu(g)|, [U, B].
        up_range: max |u|, u what the up projection gives, [U, B].
    """

    gamma: Tensor
    row_scale: Tensor
    gate_weight: Tensor
    up_weight: Tensor
    down_weight: Tensor
    gate_range: Tensor
    gate_size: Tensor
    up_range: Tensor


@torch.no_grad()
def learner_factors(learner: MetricLearner, densities: Tensor) -> LearnerFactors:
    """The factors of one learner, from a pass of a float64 copy of it.

    Args:
        densities: D of every prompt, [N, H, d, d].
    """
    wide = copy.deepcopy(learner).double()
    norms, before, blocks = [wide.input_norm], [densities.double()], []
    x = wide.input_norm(before[0])
    for unit in wide.units:
        assert isinstance(unit, ResidualUnit)
        inner = x
        for block in unit.blocks:
            assert isinstance(block, SwiGLU)
            gate, up = block.gate_proj(inner), block.up_proj(inner)
            weights = [spectral(layer.weight) for layer in (block.gate_proj, block.up_proj, block.down_proj)]
            ranges = [gate.abs().max(), nn.functional.silu(gate).abs().max(), up.abs().max()]
            blocks.append(torch.stack([*weights, *(extreme.cpu() for extreme in ranges)]))
            inner = block(inner)
        norms.append(unit.norm)
        before.append(inner + x)
        x = unit.norm(before[-1])
    of_blocks = torch.stack(blocks).unflatten(0, (len(wide.units), -1)).unbind(dim=-1)  # each [U, B]
    return LearnerFactors(
        torch.stack([norm.weight.abs().max() for norm in norms]).cpu(),
        torch.stack([_row_scale(norm, rows) for norm, rows in zip(norms, before, strict=True)]).cpu(),
        *of_blocks,
    )


def _row_scale(norm: LayerNorm, rows: Tensor) -> Tensor:
    """min √(variance + eps) over rows [..., d]."""
    return (rows.var(dim=-1, correction=0) + norm.eps).sqrt().min()
