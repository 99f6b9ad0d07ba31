"""PldrCache: what each mode computes step by step, and everything that moves, cuts or copies what it keeps."""

import itertools

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from plga.model.cache import PldrCache
from plga.model.compat import CACHE_NAME
from plga.model.configuration import MODES
from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import constant, curvatures, held, model_for, pad, relative, tiny, tiny_config, tokens

PROMPT, LENGTH = 4, 10
ROUNDING = 1e-12  # float64, sums in another order
CHUNKS = [(1, 1, 1, 1, 1, 1), (2, 4), (6,)]


@torch.no_grad()
def feed(model: PldrForCausalLM, cache, ids: Tensor, chunks, mask: Tensor | None = None) -> Tensor:
    """Logits of every row, [B, S, V], the tokens given in ``chunks``."""
    rows, ends = [], list(itertools.accumulate(chunks))
    assert ends[-1] == ids.shape[1]
    past = cache.get_seq_length()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        known = None if mask is None else mask[:, : past + end]
        rows.append(model(ids[:, start:end], attention_mask=known, cache=cache).logits)
    return torch.cat(rows, dim=1)


# What each mode means -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_recompute_reads_the_last_row_of_the_exact_prefix(chunks) -> None:
    model, ids = tiny(), tokens(2, LENGTH)
    logits = feed(model, PldrCache(model.config, "recompute"), ids, (PROMPT, *chunks))
    for end in itertools.accumulate((PROMPT, *chunks)):
        with torch.no_grad():
            exact = model(ids[:, :end], use_cache=False).logits[:, -1]
        assert relative(logits[:, end - 1], exact) < ROUNDING


def test_recompute_is_not_the_block_pass() -> None:
    """The tests above would hold for any model if G did not depend on the input."""
    model, ids = tiny(), tokens(2, LENGTH)
    logits = feed(model, PldrCache(model.config, "recompute"), ids, [1] * LENGTH)
    block = feed(model, PldrCache(model.config, "recompute"), ids, [LENGTH])
    assert relative(logits[:, :-1], block[:, :-1]) > 1e-3
    assert relative(logits[:, -1], block[:, -1]) < ROUNDING


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_prompt_keeps_the_operator_of_the_prompt(chunks) -> None:
    """Every row is that of a model whose constant operator is the G_LM of the prompt."""
    model, ids = tiny(), tokens(2, LENGTH)
    logits = feed(model, PldrCache(model.config, "prompt"), ids, (PROMPT, *chunks))
    of_prompt = curvatures(model, ids[:, :PROMPT])
    for row in range(len(ids)):
        with torch.no_grad():
            block = held(model, of_prompt[:, row])(ids[row : row + 1]).logits
        assert relative(logits[row], block[0]) < ROUNDING


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("kind", [PldrCache, DynamicCache, StaticCache])
def test_constant_rows_are_those_of_the_block_pass(chunks, kind) -> None:
    model, ids = constant(), tokens(2, LENGTH)
    cache = StaticCache(config=model.config, max_cache_len=16) if kind is StaticCache else kind(config=model.config)
    logits = feed(model, cache, ids, (PROMPT, *chunks))
    with torch.no_grad():
        assert relative(logits, model(ids, use_cache=False).logits) < ROUNDING


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("mode", MODES)
def test_left_padding_changes_no_row(mode: str, attention: str) -> None:
    model = model_for(mode, attn_implementation=attention)
    sequences = [tokens(length, seed=length) for length in (LENGTH, LENGTH - 3)]
    ids, mask = pad(sequences, left=True)
    chunks = (LENGTH - 4, 1, 2, 1)
    together = feed(model, PldrCache(model.config, mode), ids, chunks, mask)
    alone = feed(model, PldrCache(model.config, mode), sequences[1][None], (LENGTH - 7, 1, 2, 1))
    assert relative(together[1, 3:], alone[0]) < ROUNDING


@torch.no_grad()
def test_recompute_keeps_positions_exactly_in_bfloat16() -> None:
    """bfloat16 has no 257: positions that took the dtype of the embeddings would stand still there."""
    model, ids = tiny(torch.bfloat16), tokens(1, 300)
    logits = feed(model, PldrCache(model.config, "recompute"), ids, (299, 1))
    assert torch.equal(logits[:, -1], model(ids, use_cache=False).logits[:, -1])


# Arguments ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_either_name_of_the_argument(mode: str) -> None:
    model, ids = model_for(mode), tokens(1, 5)
    for name in ("cache", "past_key_values"):
        cache = PldrCache(model.config, mode)
        outputs = model(ids, **{name: cache})
        assert outputs[CACHE_NAME] is cache
        assert cache.get_seq_length() == 5
    # Both at once, as a decorated caller may pass an empty one along.
    assert model(ids, cache=None, past_key_values=PldrCache(model.config, mode)).logits.shape[1] == 5


@torch.no_grad()
def test_a_cache_is_made_where_one_is_wanted() -> None:
    model, ids = tiny(operator_mode="prompt"), tokens(1, 5)
    made = model(ids, use_cache=True)[CACHE_NAME]
    assert isinstance(made, PldrCache) and made.mode == "prompt"
    assert model(ids, use_cache=False).get(CACHE_NAME) is None
    assert model.train()(ids).get(CACHE_NAME) is None


