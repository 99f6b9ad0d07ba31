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
        curvature: G_LM, [L, H, d, d], finite in the dtype of ``model``.

    Returns:
        A model with ``config.operator == "constant"``, on the device and in the dtype of ``model``.

    Raises:
        ValueError: ``curvature`` has another shape or a non-finite entry.
    """
    config = copy.deepcopy(model.config)
    config.operator, config.constant = "constant", "external"
    if config.gram == "chunked":  # a constant is built from no Gram
        config.gram, config.operator_mode = "global", "recompute"
    shape = (config.num_hidden_layers, config.num_attention_heads, config.head_dim, config.head_dim)
    if tuple(curvature.shape) != shape:
        raise ValueError(f"curvature is {tuple(curvature.shape)}, expected {shape}: [L, H, d, d] of the model")
    constants = curvature.detach().to(model.device, model.dtype)
    if not bool(torch.isfinite(constants).all()):
        raise ValueError(f"curvature is {shape} with non-finite entries in {model.dtype}, expected finite entries")
    with torch.device("meta"):  # every tensor comes from the model: none is drawn, nor any random number spent
        frozen = type(model)(config)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".operator." not in name}
    operators = [name for name, module in frozen.named_modules() if isinstance(module, ConstantOperator)]
    tensors |= {f"{name}.curvature": g.clone() for name, g in zip(operators, constants, strict=True)}
    frozen.load_state_dict(tensors, assign=True)
    if model.can_generate():
        frozen.generation_config = copy.deepcopy(model.generation_config)
    return frozen.train(model.training)


def freeze_on(model: PldrForCausalLM, input_ids: Tensor) -> tuple[PldrForCausalLM, float]:
    """Freeze a learned operator at its mean over some inputs, and tell how much it fluctuates over them.

    With a chunked Gram, mean and fluctuation are those over all chunks of all inputs.

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
