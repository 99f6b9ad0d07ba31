"""Back to SDPA: operators that commute with the rotary rotations, absorbed into the query projections.

The query of a head at position t is y M_t, y being what the projection gives and M_t what the layer does to it, the
rotation R_t above all: M_t = M_0 R_t. With an operator G it is y M_0 R_t G. Where G R_t = R_t G that is y K M_t with
K = M_0 G M_0⁻¹, whatever t, so K is part of the projection (theorem, where G commutes exactly).
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from plga.adopt.classes import detach, is_adopted, operators
from plga.adopt.queries import NotLinearError, QueryMap, query_maps

_PROBE_TOKENS = 32


@torch.no_grad()
def absorb(model: PreTrainedModel, tolerance: float = 1e-5) -> PreTrainedModel:
    """A plain model of the class that ``model`` was adopted from, which computes what ``model`` computes.

    All of its operators are absorbed or none. Products are taken in float64 and rounded once. In float32, whatever the
    dtype of the weights, the logits of both models are compared on 32 tokens.

    Args:
        model: adopted, with constant or low-rank operators. It stays as it is.
        tolerance: largest ‖R_t G - G R_t‖_F / ‖G‖_F of any head, over positions of the whole context, and largest
            difference of logits, in units of the largest logit where that is above 1.

    Returns:
        The plain model, with the dtypes, device, configuration and settings of generation of ``model``.

    Raises:
        ValueError: ``model`` is not adopted, is quantized, or has an adapter; its operators are learned, not finite, or
            do not commute (the residual and the worst layer and head are named); its queries are not linear in a
            projection; the projection is shared; the logits or weights differ or are not finite.
    """
    if not is_adopted(model):
        raise ValueError(f"{type(model).__name__} is not adopted, so there is nothing to absorb")
    if model.config.operator_settings.kind == "learned":
        raise ValueError(
            f"{type(model).__name__} has learned operators, which differ from input to input and cannot be absorbed; "
            "expected constant or low_rank"
        )
    if getattr(model, "is_quantized", False):
        raise ValueError(f"{type(model).__name__} is quantized, so no product can be written into its projections")
    name = type(model).__name__
    wide = copy.deepcopy(model).eval()
    for tensor in (*wide.parameters(), *wide.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.promote_types(tensor.dtype, torch.float32))
    matrices = {layer: operator.matrix().double() for layer, operator in operators(wide).items()}
    try:
        maps = query_maps(wide, model.config.plga_layers)
        _require_own(wide, maps)
    except NotLinearError as error:
        raise ValueError(f"{name} keeps its operators: {error}") from error
    _require_commuting(name, matrices, maps, tolerance)
    tokens = _probe(model)
    expected = _logits(wide, tokens)
    largest = float(expected.abs().max())
    absorbed = _absorbed(wide, matrices, maps)
    difference = float((_logits(absorbed, tokens) - expected).abs().max())
    if not difference <= tolerance * max(1.0, largest):
        raise ValueError(
            f"{name} keeps its operators: without them logits change by {difference:.3g} (the largest is "
            f"{largest:.3g}), expected at most {tolerance:g}"
        )
    if _dtypes(absorbed).items() <= _dtypes(model).items():
        return absorbed.train(model.training)
    return _absorbed(copy.deepcopy(model), matrices, maps)


def _require_own(model: PreTrainedModel, maps: dict[str, QueryMap]) -> None:
    """Raise NotLinearError where a projection is that of something else too."""
    owners: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), set()).add(name)
    for name, found in maps.items():
        shared = owners[id(_projection(model, found).weight)] - {f"{found.projection}.weight"}
        if shared:
            raise NotLinearError(f"the projection of {name} shares its weight with {min(shared)}")


def _require_commuting(name: str, matrices: dict[str, Tensor], maps: dict[str, QueryMap], tolerance: float) -> None:
    """Raise ValueError unless every operator is finite and commutes with the rotations of its layer."""
    for layer, matrix in matrices.items():
        if not bool(matrix.isfinite().all()):
            raise ValueError(f"{name} keeps its operators: that of {layer} has entries that are not finite")
    residuals = {layer: _residual(matrix, maps[layer].turns) for layer, matrix in matrices.items()}
    many = [(layer, head) for layer, found in residuals.items() for head, r in enumerate(found) if not r <= tolerance]
    if many:
        layer, head = max(many, key=lambda at: residuals[at[0]][at[1]])
        heads = sum(len(found) for found in residuals.values())
        raise ValueError(
            f"{name} keeps its operators: {len(many)} of {heads} heads do not commute with the rotations, the worst is "
            f"head {head} of {layer} with a residual of {residuals[layer][head]:.3g}, expected at most {tolerance:g}"
        )


def _residual(matrix: Tensor, turns: Tensor) -> list[float]:
    """The largest ‖R_t G - G R_t‖_F / ‖G‖_F of each head, R_t = M_0⁻¹ M_t; [H, d, d] and [T, H, d, d] → H numbers."""
    rotations = torch.linalg.solve(turns[0], turns)
    distance = torch.linalg.matrix_norm(rotations @ matrix - matrix @ rotations).amax(0)
    size = torch.linalg.matrix_norm(matrix)
    found: list[float] = (distance / size).where(size > 0, 0.0).nan_to_num(nan=math.inf).tolist()  # 0 commutes
    return found


def _absorbed(model: PreTrainedModel, matrices: dict[str, Tensor], maps: dict[str, QueryMap]) -> PreTrainedModel:
    """``model`` itself, of its original class, with operators in its projections."""
    detach(model)
    for layer, found in maps.items():
        _write(_projection(model, found), found, matrices[layer])
    return model.requires_grad_(True)


def _projection(model: PreTrainedModel, found: QueryMap) -> Any:
    return model.get_submodule(found.projection)


def _write(projection: Any, found: QueryMap, matrix: Tensor) -> None:
    """y K in place of y for the numbers of each head, K = M_0 G M_0⁻¹."""
    first = found.turns[0]
    factor = torch.linalg.solve(first, first @ matrix, left=False)
    weight = projection.weight
    rows = found.rows.to(weight.device)
    for parameter in (weight, projection.bias):
        if parameter is None:
            continue
        # Of a Linear a row gives a number, of a Conv1D a column; numbers last.
        numbers = parameter if parameter.dim() == 1 or isinstance(projection, Conv1D) else parameter.mT
        products = numbers[..., rows].double().unsqueeze(-2) @ factor.to(weight.device)
        numbers[..., rows] = products.squeeze(-2).to(parameter.dtype)
        if not bool(parameter.isfinite().all()):
            raise ValueError(f"a query projection with its operator absorbed is not finite in {parameter.dtype}")


def _dtypes(model: PreTrainedModel) -> dict[str, torch.dtype]:
    return {name: parameter.dtype for name, parameter in model.named_parameters()}


def _probe(model: PreTrainedModel) -> Tensor:
    """Tokens of the vocabulary at random, [1, S]."""
    embedding: Any = model.get_input_embeddings()
    generator = torch.Generator().manual_seed(0)
    config: Any = model.config.get_text_config()
    length = min(_PROBE_TOKENS, getattr(config, "max_position_embeddings", None) or _PROBE_TOKENS)
    return torch.randint(embedding.weight.shape[0], (1, length), generator=generator).to(embedding.weight.device)


def _logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits
