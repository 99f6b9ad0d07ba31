"""Back to SDPA: constant operators that commute with the rotary group, absorbed into the query projections.

With R_s the rotation of a query at position s, its score with key t is (y_s R_s) G (k_t R_t)ᵀ / √d. Where G R_s = R_s G
that is (y_s G R_s)(k_t R_t)ᵀ / √d: G acts before the rotation, so it is part of the projection that gives y (theorem,
arXiv:2608.10288, where G commutes exactly). What is left is a plain model of its original class with other weights.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from plga.adopt.classes import detach, is_adopted, operators
from plga.adopt.kernels import OPERATOR
from plga.adopt.query_path import QueryPath, query_paths

VERIFIED = 1e-5  # largest difference of logits, in units of the largest logit where that is above 1


def commutation(model: PreTrainedModel) -> dict[str, Tensor]:
    """How far the operator of each layer is from commuting with its rotations: ‖G R_s - R_s G‖_F / ‖G R_s‖_F, [H].

    Args:
        model: adopted, with constant or low-rank operators.

    Returns:
        By layer, in float64, the largest over positions up to the end of the context; 0 where G commutes; ``inf`` where
        the queries are not one projection, turned: something that is not linear stands between, such as a norm.

    Raises:
        ValueError: ``model`` is not adopted, or its operators are learned.
    """
    wide = _wide_copy(model)
    return _residuals(wide, query_paths(wide))


def absorb(model: PreTrainedModel, tolerance: float = 1e-6) -> PreTrainedModel:
    """A plain model of the class and configuration that ``model`` had before it was adopted, with G in its weights.

    Args:
        model: adopted, with constant or low-rank operators; it is left as it is. Products are taken in float64.
        tolerance: largest :func:`commutation` for which an operator counts as commuting.

    Returns:
        The model, in the dtype and mode of ``model``; its logits have been compared with those of ``model``.

    Raises:
        ValueError: an operator that does not commute, with its layer, head and residual; queries that do not come from
            a projection whose weights can be written; logits that differ by more than 1e-5 in float32; or ``model`` is
            not adopted, or its operators are learned.
    """
    wide = _wide_copy(model)
    paths = query_paths(wide)
    _require_commuting(_residuals(wide, paths), tolerance)
    expected = _logits(wide)
    for name, path in paths.items():
        assert path is not None
        _multiply(path, operators(wide)[name].matrix())
    weights = {name: tensor for name, tensor in wide.state_dict().items() if f".{OPERATOR}." not in name}
    detach(wide)
    difference = float((_logits(wide) - expected).abs().max())
    bound = VERIFIED * max(1.0, float(expected.abs().max()))
    if not difference <= bound:
        raise ValueError(
            f"logits of the absorbed model differ by {difference:.3g}, expected at most {bound:.3g}; the operators stay"
        )
    plain = copy.deepcopy(model)
    detach(plain)
    plain.load_state_dict(weights)
    return plain


def _wide_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in float32 or wider, in evaluation.

    Raises:
        ValueError: it has no operators that are matrices.
    """
    if not is_adopted(model):
        raise ValueError(f"{type(model).__name__} is not adopted, so it has no operators to absorb")
    for operator in operators(model).values():
        operator.matrix()
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError(f"weights of {type(model).__name__} are quantized, expected floating; dequantize them first")
    wide = copy.deepcopy(model).eval()
    return wide if wide.dtype == torch.float64 else wide.float()


def _residuals(model: PreTrainedModel, paths: dict[str, QueryPath | None]) -> dict[str, Tensor]:
    return {name: _residual(operator.matrix().detach(), paths[name]) for name, operator in operators(model).items()}


def _residual(matrix: Tensor, path: QueryPath | None) -> Tensor:
    g = matrix.cpu().double().unsqueeze(1)  # [H, 1, d, d]
    if path is None:
        return torch.full((len(g),), torch.inf, dtype=torch.float64)
    before, after = g @ path.turns, path.turns @ g  # [H, P, d, d]
    size = torch.linalg.matrix_norm(after).clamp(min=torch.finfo(torch.float64).tiny)
    return (torch.linalg.matrix_norm(before - after) / size).amax(dim=1)


def _require_commuting(residuals: dict[str, Tensor], tolerance: float) -> None:
    """Raise ValueError unless every operator commutes, naming the worst."""
    layer = max(residuals, key=lambda name: float(residuals[name].max()))
    head = int(residuals[layer].argmax())
    worst = float(residuals[layer][head])
    if worst == torch.inf:
        raise ValueError(
            f"queries of {layer} are not one projection, rotated: a norm of queries stands between, or the projection "
            "is no Linear or Conv1D; there is no weight that could absorb the operator, so it stays"
        )
    if not worst <= tolerance:
        raise ValueError(
            f"the operator of {layer}, head {head}, does not commute with its rotations: residual {worst:.3g}, "
            f"expected at most {tolerance:g}; the operators stay"
        )


@torch.no_grad()
def _multiply(path: QueryPath, matrix: Tensor) -> None:
    """y G for the rows of the projection that give y."""
    projection: Any = path.projection
    rows = path.rows.to(projection.weight.device)
    g = matrix.double()
    weight = projection.weight.t() if isinstance(projection, Conv1D) else projection.weight  # [W, in], a view
    # Rows of a head are its coordinates: y = W x + b, so y G = (Gᵀ W) x + Gᵀ b.
    weight[rows] = (g.mT @ weight[rows].double()).to(weight.dtype)
    if projection.bias is not None:
        bias = projection.bias
        bias[rows] = (g.mT @ bias[rows].double().unsqueeze(-1)).squeeze(-1).to(bias.dtype)


@torch.no_grad()
def _logits(model: PreTrainedModel) -> Tensor:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(1, 33) % vocabulary
    found: Tensor = model(input_ids=tokens.unsqueeze(0).to(model.device), use_cache=False).logits
    return found
