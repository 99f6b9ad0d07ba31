"""From a projection to the queries that meet the keys: what an attention layer does to them, found by looking.

Models lay their projections out and turn their queries in many ways: one projection for queries or for q, k and v at
once, pairs side by side or half a head apart, all coordinates or some, or no rotation at all. Rather than a table of
models, the output of a projection is replaced by known vectors, and what arrives at the attention kernel is read.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from plga.adopt.classes import operators
from plga.adopt.kernels import OPERATOR

# How far, relative to a query, it may be from what a linear path gives, in float32.
_LINEAR = 1e-4


class QueryPath(NamedTuple):
    """How the queries of one layer come from a projection: q_s = c · y_s R_s for each head, y the projection's output.

    Attributes:
        projection: a Linear or Conv1D of the attention module.
        rows: [H, d], the coordinates of its output that are head h.
        turns: c R_s at some positions, [P, d, d], float64.
    """

    projection: nn.Module
    rows: Tensor
    turns: Tensor


def query_paths(model: PreTrainedModel) -> dict[str, QueryPath | None]:
    """The path of each adopted layer, by name; None where queries are no such function of one projection.

    Args:
        model: adopted, in float32 or wider.
    """
    layers = operators(model)
    positions = _positions(model)
    found: dict[str, QueryPath | None] = dict.fromkeys(layers)
    for child in _candidates(model, layers):
        waiting = [name for name, path in found.items() if path is None]
        for name, path in _paths_from(model, child, waiting, positions).items():
            found[name] = path
    return found


def _positions(model: PreTrainedModel) -> Tensor:
    """0, and some up to the end of the context: a slow pair turns visibly only far from the beginning."""
    last = max(2, int(getattr(model.config, "max_position_embeddings", None) or 1024)) - 1
    spread = torch.logspace(0, torch.log10(torch.tensor(float(last))).item(), 12).long()
    return torch.unique(torch.cat((torch.zeros(1, dtype=torch.long), spread)))


def _candidates(model: PreTrainedModel, layers: dict[str, Any]) -> list[str]:
    """Names of children of the attention modules that are projections wide enough to give queries, each once."""
    names: dict[str, None] = {}
    for layer, operator in layers.items():
        for name, child in model.get_submodule(layer).named_children():
            if is_projection(child) and width_of(child) >= operator.heads * operator.width:
                names[name] = None
    return list(names)


def is_projection(module: Any) -> bool:
    """Whether its weights can be read and written: no adapter around it, and not quantized."""
    return type(module) in (nn.Linear, Conv1D) and module.weight.is_floating_point()


def width_of(projection: Any) -> int:
    """Numbers that a projection puts out."""
    return int(projection.nf if isinstance(projection, Conv1D) else projection.out_features)


def _paths_from(model: PreTrainedModel, child: str, names: list[str], positions: Tensor) -> dict[str, QueryPath]:
    paths = {}
    layers = operators(model)
    known = {
        name: width_of(getattr(model.get_submodule(name), child))
        for name in names
        if is_projection(getattr(model.get_submodule(name), child, nn.Identity()))
    }
    if not known:
        return {}
    first = positions[:1]
    generator = torch.Generator().manual_seed(0)
    # Two outputs of different length: what is normalized on the way gives itself away.
    drawn = {
        n: torch.randn(2, 1, w, generator=generator) * torch.tensor([1.0, 3.0]).view(2, 1, 1) for n, w in known.items()
    }
    queries = _queries(model, child, drawn, first)
    for name, output in drawn.items():
        rows = _rows(output[:, 0], queries[name][:, :, 0], layers[name].heads, layers[name].width)
        if rows is not None:
            paths[name] = rows
    basis = {n: _basis(rows, known[n]).unsqueeze(1).expand(-1, len(positions), -1) for n, rows in paths.items()}
    if not basis:
        return {}
    turned = _queries(model, child, basis, positions)
    return {
        name: QueryPath(getattr(model.get_submodule(name), child), rows, turned[name][:, 0].transpose(0, 1).double())
        for name, rows in paths.items()
    }


def _rows(output: Tensor, query: Tensor, heads: int, width: int) -> Tensor | None:
    """Which coordinates of ``output`` [2, W] the queries [2, H, d] of position 0 are, up to one factor; or None."""
    total = output.shape[-1]
    for first in (
        torch.arange(heads) * width,
        torch.arange(heads) * (total // heads),
    ):  # one block, or a head at a time
        rows = first.unsqueeze(1) + torch.arange(width)
        given = output[:, rows].to(query.dtype)
        factor = (given * query).sum() / (given * given).sum()
        if factor != 0 and bool(((query - factor * given).abs() <= _LINEAR * query.abs().max()).all()):
            return rows
    return None


def _basis(rows: Tensor, total: int) -> Tensor:
    """Unit vector j of every head at once, [d, W]."""
    vectors = torch.zeros(rows.shape[1], total)
    for head in rows:
        vectors[torch.arange(rows.shape[1]), head] = 1.0
    return vectors


@torch.no_grad()
def _queries(model: PreTrainedModel, child: str, outputs: dict[str, Tensor], positions: Tensor) -> dict[str, Tensor]:
    """Queries [B, H, P, d] of each layer whose projection puts out ``outputs`` [B, P, W] instead of what it would."""
    batch = max(len(output) for output in outputs.values())
    device = model.get_input_embeddings().weight.device
    tokens = torch.zeros(batch, len(positions), dtype=torch.long, device=device)
    seen: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, output in outputs.items():
            attention = model.get_submodule(name)
            projection = getattr(attention, child)
            padded = torch.cat((output, output.new_zeros(batch - len(output), *output.shape[1:])))
            handle = projection.register_forward_hook(_replacing(padded))
            stack.callback(handle.remove)
            stack.enter_context(_recording(attention, name, seen))
        model(input_ids=tokens, position_ids=positions.to(device).expand(batch, -1), use_cache=False)
    return {name: query[: len(outputs[name])].cpu() for name, query in seen.items()}


def _replacing(output: Tensor) -> Callable[..., Tensor]:
    def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        return output.to(result).view_as(result)

    return hook


@contextmanager
def _recording(attention: nn.Module, name: str, seen: dict[str, Tensor]) -> Iterator[None]:
    """Instead of its operator, an attention module has something that writes its queries down."""
    operator = getattr(attention, OPERATOR)
    recorder = _Recorder(name, seen)
    setattr(attention, OPERATOR, recorder)
    try:
        yield
    finally:
        setattr(attention, OPERATOR, operator)


class _Recorder(nn.Module):
    def __init__(self, name: str, seen: dict[str, Tensor]) -> None:
        super().__init__()
        self.name, self.seen = name, seen

    def forward(self, query: Tensor, attention_mask: Any) -> Tensor:
        self.seen[self.name] = query
        return query
