"""Order parameters: how far an operator still depends on the input (arXiv:2603.23539; arXiv:2608.10288).

Symbols: x¹ and x² are one deductive output in two runs over the same N prompts, xᶜ what a cache keeps of the prompts;
each is [N, ...], and ⟨·⟩ is the mean over all its entries, inputs and layers and heads pooled.

| name | what it is |
|---|---|
| RMSE_12 / abs(mean) | √⟨(x¹ - x²)²⟩ / abs⟨x¹⟩, published |
| RMSE_1C / abs(mean) | √⟨(x¹ - xᶜ)²⟩ / abs⟨x¹⟩, published |
| RMS-normalized | √⟨(x¹ - x̄)²⟩ / √⟨x¹²⟩, x̄ the mean over the N inputs; in [0, 1] |
| symmetrized signed | ⟨x¹ - x²⟩ / ⟨(abs(x¹) + abs(x²)) / 2⟩; in [-2, 2], changes its sign when the runs change places |

The source leaves open over which run its mean is taken and what exactly is pooled; both are chosen here as written
above, and so is the whole of the symmetrized one. A published statistic divides by a mean in which entries of either
sign cancel, so it may exceed any bound; the other two cannot.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from plga.model.modeling import PldrForCausalLM

SYMBOLS = {"A": "generator", "A_LM": "metric", "A_P": "potential", "G_LM": "curvature"}


class Deductive(NamedTuple):
    """Deductive outputs over N inputs: A, A_LM, A_P and G_LM, each [N, L, H, d, d]."""

    generator: Tensor
    metric: Tensor
    potential: Tensor
    curvature: Tensor


class OrderParameter(NamedTuple):
    """The statistics of one deductive output; see the head of this file."""

    rmse_12_over_abs_mean: float
    rmse_1c_over_abs_mean: float
    rms_normalized: float
    symmetrized_signed: float


@torch.no_grad()
def deductive_outputs(model: PldrForCausalLM, input_ids: Tensor, attention_mask: Tensor | None = None) -> Deductive:
    """Deductive outputs of a learned operator for each row of ``input_ids`` [N, S].

    Args:
        model: in any mode, which is left as it was.
        input_ids: [N, S].
        attention_mask: [N, S], 1 at real tokens; None: all are.

    With a chunked Gram every row has C operators; each of them counts as one of an input of its own, N C in all.

    Raises:
        ValueError: the operator of ``model`` is constant.
    """
    if model.config.operator != "learned":
        raise ValueError("the operator of this model is constant, expected learned: a constant does not fluctuate")
    training = model.training
    model.eval()
    try:
        # The root module, because a sharded model gathers its parameters in the forward pass of the root.
        layers = model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            use_cache=False,
            logits_to_keep=1,
            output_deductive=True,
        ).deductive
    finally:
        model.train(training)
    by_input = ([tensor.flatten(0, -4) for tensor in tensors] for tensors in zip(*layers, strict=True))
    return Deductive(*(torch.stack(tensors, dim=1) for tensors in by_input))


def order_parameter(run_1: Tensor, run_2: Tensor, cached: Tensor) -> OrderParameter:
    """Every statistic of one deductive output.

    Args:
        run_1, run_2: of two runs over the same N >= 2 prompts, [N, ...].
        cached: what a cache keeps of these prompts, [N, ...].

    Raises:
        ValueError: unequal shapes, fewer than two inputs, or a non-finite entry.
    """
    return OrderParameter(
        rmse_12_over_abs_mean=rmse_over_abs_mean(run_1, run_2),
        rmse_1c_over_abs_mean=rmse_over_abs_mean(run_1, cached),
        rms_normalized=fluctuation(run_1),
        symmetrized_signed=symmetrized_signed(run_1, run_2),
    )


def rmse_over_abs_mean(run: Tensor, other: Tensor) -> float:
    """√⟨(x - y)²⟩ / abs⟨x⟩, x being ``run``; 0 for equal runs, infinite where they differ and ⟨x⟩ = 0.

    Args:
        run, other: [N, ...], alike.

    Raises:
        ValueError: unequal shapes, or a non-finite entry.
    """
    x, y = _in_units_of_the_largest(run, other)
    distance = float((x - y).square().mean().sqrt())
    mean = abs(float(x.mean()))
    return distance / mean if mean else math.inf if distance else 0.0


def symmetrized_signed(run_1: Tensor, run_2: Tensor) -> float:
    """⟨x¹ - x²⟩ / ⟨(abs(x¹) + abs(x²)) / 2⟩; 0 where both are zero.

    Args:
        run_1, run_2: [N, ...], alike.

    Raises:
        ValueError: unequal shapes, or a non-finite entry.
    """
    x, y = _in_units_of_the_largest(run_1, run_2)
    size = float((x.abs().mean() + y.abs().mean()) / 2)
    return float((x - y).mean()) / size if size else 0.0


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


def fluctuations(outputs: Deductive) -> dict[str, float]:
    """:func:`fluctuation` of each deductive output, by its symbol: A, A_LM, A_P, G_LM."""
    return {symbol: fluctuation(getattr(outputs, name)) for symbol, name in SYMBOLS.items()}


def _in_units_of_the_largest(run: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both runs in float64 over the largest magnitude of either, so that no square overflows or vanishes."""
    if run.shape != other.shape or not run.numel():
        raise ValueError(f"the runs are {tuple(run.shape)} and {tuple(other.shape)}, expected two alike, not empty")
    for name, tensor in (("one run", run), ("the other run", other)):
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} is {tuple(tensor.shape)} with non-finite entries, expected finite entries")
    x, y = run.double(), other.double()
    peak = torch.maximum(x.abs().amax(), y.abs().amax()).clamp(min=torch.finfo(x.dtype).tiny)
    return x / peak, y / peak
