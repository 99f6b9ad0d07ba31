"""The mask of a block behind other tokens, as one vector."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import plga.model.modeling as modeling
from plga.model.cache import PldrCache
from plga.model.configuration import PldrConfig
from plga.model.masks import reversed_causal_mask
from plga.model.modeling import PldrForCausalLM


def tiny(**changes: Any) -> PldrForCausalLM:
    torch.manual_seed(0)
    settings = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = PldrConfig(**settings | {"operator": "constant", "constant": "random"} | changes)
    return PldrForCausalLM(config).eval()


@torch.no_grad()
def in_blocks(model: PldrForCausalLM, ids: Tensor, block: int, mask: Tensor | None = None) -> Tensor:
    cache = PldrCache(model.config)
    logits, seen = [], 0
    for part in ids.split(block, dim=1):
        seen += part.shape[1]
        known = None if mask is None else mask[:, :seen]
        logits.append(model(part, attention_mask=known, cache=cache, use_cache=True).logits)
    return torch.cat(logits, dim=1)


@given(st.integers(1, 9), st.integers(0, 9))
def test_rows_in_reverse_order_are_the_lower_right_triangle(new: int, past: int) -> None:
    mask = reversed_causal_mask(new, past, torch.zeros(1, dtype=torch.float64))
    expected = torch.full((new, past + new), -torch.inf, dtype=torch.float64).triu(past + 1)
    assert torch.equal(mask[0, 0].flip(0), expected)
    assert mask.untyped_storage().nbytes() == 8 * (past + 2 * new - 1)


@pytest.mark.parametrize("block", [2, 5, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_give_the_logits_of_one_pass(monkeypatch: pytest.MonkeyPatch, block: int, masked: bool) -> None:
    model, ids, made = tiny(), torch.randint(64, (2, 33)), []

    def watched(new: int, past: int, like: Tensor) -> Tensor:
        made.append((new, past))
        return reversed_causal_mask(new, past, like)

    monkeypatch.setattr(modeling, "reversed_causal_mask", watched)
    mask = torch.ones_like(ids) if masked else None
    torch.testing.assert_close(
        in_blocks(model, ids, block, mask), model(ids, use_cache=False).logits, atol=1e-5, rtol=0
    )
    assert made == [(min(block, 33 - past), past) for past in range(block, 33, block) if 33 - past > 1]


def test_padding_and_other_attention_take_the_mask_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling, "reversed_causal_mask", None)  # calling it would fail
    ids = torch.randint(64, (2, 12))
    padded = torch.ones_like(ids)
    padded[0, :3] = 0
    in_blocks(tiny(), ids, 5, padded)
    eager = tiny(attn_implementation="eager")
    torch.testing.assert_close(in_blocks(eager, ids, 5), eager(ids, use_cache=False).logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_block_takes_no_memory_that_grows_with_what_was_read() -> None:
    model, block = tiny(num_hidden_layers=1, max_position_embeddings=8192), 64
    ids = torch.randint(64, (1, 8192))

    def largest(past: int) -> int:
        cache = PldrCache(model.config, room=past + block)
        for part in ids[:, :past].split(1024, dim=1):
            model(part, cache=cache, use_cache=True, logits_to_keep=1)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            model(ids[:, past : past + block], cache=cache, use_cache=True)
        return max(event.self_cpu_memory_usage for event in seen.events())

    line = 4 * (4096 + 2 * block - 1)
    assert largest(4096) == max(largest(1024), line)


def test_gradients_pass_through() -> None:
    model, ids = tiny(), torch.randint(64, (1, 12))
    cache = PldrCache(model.config)
    with torch.no_grad():
        model(ids[:, :8], cache=cache, use_cache=True)
    embeds = nn.Parameter(model.model.embed_tokens(ids[:, 8:]).detach())
    model(inputs_embeds=embeds, cache=cache, use_cache=True).logits.sum().backward()
    assert embeds.grad is not None and bool(embeds.grad.abs().sum() > 0)
