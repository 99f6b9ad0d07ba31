"""Items and models that the tests of this package share."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from plga.model.checkpoint import load_model
from plga.model.modeling import PldrForCausalLM
from plga.scoring.items import Item
from tests.training import examples

CASES = ("case0", "case1", "case2")
CONTEXT = 20


def learned(dtype: torch.dtype = torch.float64, **changes: object) -> PldrForCausalLM:
    return examples.model(dtype=dtype, **{"max_position_embeddings": CONTEXT, **changes})


def constant(dtype: torch.dtype = torch.float64, **changes: object) -> PldrForCausalLM:
    return learned(dtype, operator="constant", constant="random", **changes)


def published(folder: Path, name: str, dtype: torch.dtype = torch.float64) -> PldrForCausalLM:
    """``critical`` or ``subcritical`` of the reference data."""
    return load_model(folder / f"{name}.pth", dtype=dtype)


def cases(folder: Path, name: str) -> tuple[list[Item], list[Tensor], list[Tensor]]:
    """The three items of a reference checkpoint, and their expected block and sequential log-probabilities."""
    found = load_file(folder / f"{name}.expected.safetensors")
    items = [
        Item(tuple(found[f"{case}.input_ids"][0].tolist()), tuple(found[f"{case}.continuation"][0].tolist()), case)
        for case in CASES
    ]
    block, sequential = ([found[f"{case}.logprob_{kind}"][0] for case in CASES] for kind in ("block", "sequential"))
    return items, block, sequential


def item(context: int, candidate: int, seed: int = 0, shared: int = 0) -> Item:
    """An item of random tokens; contexts of one ``shared`` and length are equal."""
    generator = torch.Generator().manual_seed(shared)
    given = torch.randint(examples.VOCABULARY, (context,), generator=generator)
    generator.manual_seed(1000 + seed)
    asked = torch.randint(examples.VOCABULARY, (candidate,), generator=generator)
    return Item(tuple(given.tolist()), tuple(asked.tolist()), f"item {shared}.{seed}")


@torch.no_grad()
def by_definition(model: PldrForCausalLM, one: Item, sequential: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities of one item and whether each token is the likeliest, from the protocol's definition."""
    ids, first = torch.tensor([*one.context, *one.candidate]), len(one.context)
    if sequential:
        rows = [model(ids[None, :end], use_cache=False).logits[0, -1] for end in range(first, len(ids))]
        logits = torch.stack(rows)
    else:
        logits = model(ids[None, :-1], use_cache=False).logits[0, first - 1 :]
    targets = ids[first:]
    return logits.log_softmax(dim=-1).gather(-1, targets[:, None])[:, 0], logits.argmax(dim=-1) == targets
