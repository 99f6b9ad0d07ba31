"""Learned operators kept beside a cache: of the prompt, for its rows, wherever the cache goes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache, ZambaConfig, ZambaForCausalLM
from transformers.modeling_utils import PreTrainedModel

import plga
from plga.adopt.classes import operators
from tests.adopt.conftest import bend, equal, everything, padded, relative, small, tokens


def learned(name: str = "llama", dtype: torch.dtype = torch.float64, kernel: str = "sdpa") -> PreTrainedModel:
    return bend(plga.adopt(small(name, kernel, dtype), "learned", metric_units=1), by=0.3)


def kept(cache: Any) -> Tensor:
    return torch.stack([cache.operators[index] for index in sorted(cache.operators)])


@torch.no_grad()
def curvatures(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Tensor:
    """G_LM of one pass without a cache, [L, B, H, d, d]."""
    found: list[Tensor] = []
    hooks = [
        operator.generator.register_forward_hook(lambda _m, _i, outputs: found.append(outputs.curvature))
        for operator in operators(model).values()
    ]
    model(ids, use_cache=False, **inputs)
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


@torch.no_grad()
def held(model: PreTrainedModel, matrices: Tensor, name: str = "llama") -> PreTrainedModel:
    """The model with constants [L, H, d, d] for its operators."""
    other = plga.adopt(small(name, "sdpa", torch.float64))
    for operator, matrix in zip(operators(other).values(), matrices, strict=True):
        operator.curvature.copy_(matrix)
    return other


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_decoding_goes_on_with_the_operator_of_the_prompt(name: str) -> None:
    ours = learned(name)
    ids = tokens(1, 14)
    first = ours(ids[:, :9])
    assert torch.equal(kept(first.past_key_values), curvatures(ours, ids[:, :9]))
    assert relative(kept(first.past_key_values), curvatures(ours, ids)) > 1e-4
    cache, logits = first.past_key_values, [first.logits]
    for position in range(9, 14):
        logits.append(ours(ids[:, position : position + 1], past_key_values=cache).logits)
    theirs = held(ours, kept(cache)[:, 0], name)
    assert relative(torch.cat(logits, dim=1), theirs(ids, use_cache=False).logits) < 1e-6
    # And several tokens at once.
    again = ours(ids[:, :9]).past_key_values
    assert relative(ours(ids[:, 9:], past_key_values=again).logits, torch.cat(logits[1:], dim=1)) < 1e-6


@torch.no_grad()
def test_rows_of_a_padded_batch_keep_their_own_operators() -> None:
    ours = learned(dtype=torch.float32)
    rows = [tokens(6), tokens(11, seed=1)]
    ids, mask = padded(rows)
    positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)  # as generate() does: the rotation is part of the queries
    both = kept(ours(ids, attention_mask=mask, position_ids=positions).past_key_values)
    for row, sequence in enumerate(rows):
        alone = kept(ours(sequence[None]).past_key_values)
        assert relative(both[:, row], alone[:, 0]) < 1e-5
    assert relative(both[:, 0], both[:, 1]) > 1e-3
    options = {"max_new_tokens": 5, "do_sample": False}
    together = ours.generate(ids, attention_mask=mask, **options)[:, 11:]
    for row, sequence in enumerate(rows):
        assert torch.equal(together[row], ours.generate(sequence[None], **options)[0, len(sequence) :])


@torch.no_grad()
def test_beams_of_rows_keep_the_operators_of_their_rows() -> None:
    ours = learned()
    rows = [tokens(9), tokens(9, seed=1)]
    options = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False, "num_return_sequences": 2}
    together = ours.generate(torch.stack(rows), **options)
    alone = torch.cat([ours.generate(row[None], **options) for row in rows])
    assert torch.equal(together, alone)


@torch.no_grad()
def test_operators_go_with_the_rows_of_a_cache() -> None:
    ours = learned()
    cache = ours(torch.stack([tokens(7), tokens(7, seed=1), tokens(7, seed=2)])).past_key_values
    before = kept(cache)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    assert torch.equal(kept(cache), before[:, [2, 0, 0]])
    cache.batch_repeat_interleave(2)
    assert torch.equal(kept(cache), before[:, [2, 2, 0, 0, 0, 0]])
    cache.batch_select_indices(torch.tensor([1, 2]))
    assert torch.equal(kept(cache), before[:, [2, 0]])
    assert cache.get_seq_length() == 7
    next_ = ours(tokens(2, 1), past_key_values=cache).logits
    assert next_.shape == (2, 1, 97)


@torch.no_grad()
def test_a_cropped_cache_keeps_them_until_nothing_is_left() -> None:
    ours = learned()
    ids = tokens(1, 9)
    cache = ours(ids).past_key_values
    before = kept(cache)
    want = ours(ids[:, 7:], past_key_values=copy.deepcopy(_cropped(ours, ids, cache, 7))).logits
    cache.crop(-2)
    assert torch.equal(kept(cache), before)
    assert relative(ours(ids[:, 7:], past_key_values=cache).logits, want) < 1e-12
    cache.crop(-cache.get_seq_length())
    assert cache.operators == {}


def _cropped(model: PreTrainedModel, ids: Tensor, cache: Any, length: int) -> Any:
    other = copy.deepcopy(cache)
    other.crop(length - len(ids[0]))
    return other


@torch.no_grad()
def test_a_reset_cache_begins_anew() -> None:
    ours = learned(dtype=torch.float32)
    cache = StaticCache(config=ours.config, max_cache_len=16)
    first, second = tokens(1, 9), tokens(1, 6, seed=1)
    ours(first, past_key_values=cache)
    cache.reset()
    assert cache.operators == {}
    found = ours(second, past_key_values=cache).logits
    assert relative(found, ours(second).logits) < 1e-5


@torch.no_grad()
def test_a_copy_of_a_filled_cache_goes_its_own_way() -> None:
    ours = learned()
    cache = ours(tokens(1, 9)).past_key_values
    other = copy.deepcopy(cache)
    before = kept(cache)
    want = ours(tokens(1, 2, seed=4), past_key_values=cache).logits
    assert torch.equal(ours(tokens(1, 2, seed=4), past_key_values=other).logits, want)
    other.reset()
    assert torch.equal(kept(cache), before)


@torch.no_grad()
def test_a_cache_that_another_model_filled_is_refused() -> None:
    model = small("llama", "sdpa")
    cache = model(tokens(1, 5)).past_key_values
    plga.adopt(model, "learned", metric_units=1)
    with pytest.raises(
        ValueError, match=r"^the cache holds tokens but no operator of theirs, expected one that this ad"
    ):
        model(tokens(1, 1), past_key_values=cache)
    # Nothing stays behind.
    assert all(operator.cache is None for operator in operators(model).values())
    assert model(tokens(1, 5), past_key_values=DynamicCache()).logits.shape == (1, 5, 97)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["constant", "low_rank"])
def test_an_operator_of_one_matrix_reads_a_cache_of_the_original(kind: str) -> None:
    model = small("llama", "sdpa", torch.float32)
    ids = tokens(1, 8)
    cache = model(ids[:, :5]).past_key_values
    want = model(ids[:, 5:], past_key_values=copy.deepcopy(cache)).logits
    plga.adopt(model, kind)
    assert torch.equal(model(ids[:, 5:], past_key_values=cache).logits, want)


@torch.no_grad()
def test_the_operator_lets_go_of_its_cache_after_each_call_and_after_an_error() -> None:
    ours = learned()
    ours(tokens(1, 5))
    assert all(operator.cache is None for operator in operators(ours).values())
    next(iter(operators(ours).values())).generator.coupling_bias.data.fill_(float("nan"))
    with pytest.raises(FloatingPointError):
        ours(tokens(1, 5))
    assert all(operator.cache is None for operator in operators(ours).values())


def test_a_prompt_in_chunks_is_refused() -> None:
    ours = learned()
    with pytest.raises(
        ValueError, match=r"^prefill_chunk_size is 4, expected None: a learned operator is built from the"
    ):
        ours.generate(tokens(1, 9), max_new_tokens=2, prefill_chunk_size=4)
    constant = bend(plga.adopt(small("llama", "sdpa")))
    options = {"max_new_tokens": 3, "do_sample": False}
    whole = constant.generate(tokens(1, 9), **options)
    assert torch.equal(constant.generate(tokens(1, 9), prefill_chunk_size=4, **options), whole)


def test_a_layer_that_is_passed_twice_is_refused_for_a_learned_operator() -> None:
    model = small("llama")
    model.model.layers[1] = model.model.layers[0]
    with pytest.raises(
        ValueError, match=r"LlamaForCausalLM goes through model.layers.\d.self_attn more than once a pass"
    ):
        plga.adopt(model, "learned")
    assert type(model).__name__ == "LlamaForCausalLM"


@torch.no_grad()
def test_assisted_decoding_is_for_an_operator_of_one_matrix() -> None:
    helper = small("llama", "sdpa", torch.float32, num_hidden_layers=1)
    options = {"max_new_tokens": 6, "do_sample": False}
    with pytest.raises(
        ValueError, match=r"^assisted decoding is not for a learned operator: its first call has guessed"
    ):
        learned(dtype=torch.float32).generate(tokens(1, 9), assistant_model=helper, **options)
    constant = bend(plga.adopt(small("llama", "sdpa", torch.float32)), by=0.3)
    want = constant.generate(tokens(1, 9), **options)
    assert torch.equal(constant.generate(tokens(1, 9), assistant_model=helper, **options), want)


@torch.no_grad()
def test_attention_that_layers_share_is_told_which_one_it_is() -> None:
    hybrid = {"layers_block_type": ["mamba", "hybrid"] * 2, "num_hidden_layers": 4, "mamba_dt_rank": 4}
    wide = {"attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4, "num_attention_heads": 4}
    config = ZambaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, eos_token_id=None, **hybrid | wide)
    torch.manual_seed(0)
    model = ZambaForCausalLM(config).eval()
    want = everything(model)
    assert equal(everything(plga.adopt(model, "learned", metric_units=1)), want)
