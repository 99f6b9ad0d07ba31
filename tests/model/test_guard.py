"""The runtime guard: what it does is what its definition says, step by step, and what it cannot watch it refuses."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from plga.model.cache import PldrCache
from plga.model.compat import CACHE_NAME
from plga.model.guard import GuardedOutput, GuardStatistics, relative_deviation
from plga.model.guard_settings import GuardSettings
from plga.model.guard_tensors import attach, operator_tensors
from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import constant, curvatures, held, pad, tiny, tokens

NEW = 12
ALWAYS = GuardSettings(every=1, margin_factor=0.0, deviation=0.0, tolerance=0.0)
NEVER = replace(ALWAYS, tolerance=1e9)


def pair(dtype: torch.dtype = torch.float64, **changes: Any) -> tuple[PldrForCausalLM, PldrForCausalLM]:
    """A learned model, and the same frozen at its mean over some inputs, with a guard's operators attached."""
    learned = tiny(torch.float64, **changes)
    frozen = held(learned, curvatures(learned, tokens(8, 9, seed=5)).mean(dim=1))
    attach(frozen, operator_tensors(learned))
    return learned, frozen.to(dtype)


def generate(model: PldrForCausalLM, ids: Tensor, guard: Any = None, **options: Any) -> Any:
    options = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, **options}
    settings = guard.to_dict() if isinstance(guard, GuardSettings) else guard
    return model.generate(ids, guard=settings, **options)


@torch.no_grad()
def by_hand(
    learned: PldrForCausalLM, frozen: PldrForCausalLM, prompt: Tensor, settings: GuardSettings
) -> tuple[Tensor, GuardStatistics, list[bool]]:
    """Tokens, statistics, and which tokens were recomputed, from the definition and without any cache."""
    constants = torch.stack([layer.self_attn.operator.curvature for layer in frozen.model.layers])
    text, seen, fallen, unchecked, history = prompt, GuardStatistics(), False, 0, []
    for _ in range(NEW):
        logits, unchecked = frozen(text[None], use_cache=False).logits[0, -1], unchecked + 1
        first, second = logits.sort(descending=True).values[:2]
        if fallen or unchecked >= settings.every or first - second < settings.margin_factor * settings.deviation:
            out = learned(text[None], use_cache=False, output_deductive=True)
            deviation = max(
                float((layer.curvature[0, head] - constants[i, head]).norm() / constants[i, head].norm())
                for i, layer in enumerate(out.deductive)
                for head in range(constants.shape[1])
            )
            recomputed = out.logits[0, -1]
            seen.checks += 1
            seen.curvature_deviation = max(seen.curvature_deviation, deviation)
            seen.logit_deviation = max(seen.logit_deviation, float((recomputed - logits).abs().max()))
            seen.fallbacks += deviation > settings.tolerance and not fallen
            fallen, unchecked = deviation > settings.tolerance, 0
            if fallen:
                logits = recomputed
        seen.tokens += 1
        seen.recomputed += fallen
        history.append(fallen)
        text = torch.cat([text, logits.argmax()[None]])
    return text[len(prompt) :], seen, history


def alike(ours: GuardStatistics, theirs: GuardStatistics) -> bool:
    """Equal counts, and deviations equal to rounding."""
    worst = ("curvature_deviation", "logit_deviation")
    close = all(getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4, abs=1e-6) for name in worst)
    return close and replace(ours, curvature_deviation=0, logit_deviation=0) == replace(
        theirs, curvature_deviation=0, logit_deviation=0
    )


# What it does ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "margin"), [(1, 0.0), (4, 0.0), (5, 0.05), (1000, 0.1)], ids=["each", "every 4", "both", "margin"]
)
def test_a_padded_batch_is_guarded_sequence_by_sequence(every: int, margin: float) -> None:
    learned, frozen = pair()
    sequences = [tokens(length, seed=length) for length in range(2, 10)]
    # Tolerances among the deviations that occur, so that sequences fall back and some return.
    _, seen, _ = zip(*(by_hand(learned, frozen, sequence, NEVER) for sequence in sequences), strict=True)
    tolerance = 0.8 * sorted(statistics.curvature_deviation for statistics in seen)[4]
    settings = GuardSettings(every, 2.0, margin / 2, tolerance)
    expected, statistics, histories = zip(
        *(by_hand(learned, frozen, sequence, settings) for sequence in sequences), strict=True
    )
    # Otherwise nothing would be shown: some fall back and some do not, and where it looks often, some return.
    assert 0 < sum(s.fallbacks > 0 for s in statistics) <= len(statistics)
    assert any(s.recomputed < s.tokens for s in statistics)
    if every == 1:
        assert any(before and not after for row in histories for before, after in pairwise(row))

    for left in (True, False):
        ids, mask = pad(sequences, left=left)
        output = generate(frozen, ids, settings, attention_mask=mask)
        assert torch.equal(output.sequences[:, ids.shape[1] :], torch.stack(expected))
        assert all(map(alike, output.guard, statistics))
    for sequence, row, theirs in zip(sequences, expected, statistics, strict=True):
        alone = generate(frozen, sequence[None], settings)
        assert torch.equal(alone.sequences[0, len(sequence) :], row)
        assert alike(alone.guard[0], theirs)


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "temperature": 1.5}, {"use_cache": False}])
def test_always_fallen_is_recomputing_and_never_is_the_constant(options: dict) -> None:
    learned, frozen = pair()
    ids = tokens(8, 5)

    def run(model: PldrForCausalLM, guard: Any = None) -> Any:
        torch.manual_seed(3)
        return generate(model, ids, guard, output_logits=True, **options)

    recomputed, constants = run(learned), run(frozen, False)
    assert not torch.equal(recomputed.sequences, constants.sequences)
    always = run(frozen, ALWAYS)
    assert torch.equal(always.sequences, recomputed.sequences)
    torch.testing.assert_close(torch.stack(always.logits), torch.stack(recomputed.logits).float(), rtol=1e-5, atol=1e-5)
    assert all(s.recomputed == s.tokens == s.checks == NEW and s.fallbacks == 1 for s in always.guard)
    never = run(frozen, NEVER)
    assert isinstance(never, GuardedOutput)
    assert torch.equal(never.sequences, constants.sequences)
    assert torch.equal(torch.stack(never.logits), torch.stack(constants.logits))
    assert all((s.recomputed, s.fallbacks, s.checks) == (0, 0, NEW) for s in never.guard)


