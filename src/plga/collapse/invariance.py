"""How far the operator of a model is from one that does not depend on the input, by layer and head.

Exact invariance of G is the hypothesis under which inference collapses to generalized SDPA (arXiv:2608.10288,
conditional theorem). What is here measures how far it holds on some prompts, and assumes nothing of others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plga.criticality.order_parameter import SYMBOLS, Deductive, deductive_outputs, fluctuation, fluctuations
from plga.model.modeling import PldrForCausalLM
from plga.ops.spectrum import numerical_rank, singular_values


@dataclass(frozen=True)
class Invariance:
    """What was measured over N inputs.

    Attributes:
        inputs: N.
        fluctuation: of A, A_LM, A_P and G_LM, RMS about the mean over the inputs over RMS, all layers and heads pooled.
        by_head: the same of one layer and head, symbol → [L][H].
        second_singular_value: largest s2 / s1 of A over the inputs, [L][H]; 0: rank one.
        rank: largest numerical rank of A over the inputs, [L][H].
        rows: RMS of the rows of A about their mean over RMS, [L][H]; 0: all rows of a head are one.
        heads: RMS of A about its mean over the heads over RMS, [L]; 0: heads have the same rows.
        layers: RMS of A about its mean over the layers over RMS; 0: layers have the same rows, one layer has.
    """

    inputs: int
    fluctuation: dict[str, float]
    by_head: dict[str, list[list[float]]]
    second_singular_value: list[list[float]]
    rank: list[list[int]]
    rows: list[list[float]]
    heads: list[float]
    layers: float


def outputs_over(model: PldrForCausalLM, prompts: Sequence[Tensor]) -> Deductive:
    """Deductive outputs of each prompt by itself, so that nothing is padded: each tensor [N, L, H, d, d].

    Args:
        model: with a learned operator; with a chunked Gram each chunk counts as an input.
        prompts: rows of token ids, [S_i].

    Raises:
        ValueError: a constant operator.
        FloatingPointError: a non-finite deductive output, naming it, the layer and the heads.
    """
    outputs = [deductive_outputs(model, prompt.unsqueeze(0).to(model.device)) for prompt in prompts]
    return Deductive(*(torch.cat(tensors) for tensors in zip(*outputs, strict=True)))


def invariance(outputs: Deductive) -> Invariance:
    """Measure deductive outputs over N >= 2 inputs.

    Raises:
        ValueError: fewer than two inputs, or a non-finite entry.
    """
    generator = outputs.generator
    count, layers, heads = generator.shape[:3]
    singular = singular_values(generator.double())
    ratio = singular[..., 1] / singular[..., 0].clamp(min=torch.finfo(singular.dtype).tiny)
    return Invariance(
        inputs=count,
        fluctuation=fluctuations(outputs),
        by_head={
            symbol: [[fluctuation(getattr(outputs, name)[:, i, h]) for h in range(heads)] for i in range(layers)]
            for symbol, name in SYMBOLS.items()
        },
        second_singular_value=ratio.amax(dim=0).tolist(),
        rank=numerical_rank(generator).amax(dim=0).tolist(),
        rows=[[_spread(generator[:, i, h], 1) for h in range(heads)] for i in range(layers)],
        heads=[_spread(generator[:, i], 1) for i in range(layers)],
        layers=_spread(generator, 1),
    )


def distance(curvature: Tensor, constant: Tensor) -> float:
    """RMS of G_LM - constant over the RMS of G_LM, inputs and layers and heads pooled.

    Args:
        curvature: G_LM over N inputs, [N, L, H, d, d], finite.
        constant: [L, H, d, d], finite.

    Returns:
        0 where the constant is the operator of every input; infinite where that operator is zero and the constant not.
    """
    g, c = curvature.double(), constant.double()
    # In units of the largest entry, so that no square overflows or vanishes.
    peak = torch.maximum(g.abs().amax(), c.abs().amax()).clamp(min=torch.finfo(g.dtype).tiny)
    apart = float(((g - c) / peak).square().mean().sqrt())
    norm = float((g / peak).square().mean().sqrt())
    return apart / norm if norm else float("inf") if apart else 0.0


def _spread(tensor: Tensor, axis: int) -> float:
    """RMS about the mean over an axis over RMS; 0 where the axis has one entry."""
    moved = tensor.movedim(axis, 0)
    return fluctuation(moved) if len(moved) > 1 else 0.0
