"""Both protocols from their definition, on the reference data, in batches of any kind."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.scoring import Item, Scores, block_logprobs, sequential_logprobs
from tests.scoring.checkpoints import CONTEXT, by_definition, cases, constant, item, learned, published

Protocol = Callable[..., list[Scores]]


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_reference_data(reference: Path, name: str) -> None:
    model = published(reference, name)
    items, *expected = cases(reference, name)
    block, sequential = block_logprobs(model, items), sequential_logprobs(model, items)
    for found, wanted in zip((block, sequential), expected, strict=True):
        for scores, logprobs in zip(found, wanted, strict=True):
            torch.testing.assert_close(scores.logprobs, logprobs, rtol=0.0, atol=1e-9)
    gaps = [float((b.logprobs - s.logprobs).abs().max()) for b, s in zip(block, sequential, strict=True)]
    assert all(0.04 < gap < 0.13 if name == "subcritical" else gap < 2e-7 for gap in gaps)


items = st.lists(
    st.builds(item, st.integers(1, 9), st.integers(1, 9), seed=st.integers(0, 3), shared=st.integers(0, 2)),
    min_size=1,
    max_size=7,
)


@pytest.mark.parametrize("make", [learned, constant, lambda: learned(gram="chunked", gram_chunk=4)])
@given(asked=items, batch=st.integers(1, 5))
def test_any_batch_gives_the_scores_of_single_calls(make: Callable, asked: list[Item], batch: int) -> None:
    model = make()
    for protocol, sequential in ((block_logprobs, False), (sequential_logprobs, True)):
        for one, scores in zip(asked, protocol(model, asked, batch), strict=True):
            logprobs, greedy = by_definition(model, one, sequential)
            torch.testing.assert_close(scores.logprobs, logprobs, rtol=0, atol=1e-9)
            assert torch.equal(scores.greedy, greedy)
            assert scores.truncated == 0


def test_protocols_of_a_learned_operator_differ() -> None:
    one = item(4, 8)
    (block,), (sequential,) = (protocol(learned(), [one]) for protocol in (block_logprobs, sequential_logprobs))
    gap = (block.logprobs - sequential.logprobs).abs()
    assert float(gap[:-1].max()) > 1e-4  # or this model shows nothing
    assert float(gap[-1]) < 1e-12  # the last row of the block has seen no later token


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("protocol", [block_logprobs, sequential_logprobs])
def test_scores_are_float32_at_least(protocol: Protocol, dtype: torch.dtype) -> None:
    (scores,) = protocol(learned(dtype), [item(3, 4)])
    assert scores.logprobs.dtype == torch.promote_types(dtype, torch.float32)
    assert not scores.logprobs.requires_grad


def lengths_read(model: torch.nn.Module) -> list[tuple[int, int]]:
    """Rows and columns of every pass from here on."""
    seen: list[tuple[int, int]] = []
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape)))
    return seen


def test_equal_prefixes_are_read_once() -> None:
    asked = [item(6, 3, seed=seed) for seed in range(4)]
    model = learned()
    seen = lengths_read(model)
    sequential_logprobs(model, asked, batch=16)
    distinct = {(*one.context, *one.candidate[:end]) for one in asked for end in range(3)}
    assert sum(rows for rows, _ in seen) == len(distinct) < 12


def test_candidates_share_the_keys_and_values_of_their_context() -> None:
    model, asked = constant(), [item(9, 3, seed=seed) for seed in range(5)]
    seen = lengths_read(model)
    block_logprobs(model, asked, batch=3)
    assert seen == [(1, 9), (3, 2), (2, 2)]


def test_prefixes_of_very_different_lengths_share_no_batch() -> None:
    model = learned(max_position_embeddings=64)
    seen = lengths_read(model)
    sequential_logprobs(model, [item(60, 1), item(2, 1)])
    assert sorted(seen) == [(1, 2), (1, 60)]


@pytest.mark.parametrize("make", [learned, constant])
@pytest.mark.parametrize("protocol", [block_logprobs, sequential_logprobs])
def test_a_context_that_is_too_long_loses_its_beginning(protocol: Protocol, make: Callable) -> None:
    long = item(CONTEXT + 4, 5)
    (scores,) = protocol(make(), [long])
    assert scores.truncated == 8  # the model reads CONTEXT tokens, and the last candidate token is only a target
    (cut,) = protocol(make(), [Item(long.context[8:], long.candidate, "cut")])
    assert torch.equal(scores.logprobs, cut.logprobs)
    assert cut.truncated == 0
    (whole,) = protocol(make(), [item(1, CONTEXT)])
    assert whole.truncated == 0


@pytest.mark.parametrize("protocol", [block_logprobs, sequential_logprobs])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Item((1,), (), "question 7"), "question 7: the candidate is empty, expected at least one token"),
        (Item((), (1,), "question 7"), "question 7: the context is empty, expected at least one token before"),
        (item(1, CONTEXT + 1), "item 0.0: the candidate has 21 tokens, expected at most the context of 20"),
        (Item((1, 40), (2,), "question 7"), "question 7: token id 40 is outside the vocabulary of 40 pieces"),
        (Item((1,), (-1,), "question 7"), "question 7: token id -1 is outside the vocabulary of 40 pieces"),
    ],
)
def test_what_cannot_be_scored(protocol: Protocol, bad: Item, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        protocol(learned(), [item(2, 2), bad])


@pytest.mark.parametrize("protocol", [block_logprobs, sequential_logprobs])
def test_no_items_and_no_rows(protocol: Protocol) -> None:
    assert protocol(learned(), []) == []
    with pytest.raises(ValueError, match="batch is 0, expected >= 1 rows a pass"):
        protocol(learned(), [item(2, 2)], batch=0)


@pytest.mark.parametrize("protocol", [block_logprobs, sequential_logprobs])
@pytest.mark.parametrize("make", [learned, constant])
def test_a_score_that_is_not_finite_is_named(protocol: Protocol, make: Callable) -> None:
    model, asked = make(), [item(2, 2), item(3, 4, seed=1)]
    weight = model.model.layers[0].self_attn.v_proj.weight
    kept = weight.detach().clone()
    weight.data[0, 0] = float("nan")
    with pytest.raises(FloatingPointError):
        protocol(model, asked)
    weight.data.copy_(kept)
    with torch.no_grad():
        model.lm_head.bias[9] = -float("inf")
    asked[1] = Item((1, 2), (3, 4, 9, 5), "item 0.1")
    with pytest.raises(FloatingPointError, match=r"item 0\.1: token 2 of the candidate has the score -inf, expected a"):
        protocol(model, asked[1:])