def test_modes_that_do_not_fit_the_operator() -> None:
    learned, fixed = tiny_config(), tiny_config(operator="constant", constant="identity")
    in_chunks = tiny_config(gram="chunked")
    assert [PldrCache(config).mode for config in (learned, in_chunks, fixed)] == ["recompute", "chunked", "constant"]
    assert PldrCache(tiny_config(operator_mode="prompt")).mode == "prompt"
    for config, mode, what in (
        (learned, "constant", "the operator of this model is learned, expected recompute or prompt"),
        (learned, "chunked", "the operator of this model is learned, expected recompute or prompt"),
        (in_chunks, "recompute", "the operator of this model is learned with a chunked Gram, expected chunked"),
        (in_chunks, "prompt", "the operator of this model is learned with a chunked Gram, expected chunked"),
        (fixed, "prompt", "the operator of this model is constant, expected constant"),
        (fixed, "chunked", "the operator of this model is constant, expected constant"),
        (learned, "frozen", "expected one of recompute, prompt, chunked, constant"),
    ):
        with pytest.raises(ValueError, match=f"mode is '{mode}', .*{what}"):
            PldrCache(config, mode)


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_a_learned_operator_needs_its_own_cache(kind) -> None:
    model = tiny()
    cache = StaticCache(config=model.config, max_cache_len=16) if kind is StaticCache else kind(config=model.config)
    with pytest.raises(ValueError, match=f"cache is {kind.__name__}, expected PldrCache"):
        model(tokens(1, 5), cache=cache)


# What moves, cuts and copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", ["reorder", "repeat", "select"])
def test_batch_operations_act_on_all_that_is_kept(mode: str, operation: str) -> None:
    """After the operation the cache continues as that of the batch so changed; every sequence has another G."""
    model, prompt = model_for(mode), tokens(3, PROMPT)
    cache = PldrCache(model.config, mode)
    feed(model, cache, prompt, (PROMPT,))
    if operation == "reorder":
        order = torch.tensor([2, 0, 0])
        cache.reorder_cache(order)
    elif operation == "repeat":
        order = torch.arange(3).repeat_interleave(2)
        cache.batch_repeat_interleave(2)
    else:
        order = torch.tensor([2, 1])
        cache.batch_select_indices(order)
    fresh = PldrCache(model.config, mode)
    feed(model, fresh, prompt[order], (PROMPT,))
    more = tokens(len(order), 3, seed=1)
    assert relative(feed(model, cache, more, (1, 2)), feed(model, fresh, more, (1, 2))) < ROUNDING
    if mode == "prompt":
        assert torch.equal(cache.curvature(0), curvatures(model, prompt)[0, order])


@pytest.mark.parametrize("mode", ["recompute", "prompt", "constant"])
@pytest.mark.parametrize("removed", [1, 3, 5])
def test_crop_takes_tokens_back(mode: str, removed: int) -> None:
    """Also into the prompt (5 of 4 + 3 tokens), whose operator stays as long as anything of it does."""
    model, ids, other = model_for(mode), tokens(2, PROMPT + 3), tokens(2, 4, seed=1)
    cache = PldrCache(model.config, mode)
    feed(model, cache, ids, (PROMPT, 3))
    cache.crop(-removed)
    assert cache.get_seq_length() == PROMPT + 3 - removed
    logits = feed(model, cache, other, (3, 1))

    whole = torch.cat([ids[:, : PROMPT + 3 - removed], other], dim=1)
    for row in range(len(ids)):
        if mode == "recompute":
            with torch.no_grad():
                exact = model(whole[row : row + 1], use_cache=False).logits[:, -1]
            assert relative(logits[row, -1:], exact) < ROUNDING
        else:
            of_prompt = curvatures(model, ids[:, :PROMPT])[:, row]
            with torch.no_grad():
                block = held(model, of_prompt)(whole[row : row + 1]).logits[0, -4:]
            assert relative(logits[row], block) < ROUNDING


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("emptied", ["reset", "crop"])
def test_an_emptied_cache_starts_a_new_sequence(mode: str, emptied: str) -> None:
    model, other = model_for(mode), tokens(1, 6, seed=1)
    cache = PldrCache(model.config, mode)
    feed(model, cache, tokens(2, PROMPT + 1), (PROMPT, 1))
    if emptied == "reset":
        cache.reset()
    else:
        cache.crop(-(PROMPT + 1))
        other = other.expand(2, -1)  # a cropped cache keeps its batch
    assert cache.get_seq_length() == 0
    assert cache.curvature(0) is None
    fresh = PldrCache(model.config, mode)
    assert torch.equal(feed(model, cache, other, (PROMPT, 2)), feed(model, fresh, other, (PROMPT, 2)))


@pytest.mark.parametrize("mode", MODES)
def test_offloading_loses_nothing(mode: str) -> None:
    model, ids = model_for(mode), tokens(1, PROMPT + 2)
    cache, kept = PldrCache(model.config, mode), PldrCache(model.config, mode)
    for each in (cache, kept):
        feed(model, each, ids[:, :PROMPT], (PROMPT,))
    for layer in cache.layers:
        layer.offload()
        layer.prefetch()
    assert torch.equal(feed(model, cache, ids[:, PROMPT:], (2,)), feed(model, kept, ids[:, PROMPT:], (2,)))


@pytest.mark.parametrize("mode", MODES)
def test_bytes_held(mode: str) -> None:
    """Two layers, two heads of width 4, float64: keys and values of 5 tokens; G_LM; or the prefix and positions."""
    model = model_for(mode)
    cache = PldrCache(model.config, mode)
    assert cache.nbytes() == 0
    feed(model, cache, tokens(3, 5), (5,))
    keys_and_values = 2 * 2 * 3 * 5 * 8 * 8
    operators = 2 * 3 * 2 * 4 * 4 * 8
    prefix = 3 * 5 * (8 + 1) * 8
    assert (
        cache.nbytes()
        == {
            "recompute": prefix,
            "prompt": keys_and_values + operators,
            "chunked": keys_and_values + 3 * operators,  # beside G_LM two Grams
            "constant": keys_and_values,
        }[mode]
    )
