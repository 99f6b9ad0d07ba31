"""Transformers' generation with every operator mode: what comes out, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import cache as paged_cache

from plga.model.cache import PldrCache
from plga.model.compat import CACHE_NAME
from plga.model.configuration import MODES
from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import constant, curvatures, greedy_by_hand, held, model_for, pad, tiny, tokens

NEW = 6


def generate(model: PldrForCausalLM, ids: Tensor, mode: str | None = None, **options) -> Tensor:
    """New tokens only; greedy unless told otherwise."""
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    return model.generate(ids, operator_mode=mode, **options)[:, ids.shape[1] :]


@torch.no_grad()
def next_logits(model: PldrForCausalLM, mode: str, prompt: Tensor, written: Tensor) -> Tensor:
    """Logits [V] after one prompt and what was written to it, by the definition of the mode and without a cache."""
    if mode == "prompt":
        model = held(model, curvatures(model, prompt[None])[:, 0])
    return model(torch.cat([prompt, written])[None], use_cache=False).logits[0, -1]


# What comes out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_greedy(mode: str) -> None:
    model, prompts = model_for(mode), tokens(2, 5)
    written = generate(model, prompts, mode)
    for prompt, row in zip(prompts, written, strict=True):
        for step in range(NEW):
            assert next_logits(model, mode, prompt, row[:step]).argmax() == row[step]


def test_the_modes_differ() -> None:
    """For this model; otherwise the tests here could not tell the modes apart."""
    model, prompts = tiny(), tokens(8, 5)
    assert not torch.equal(generate(model, prompts, "recompute"), generate(model, prompts, "prompt"))


def test_the_configuration_chooses_the_mode() -> None:
    prompts = tokens(8, 5)
    for mode in ("recompute", "prompt"):
        assert torch.equal(generate(tiny(operator_mode=mode), prompts), generate(tiny(), prompts, mode))
    assert torch.equal(generate(constant(), prompts), generate(constant(), prompts, "constant"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("mode", MODES)
def test_padded_batch_writes_what_its_sequences_write_alone(mode: str, attention: str) -> None:
    model = model_for(mode, attn_implementation=attention)
    sequences = [tokens(length, seed=length) for length in range(2, 10)]
    alone = torch.cat([generate(model, sequence[None], mode) for sequence in sequences])
    for filler in (0, 17):  # whatever stands at padding
        ids, mask = pad(sequences, left=True, filler=filler)
        assert torch.equal(generate(model, ids, mode, attention_mask=mask), alone)
        ids, mask = pad(sequences, left=False, filler=filler)
        assert torch.equal(generate(model, ids, mode, attention_mask=mask), alone)
        # And with the padding left where it is, read at the last real token.
        assert torch.equal(greedy_by_hand(model, ids, mask, NEW, PldrCache(model.config, mode)), alone)


@pytest.mark.parametrize("mode", MODES)
def test_sampling_is_seeded(mode: str) -> None:
    model, prompts = model_for(mode), tokens(2, 5)

    def sample(seed: int, ids: Tensor, **options) -> Tensor:
        torch.manual_seed(seed)
        return generate(model, ids, mode, do_sample=True, temperature=1.5, **options)

    assert torch.equal(sample(1, prompts), sample(1, prompts))
    assert not torch.equal(sample(1, prompts), sample(2, prompts))
    # Several continuations of each prompt are those of the batch with every prompt repeated.
    several = sample(1, prompts, num_return_sequences=3)
    assert torch.equal(several, sample(1, prompts.repeat_interleave(3, dim=0)))
    assert not torch.equal(several[0], several[1])


@pytest.mark.parametrize("mode", MODES)
def test_beam_search(mode: str) -> None:
    """Against a beam search that knows no cache and scores every beam from its definition."""
    model, prompts, beams, steps = model_for(mode), tokens(2, 4), 3, 4
    written = generate(model, prompts, mode, num_beams=beams, num_return_sequences=beams, max_new_tokens=steps)
    for prompt, ours in zip(prompts, written.view(2, beams, steps), strict=True):
        alive = [(0.0, prompt[:0])]
        for _ in range(steps):
            longer = []
            for score, row in alive:
                log_probabilities = next_logits(model, mode, prompt, row).log_softmax(-1)
                longer += [
                    (score + float(added), torch.cat([row, torch.tensor([token])]))
                    for token, added in enumerate(log_probabilities)
                ]
            alive = sorted(longer, key=lambda scored: -scored[0])[:beams]
        assert torch.equal(ours, torch.stack([row for _, row in alive]))


@pytest.mark.parametrize("mode", ["recompute", "chunked", "constant"])
def test_without_a_cache(mode: str) -> None:
    model, prompts = model_for(mode), tokens(2, 5)
    assert torch.equal(generate(model, prompts, mode, use_cache=False), generate(model, prompts, mode))


@pytest.mark.parametrize("mode", ["recompute", "chunked", "constant"])
def test_prefill_in_chunks(mode: str) -> None:
    model, prompts = model_for(mode), tokens(2, 7)
    assert torch.equal(generate(model, prompts, mode, prefill_chunk_size=3), generate(model, prompts, mode))


@given(chunk=st.integers(1, 30), length=st.integers(2, 26), padded=st.booleans())
def test_a_long_prompt_in_chunks_of_any_size_gives_the_same_logits(chunk: int, length: int, padded: bool) -> None:
    model = constant(torch.float32)
    ids, mask = pad([tokens(length), tokens(max(1, length // 2) if padded else length, seed=1)], left=True)
    options = {"attention_mask": mask, "output_logits": True, "return_dict_in_generate": True, "do_sample": False}
    whole = model.generate(ids, max_new_tokens=NEW, **options)
    chunks = model.generate(ids, max_new_tokens=NEW, prefill_chunk_size=chunk, **options)
    assert torch.equal(chunks.sequences, whole.sequences)
    torch.testing.assert_close(torch.stack(chunks.logits), torch.stack(whole.logits), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_given_cache_is_used_and_can_be_continued(mode: str, name: str) -> None:
    model, prompts = model_for(mode), tokens(2, 5)
    cache = PldrCache(model.config, mode)
    first = generate(model, prompts, **{name: cache})
    assert cache.get_seq_length() == 5 + NEW - 1
    both = torch.cat([prompts, first], dim=1)
    assert torch.equal(generate(model, both, **{name: cache}), generate(model, prompts, mode, max_new_tokens=12)[:, 6:])


@pytest.mark.parametrize("mode", MODES)
def test_embedded_prompts(mode: str) -> None:
    model, prompts = model_for(mode), tokens(2, 5)
    embedded = model.get_input_embeddings()(prompts).detach()
    options = {"max_new_tokens": NEW, "do_sample": False, "operator_mode": mode}
    assert torch.equal(model.generate(inputs_embeds=embedded, **options), generate(model, prompts, mode))


@pytest.mark.parametrize("mode", [None, "constant"])
def test_static_cache(mode: str | None) -> None:
    model, prompts = constant(), tokens(2, 5)
    assert torch.equal(generate(model, prompts, mode, cache_implementation="static"), generate(model, prompts))
    ids, mask = pad([tokens(3), tokens(5, seed=1)], left=True)
    options = {"attention_mask": mask}
    assert torch.equal(
        generate(model, ids, mode, cache_implementation="static", **options), generate(model, ids, **options)
    )


@pytest.mark.parametrize("assistant", ["constant", "learned", "lookup"])
def test_assisted_decoding(assistant: str) -> None:
    """The assistant only proposes: the tokens are those of greedy decoding."""
    model, prompt = constant(), tokens(1, 5)
    options = {
        "constant": {"assistant_model": constant(seed=1)},
        "learned": {"assistant_model": tiny(seed=1)},
        "lookup": {"prompt_lookup_num_tokens": 2},
    }[assistant]
    assert torch.equal(generate(model, prompt, **options), generate(model, prompt))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_continuous_batching(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers' paged cache, which on a CPU asks psutil for the memory of the machine."""
    monkeypatch.setattr(paged_cache, "get_device_and_memory_breakdown", lambda: (torch.device("cpu"), 2**30, 0, 0))
    model = constant(torch.float32, attn_implementation=attention)
    prompts = [tokens(length, seed=length).tolist() for length in (3, 2, 7)]
    wanted = [generate(model, torch.tensor([prompt]))[0].tolist() for prompt in prompts]
    outputs = model.generate_batch(
        prompts,
        generation_config=GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=64),
        progress_bar=False,
    )
    assert [output.error for output in outputs.values()] == [None] * 3
    assert [output.generated_tokens for output in outputs.values()] == wanted


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "wrong"),
    [
        ("recompute", "constant"),
        ("recompute", "chunked"),
        ("chunked", "recompute"),
        ("chunked", "prompt"),
        ("chunked", "constant"),
        ("constant", "prompt"),
        ("constant", "chunked"),
        ("recompute", "x"),
    ],
)
def test_wrong_modes(mode: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"mode is '{wrong}'"):
        generate(model_for(mode), tokens(1, 5), wrong)


