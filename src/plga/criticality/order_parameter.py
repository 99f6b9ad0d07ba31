"""The RMS-normalized order parameter: how much an operator fluctuates over inputs (arXiv:2608.10288)."""

from typing import NamedTuple

import torch
from torch import Tensor

from plga.model.modeling import PldrForCausalLM


class Deductive(NamedTuple):
    """Deductive outputs over N inputs: A, A_LM, A_P and G_LM, each [N, L, H, d, d]."""

    generator: Tensor
    metric: Tensor
    potential: Tensor
    curvature: Tensor


@torch.no_grad()
def deductive_outputs(model: PldrForCausalLM, input_ids: Tensor) -> Deductive:
    """Deductive outputs of a learned operator for each row of ``input_ids`` [N, S], none of it padding.

    With a chunked Gram every row has C operators; each of them counts as one of an input of its own, N C in all.

    Raises:
        ValueError: the operator of ``model`` is constant.
    """
    if model.config.operator != "learned":
        raise ValueError("the operator of this model is constant, expected learned: a constant does not fluctuate")
    training = model.training
    model.eval()
    try:
        layers = model.model(input_ids=input_ids, use_cache=False, output_deductive=True).deductive
    finally:
        model.train(training)
    by_input = ([tensor.flatten(0, -4) for tensor in tensors] for tensors in zip(*layers, strict=True))
    return Deductive(*(torch.stack(tensors, dim=1) for tensors in by_input))


def fluctuation(outputs: Tensor) -> float:
    """RMS of x minus its mean over the inputs, over the RMS of x; 0 if x does not depend on the input.

    Args:
        outputs: one deductive output over N inputs, [N, ...]; all other axes are pooled.

    Raises:
        ValueError: fewer than two inputs, or a non-finite entry.
    """
    if outputs.dim() < 2 or outputs.shape[0] < 2:
        raise ValueError(f"outputs is {tuple(outputs.shape)}, expected [N, ...] with N >= 2 inputs")
    if not bool(torch.isfinite(outputs).all()):
        raise ValueError(f"outputs is {tuple(outputs.shape)} with non-finite entries, expected finite entries")
    # In units of the largest entry, so that no square overflows or vanishes; from the first input, so that what does
    # not depend on the input gives exactly 0.
    x = outputs.double()
    x = x / x.abs().amax().clamp(min=torch.finfo(x.dtype).tiny)
    shift = x - x[0]
    norm = x.square().mean().sqrt()
    return float((shift - shift.mean(dim=0)).square().mean().sqrt() / norm) if norm > 0 else 0.0
