"""From a learned operator to a constant one (arXiv:2608.10288: empirical collapse at inference, a measurement)."""

import copy

import torch
from torch import Tensor

from plga.criticality.order_parameter import deductive_outputs, fluctuation
from plga.model.modeling import PldrForCausalLM
from plga.model.operator import ConstantOperator


def freeze(model: PldrForCausalLM, curvature: Tensor) -> PldrForCausalLM:
    """A copy of ``model`` whose operator is the constant ``curvature``; the metric learner is gone from it.

    Nothing here says that the copy computes the same: that is measured (:mod:`plga.collapse.fidelity`).

    Args:
        model: with any operator.
        curvature: G_LM, [L, H, d, d], finite.

    Returns:
        A model with ``config.operator == "constant"``, on the device and in the dtype of ``model``.

    Raises:
        ValueError: ``curvature`` has another shape or a non-finite entry.
    """
    config = copy.deepcopy(model.config)
    config.operator, config.constant = "constant", "external"
    shape = (config.num_hidden_layers, config.num_attention_heads, config.head_dim, config.head_dim)
    if tuple(curvature.shape) != shape:
        raise ValueError(f"curvature is {tuple(curvature.shape)}, expected {shape}: [L, H, d, d] of the model")
    if not bool(torch.isfinite(curvature).all()):
        raise ValueError(f"curvature is {tuple(curvature.shape)} with non-finite entries, expected finite entries")
    frozen = type(model)(config).to(device=model.device, dtype=model.dtype)
    kept = {name: tensor for name, tensor in model.state_dict().items() if ".operator." not in name}
    frozen.load_state_dict(kept, strict=False)
    operators = [module for module in frozen.modules() if isinstance(module, ConstantOperator)]
    with torch.no_grad():
        for operator, constant in zip(operators, curvature, strict=True):
            operator.curvature.copy_(constant)
    return frozen.train(model.training)


def freeze_on(model: PldrForCausalLM, input_ids: Tensor) -> tuple[PldrForCausalLM, float]:
    """Freeze a learned operator at its mean over some inputs, and tell how much it fluctuates over them.

    Args:
        model: with a learned operator.
        input_ids: [N, S], N >= 2, none of it padding.

    Returns:
        The frozen model, and the fluctuation of G_LM over the inputs: what the mean leaves out.

    Raises:
        ValueError: the operator is constant already, or fewer than two inputs.
    """
    curvature = deductive_outputs(model, input_ids).curvature
    return freeze(model, curvature.mean(dim=0)), fluctuation(curvature)