def test_the_generation_config_sets_it_and_an_argument_goes_before() -> None:
    _, frozen = pair()
    ids = tokens(2, 5)
    assert not hasattr(generate(frozen, ids), "guard")
    frozen.generation_config.guard = ALWAYS.to_dict()
    assert generate(frozen, ids).guard[0].fallbacks == 1
    assert generate(frozen, ids, NEVER).guard[0].fallbacks == 0
    assert not hasattr(generate(frozen, ids, False), "guard")
    given = GenerationConfig(max_new_tokens=3, do_sample=False, return_dict_in_generate=True, guard=NEVER.to_dict())
    assert frozen.generate(ids, generation_config=given).guard[0].tokens == 3
    # Without a dictionary there is no place for statistics, but the tokens are guarded all the same.
    guarded = frozen.generate(ids, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(guarded, generate(frozen, ids, ALWAYS).sequences)


def test_finished_sequences_are_not_checked() -> None:
    learned, frozen = pair()
    ids = tokens(4, 5)
    whole = generate(learned, ids).sequences[:, 5:]
    end = int(whole[0, 3])
    lengths = [int((row == end).nonzero()[0]) + 1 if (row == end).any() else NEW for row in whole]
    assert min(lengths) < max(lengths)
    settings = replace(ALWAYS, margin_factor=1.0, deviation=1e9)
    seen = generate(frozen, ids, settings, eos_token_id=end, pad_token_id=0).guard
    assert [s.tokens for s in seen] == [s.checks for s in seen] == lengths


def test_stopping_criteria_and_streamers_work() -> None:
    _, frozen = pair()

    class After(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            return torch.full((len(input_ids),), input_ids.shape[1] >= 9)

    class Kept(BaseStreamer):
        def __init__(self) -> None:
            self.ids: list[int] = []

        def put(self, value: Tensor) -> None:
            self.ids += value.flatten().tolist()

        def end(self) -> None:
            self.ids.append(-1)

    streamer = Kept()
    output = generate(frozen, tokens(1, 5), ALWAYS, stopping_criteria=[After()], streamer=streamer)
    assert output.sequences.shape == (1, 9)
    assert streamer.ids == [*output.sequences[0].tolist(), -1]
    assert output.guard[0].tokens == 4


def test_several_continuations_of_each_prompt() -> None:
    _, frozen = pair()
    ids, mask = pad([tokens(3), tokens(5, seed=1)], left=True)
    settings = replace(ALWAYS, tolerance=0.1)

    def sample(ids: Tensor, mask: Tensor, **options: Any) -> Any:
        torch.manual_seed(1)
        return generate(frozen, ids, settings, attention_mask=mask, do_sample=True, **options)

    several = sample(ids, mask, num_return_sequences=3)
    repeated = sample(ids.repeat_interleave(3, dim=0), mask.repeat_interleave(3, dim=0))
    assert torch.equal(several.sequences, repeated.sequences)
    assert several.guard == repeated.guard and len(several.guard) == 6


def test_a_prompt_in_chunks_and_a_cache_that_is_continued() -> None:
    learned, frozen = pair()
    ids, settings = tokens(3, 7), replace(ALWAYS, tolerance=0.1)
    whole = generate(frozen, ids, settings)
    assert torch.equal(generate(frozen, ids, settings, prefill_chunk_size=3).sequences, whole.sequences)
    cache = PldrCache(frozen.config)
    first = generate(frozen, ids, settings, max_new_tokens=4, **{CACHE_NAME: cache}).sequences
    always = replace(ALWAYS, margin_factor=1.0, deviation=1e9)
    continued = generate(frozen, first, always, max_new_tokens=4, **{CACHE_NAME: cache}).sequences
    assert torch.equal(continued, generate(learned, first, max_new_tokens=4).sequences)


def test_deviation_in_bfloat16_is_that_of_the_constant_that_attention_sees() -> None:
    learned, frozen = pair(torch.bfloat16)
    own = curvatures(frozen.recomputing[0], tokens(1, 5))[:, 0]
    exact = held(learned, own.double()).to(torch.bfloat16)
    attach(exact, operator_tensors(learned))
    seen = generate(exact, tokens(1, 5), replace(ALWAYS, margin_factor=1.0, deviation=1e9), max_new_tokens=1).guard[0]
    assert seen.checks == 1
    assert seen.fallbacks == 0 and seen.curvature_deviation == 0  # rounding of G to bfloat16 is no deviation


def test_relative_deviation_by_hand() -> None:
    constants = torch.zeros(2, 1, 2, 2)
    constants[0, 0, 0, 0], constants[1, 0, 0, 0] = 3.0, 1e-30
    curvature = constants.repeat(2, 1, 1, 1, 1)
    curvature[0, 0, 0, 1, 1] = 1.5
    curvature[1, 1, 0, 1, 0] = 1e-30
    assert relative_deviation(curvature, constants).tolist() == pytest.approx([0.5, 1.0])
    assert relative_deviation(torch.ones(1, 2, 1, 2, 2), torch.zeros(2, 1, 2, 2)).tolist() == [float("inf")]
    assert relative_deviation(torch.zeros(1, 2, 1, 2, 2), torch.zeros(2, 1, 2, 2)).tolist() == [0.0]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "generation mode is beam_search, expected greedy search or sampling"),
        ({"prompt_lookup_num_tokens": 2}, "generation mode is assisted_generation"),
        ({"custom_generate": lambda model, input_ids, **_: input_ids}, "guard is set with custom_generate"),
    ],
    ids=["beams", "assisted", "custom"],
)
def test_ways_of_decoding_that_it_cannot_watch(options: dict, message: str) -> None:
    _, frozen = pair()
    with pytest.raises(ValueError, match=message):
        generate(frozen, tokens(1, 5), ALWAYS, **options)
    frozen.generation_config.guard = ALWAYS.to_dict()
    with pytest.raises(ValueError, match=message):
        generate(frozen, tokens(1, 5), **options)
    if "num_beams" in options:
        assert generate(frozen, tokens(1, 5), False, **options).sequences.shape == (1, 5 + NEW)


