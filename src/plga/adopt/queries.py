"""How an attention layer makes the queries that its kernel gets, found by differentiating it.

Rotary embeddings come in halves or interleaved pairs, over all coordinates or some, in every layer or not; a projection
may give queries alone or keys and values too, heads in turn or together. All are linear: at position t the query of a
head is y M_t, y being d of the numbers that the projection gives. Which ones, and M_t, are read off its derivatives.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from plga.adopt.kernels import watched

_POSITIONS = 16
_SCALE = 1e3  # of what stands for a projection's output: a clamp would show
_LINEAR = 1e-3  # relative; a query norm misses it by 1


@dataclass(frozen=True)
class QueryMap:
    """Queries of one attention layer as its projection gives them.

    Attributes:
        projection: name of an nn.Linear or Conv1D.
        rows: [H, d], which numbers of its output each head's query is made of.
        turns: M_t of some positions t from 0 to the end of the context, [T, H, d, d], float64: query = y M_t.
    """

    projection: str
    rows: Tensor
    turns: Tensor


class NotLinearError(ValueError):
    """The query is no linear function of what one projection gives."""


def query_maps(model: PreTrainedModel, layers: dict[str, list[int]]) -> dict[str, QueryMap]:
    """How each attention layer makes its queries.

    Args:
        model: in evaluation mode, in float32 or wider.
        layers: attention modules by name: [H, d].

    Raises:
        NotLinearError: a layer whose queries no one projection gives up to a linear map; the layer is named.
    """
    modules = {module: name for name, module in model.named_modules()}
    names = {id(model.get_submodule(name)): name for name in layers}
    generator = torch.Generator().manual_seed(0)
    given: dict[str, dict[nn.Module, Tensor]] = {name: {} for name in layers}
    found: dict[str, QueryMap] = {}
    hooks = []

    def stand_in(projection: nn.Module, output: Any, name: str) -> Any:
        """Numbers at random in place of the output: the last projection before the query is then the one it feels."""
        if not isinstance(output, Tensor):
            return output
        drawn = torch.randn(output.shape, generator=generator, dtype=torch.float32) * _SCALE
        leaf = drawn.to(output).requires_grad_()
        given[name][projection] = leaf
        return leaf.clone()  # for a model that writes into it

    def look(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> None:
        name = names.get(id(module))
        if name is not None:
            found[name] = _query_map(query, given[name], name, generator, modules)

    for name in layers:
        for module in model.get_submodule(name).modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor) and weight.dim() == 2:
                hooks.append(module.register_forward_hook(lambda m, args, output, name=name: stand_in(m, output, name)))
    try:
        with watched(model, look), torch.enable_grad():
            _run(model)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _run(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    context = getattr(config, "max_position_embeddings", None) or 2048
    # From neighbours, which turn the fast pairs, to the whole context, in which the slow ones turn too.
    reach = torch.logspace(0, torch.tensor(float(context)).log10().item(), _POSITIONS) - 1
    positions = reach.round().long().unique().clamp(max=context - 1)[None].to(model.device)
    tokens = torch.ones_like(positions) % model.get_input_embeddings().weight.shape[0]
    model(input_ids=tokens, position_ids=positions, attention_mask=torch.ones_like(tokens), use_cache=False)


def _query_map(
    query: Tensor, given: dict[nn.Module, Tensor], name: str, generator: torch.Generator, modules: dict[nn.Module, str]
) -> QueryMap:
    """The map of one layer, from its query [1, H, T, d] and what stands for the outputs of its projections."""
    _, heads, length, width = query.shape
    weights = torch.randn(query.shape, generator=generator, dtype=torch.float32).to(query)
    leaves = list(given.values())
    felt: tuple[Tensor | None, ...] = ()
    if leaves:
        felt = torch.autograd.grad(query, leaves, weights, retain_graph=True, allow_unused=True)
    known = [(m, y) for m, y, g in zip(given, leaves, felt, strict=True) if g is not None and bool(g.any())]
    if len(known) != 1 or type(known[0][0]) not in (nn.Linear, Conv1D):
        kinds = ", ".join(type(m).__name__ for m, _ in known) or "none"
        raise NotLinearError(
            f"{name} takes its queries from {kinds}, expected one nn.Linear or Conv1D, not clamped, without an adapter"
        )
    projection, output = known[0]

    def pull(cotangent: Tensor) -> Tensor:
        """What each number of the projection adds to <cotangent, query>, [T, n]."""
        return torch.autograd.grad(query, output, cotangent, retain_graph=True)[0].reshape(length, -1)

    # A linear map is its own derivative; of a norm the derivative along its argument vanishes.
    value = (weights * query).sum((0, 1, 3))
    slope = (pull(weights) * output.reshape(length, -1)).sum(-1)
    size = (weights.square().sum((0, 1, 3)) * query.square().sum((0, 1, 3))).sqrt()
    if bool(((value - slope).abs() > _LINEAR * size).any()):
        raise NotLinearError(
            f"{name} does not turn its queries linearly (a query norm?), so the operator, which stands behind that, "
            "cannot go before it"
        )
    rows = torch.empty(heads, width, dtype=torch.long)
    for head in range(heads):
        alone = torch.zeros_like(query)
        alone[:, head] = weights[:, head]
        mine = pull(alone).ne(0).any(0).nonzero().flatten()
        if len(mine) != width:
            raise NotLinearError(f"{name} makes queries of width {width} of {len(mine)} numbers of its projection")
        rows[head] = mine
    if rows.unique().numel() != rows.numel():
        raise NotLinearError(f"{name} makes queries of several heads of the same numbers of its projection")
    turns = query.new_empty(length, heads, width, width, dtype=torch.float64)
    for column in range(width):
        unit = torch.zeros_like(query)
        unit[..., column] = 1.0
        turns[..., column] = pull(unit)[:, rows].double()
    return QueryMap(modules[projection], rows, turns)