def test_a_given_cache_in_another_mode() -> None:
    model = tiny()
    with pytest.raises(ValueError, match="operator_mode is 'prompt', but the cache given is in mode 'recompute'"):
        generate(model, tokens(1, 5), "prompt", **{CACHE_NAME: PldrCache(model.config, "recompute")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_cache": False}, "operator_mode is 'prompt' with use_cache=False"),
        ({"prefill_chunk_size": 3}, "prefill_chunk_size is set"),
        ({"generation_config": GenerationConfig(prefill_chunk_size=3)}, "prefill_chunk_size is set"),
    ],
    ids=["use_cache", "prefill_chunk_size", "generation_config"],
)
def test_the_operator_of_the_prompt_needs_the_whole_prompt_and_a_cache(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny().generate(tokens(1, 5), operator_mode="prompt", **options)


@pytest.mark.parametrize("mode", ["recompute", "prompt", "chunked"])
@pytest.mark.parametrize("proposer", ["assistant", "lookup"])
def test_a_learned_operator_takes_no_proposals(mode: str, proposer: str) -> None:
    """The rows of all proposed tokens come from one pass, whose G_LM would be built from the proposals."""
    options = {"assistant_model": constant()} if proposer == "assistant" else {"prompt_lookup_num_tokens": 2}
    with pytest.raises(ValueError, match="assisted decoding needs a constant operator"):
        generate(model_for(mode), tokens(1, 5), mode, **options)


def test_a_learned_operator_takes_no_other_cache() -> None:
    with pytest.raises(ValueError, match="cache_implementation"):
        generate(tiny(), tokens(1, 5), cache_implementation="static")


def test_an_empty_prompt() -> None:
    with pytest.raises(ValueError, match=r"input_ids is \(1, 0\), expected at least one token"):
        generate(tiny(), torch.zeros(1, 0, dtype=torch.long))


@pytest.mark.parametrize("chunk", [0, -1, 1.5, "4", True])
def test_a_prompt_is_read_in_whole_chunks(chunk: object) -> None:
    with pytest.raises(ValueError, match=r"prefill_chunk_size is .*, expected a whole number of tokens >= 1, or None"):
        generate(constant(), tokens(1, 5), prefill_chunk_size=chunk)


@torch.no_grad()
def test_a_cache_of_transformers_that_is_given_is_used() -> None:
    model, prompt, cache = constant(), tokens(1, 6), DynamicCache()
    model(prompt[:, :4], cache=cache)
    written = generate(model, prompt, **{CACHE_NAME: cache})
    assert torch.equal(written, generate(model, prompt)) and cache.get_seq_length() == 6 + NEW - 1


def test_a_cache_of_other_sequences_is_refused() -> None:
    model, prompts, cache = constant(), tokens(3, 6), PldrCache(constant().config)
    with torch.no_grad():
        model(prompts[:1, :4], cache=cache)
    with pytest.raises(ValueError, match=r"the cache holds .*, expected .*: give each sequence its own"):
        generate(model, prompts, cache=cache)


def test_a_length_without_end_takes_no_memory() -> None:
    model, prompt = constant(), tokens(1, 5)
    stop = [lambda ids, scores, **_: torch.full((len(ids),), ids.shape[1] >= 5 + NEW)]
    assert torch.equal(generate(model, prompt, max_new_tokens=10**12, stopping_criteria=stop), generate(model, prompt))
