"""Small models for the model tests: two layers, two heads of width 4, every tensor away from its trivial value."""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor

from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from tests.threads import one_thread

__all__ = ["one_thread"]

VOCABULARY = 64


def tiny_config(**changes: Any) -> PldrConfig:
    """Two layers, two heads of width 4. No end-of-sequence token, so that every generation runs to its length."""
    small = {
        "vocab_size": VOCABULARY,
        "hidden_size": 8,
        "intermediate_size": 10,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "metric_intermediate_size": 5,
        "num_metric_units": 2,
        "max_position_embeddings": 32,
        "eos_token_id": None,
    }
    return PldrConfig(**{**small, **changes})


def scatter(model: torch.nn.Module, seed: int = 0) -> None:
    """Move every tensor a little, so that no bias is zero, no scale is one, and G depends on the input."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(parameter.dtype))


def tiny(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> PldrForCausalLM:
    """A model in evaluation mode; float64 unless a test is about another dtype."""
    torch.manual_seed(seed)
    model = PldrForCausalLM(tiny_config(**changes))
    scatter(model, seed)
    return model.to(dtype).eval()


def constant(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> PldrForCausalLM:
    """The same with a constant operator."""
    return tiny(dtype, seed, **{"operator": "constant", "constant": "random", **changes})


def chunked(dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any) -> PldrForCausalLM:
    """The same with a Gram in chunks of three tokens."""
    return tiny(dtype, seed, **{"gram": "chunked", "gram_chunk": 3, **changes})


def model_for(mode: str, **changes: Any) -> PldrForCausalLM:
    """A model that can generate in ``mode``."""
    return {"constant": constant, "chunked": chunked}.get(mode, tiny)(**changes)


def held(model: PldrForCausalLM, curvature: Tensor) -> PldrForCausalLM:
    """``model`` with its operator replaced by the constant ``curvature`` [L, H, d, d]."""
    config = copy.deepcopy(model.config)
    config.operator, config.constant = "constant", "external"
    other = PldrForCausalLM(config).to(model.dtype).eval()
    other.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for layer, tensor in zip(other.model.layers, curvature, strict=True):
            layer.self_attn.operator.curvature.copy_(tensor)
    return other


@torch.no_grad()
def curvatures(model: PldrForCausalLM, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """G_LM of one pass, [L, B, H, d, d]."""
    outputs = model(ids, attention_mask=mask, use_cache=False, output_deductive=True)
    return torch.stack([layer.curvature.expand(ids.shape[0], -1, -1, -1) for layer in outputs.deductive])


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Random token ids without 0, the padding token: where no mask is given, generate() takes it for padding."""
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over the largest entry of ``theirs``."""
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())


def pad(sequences: list[Tensor], left: bool, filler: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids and mask [B, S] of sequences of different lengths; ``filler`` stands at padding."""
    longest = max(map(len, sequences))
    ids = torch.full((len(sequences), longest), filler)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        where = slice(longest - len(sequence), longest) if left else slice(0, len(sequence))
        ids[row, where], mask[row, where] = sequence, 1
    return ids, mask


@torch.no_grad()
def greedy_by_hand(model: PldrForCausalLM, ids: Tensor, mask: Tensor, steps: int, cache: Any) -> Tensor:
    """Greedy tokens [B, steps] read at the last real token, wherever the padding is."""
    last = torch.arange(ids.shape[1]).expand_as(ids).masked_fill(mask == 0, -1).amax(dim=1)
    logits = model(ids, attention_mask=mask, cache=cache).logits[torch.arange(len(ids)), last]
    chosen = [logits.argmax(dim=-1)]
    for _ in range(steps - 1):
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        chosen.append(model(chosen[-1][:, None], attention_mask=mask, cache=cache).logits[:, -1].argmax(dim=-1))
    return torch.stack(chosen, dim=1)


def source(function: Any) -> str:
    """Source of a function under its decorators."""
    return inspect.getsource(inspect.unwrap(function))
