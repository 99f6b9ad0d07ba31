"""A constant operator that commutes with the rotary rotations, absorbed into the query projection.

With R_s the rotation by position s, the score of query s and key t is (q_s R_s) G (k_t R_t)ᵀ / √d. Where G R_s = R_s G
that is (q_s G R_s)(k_t R_t)ᵀ / √d: the operator acts before the rotation, so it is part of the projection that gives q.
What is left is SDPA with other weights (theorem, where G commutes exactly).
"""

import torch
from torch import Tensor

from plga.collapse.freeze import freeze
from plga.model.modeling import PldrAttention, PldrForCausalLM
from plga.model.operator import ConstantOperator
from plga.ops.commutant import commutant_projection, commutant_residual


def constants(model: PldrForCausalLM) -> Tensor:
    """G_LM of a model with a constant operator, [L, H, d, d], a copy.

    Raises:
        ValueError: the operator is learned.
    """
    found = [module.curvature for module in model.modules() if isinstance(module, ConstantOperator)]
    if not found:
        raise ValueError("the operator of this model is learned, expected constant")
    return torch.stack([curvature.detach() for curvature in found])


def residuals(model: PldrForCausalLM, curvature: Tensor) -> Tensor:
    """‖G - Π(G)‖_F / ‖G‖_F of every layer and head, Π the projection onto what commutes: [L, H], float64."""
    return commutant_residual(curvature, model.config.rope_interleaved)


def projected(model: PldrForCausalLM, curvature: Tensor) -> Tensor:
    """The nearest operator that commutes with the rotations of ``model``, [L, H, d, d]."""
    return commutant_projection(curvature, model.config.rope_interleaved)


@torch.no_grad()
def absorb(model: PldrForCausalLM) -> PldrForCausalLM:
    """A copy of ``model`` with G in the query projections, weight and bias, and the identity in its place.

    The part of G that does not commute is dropped: call it where :func:`residuals` are small, or with an operator that
    :func:`projected` gave, for which nothing is dropped.

    Args:
        model: with a constant operator, of any dtype; the products are taken in float64 and rounded once.

    Returns:
        A model whose ``config.constant`` is ``identity``.

    Raises:
        ValueError: the operator is learned, or absorbed weights that are not finite in the dtype of ``model``.
    """
    curvature = projected(model, constants(model).double())
    heads, width = curvature.shape[1:3]
    identity = torch.eye(width).expand(curvature.shape)
    absorbed = freeze(model, identity)
    absorbed.config.constant = "identity"
    attentions = [module for module in absorbed.modules() if isinstance(module, PldrAttention)]
    for attention, g in zip(attentions, curvature, strict=True):
        projection = attention.q_proj
        # Rows of a head are its coordinates: q = W x + b, so q G = (Gᵀ W) x + Gᵀ b.
        weight = projection.weight.double().view(heads, width, -1)
        bias = projection.bias.double().view(heads, width, 1)
        for name, product in (("weight", g.mT @ weight), ("bias", g.mT @ bias)):
            parameter = getattr(projection, name)
            parameter.copy_(product.reshape(parameter.shape))
            if not bool(torch.isfinite(parameter).all()):
                raise ValueError(
                    f"q_proj.{name} of layer {attention.layer_idx} with G absorbed is not finite in {parameter.dtype}"
                )
    return absorbed