def test_continuous_batching_is_refused() -> None:
    _, frozen = pair(torch.float32)
    frozen.generation_config.guard = ALWAYS.to_dict()
    with pytest.raises(ValueError, match="continuous batching has no place for it"):
        frozen.generate_batch([[1, 2]], generation_config=GenerationConfig(max_new_tokens=2), progress_bar=False)


def test_a_model_without_the_learned_operators() -> None:
    with pytest.raises(ValueError, match=r"expected guard\.safetensors beside its weights; write it with"):
        generate(constant(), tokens(1, 5), ALWAYS)


def test_a_learned_operator_needs_no_guard() -> None:
    with pytest.raises(ValueError, match="the operator of this model is learned: only a constant needs a guard"):
        generate(tiny(), tokens(1, 5), ALWAYS)


def test_embedded_prompts_are_refused() -> None:
    _, frozen = pair()
    embedded = torch.zeros(1, 5, frozen.config.hidden_size, dtype=torch.float64)
    with pytest.raises(ValueError, match="guard is set with inputs_embeds, expected input_ids"):
        frozen.generate(inputs_embeds=embedded, guard=ALWAYS.to_dict(), max_new_tokens=2)


@pytest.mark.parametrize("cached", [4, 6])
def test_a_cache_whose_tokens_are_not_told_is_refused(cached: int) -> None:
    _, frozen = pair()
    cache, ids = PldrCache(frozen.config), tokens(1, 8)
    frozen(ids[:, :cached], cache=cache)
    with pytest.raises(ValueError, match="expected input_ids of the whole text"):
        generate(
            frozen, ids[:, cached:], ALWAYS, attention_mask=torch.ones(1, 8, dtype=torch.long), **{CACHE_NAME: cache}
        )


def test_a_deductive_output_that_is_not_finite_stops_the_generation() -> None:
    learned, frozen = pair()
    with torch.no_grad():
        learned.model.layers[1].self_attn.operator.metric_bias[1, 0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"A_LM of layer 1 is not finite in heads \[1\]"):
        generate(frozen, tokens(1, 5), ALWAYS)


@pytest.mark.parametrize("empty", [{}, [], 0, ""])
def test_an_empty_guard_is_refused_and_not_left_out(empty: object) -> None:
    _, frozen = pair()
    with pytest.raises(ValueError, match="guard"):
        generate(frozen, tokens(1, 5), empty)
    frozen.generation_config.guard = empty
    with pytest.raises(ValueError, match="guard"):
        generate(frozen, tokens(1, 5))
