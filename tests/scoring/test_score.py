"""Which protocol is chosen, and what is said of it."""

import logging
from pathlib import Path

import pytest
import torch

from plga.scoring import block_logprobs, score, sequential_logprobs
from plga.scoring.score import compare
from tests.scoring.checkpoints import cases, constant, item, learned, published

ITEMS = [item(5, 6, seed=seed, shared=seed) for seed in range(12)]


def same(found: list, wanted: list) -> bool:
    return all(torch.equal(f.logprobs, w.logprobs) for f, w in zip(found, wanted, strict=True))


def test_auto_on_the_reference_data(reference: Path) -> None:
    for name, protocol in (("subcritical", "sequential"), ("critical", "block")):
        model, (items, *_) = published(reference, name), cases(reference, name)
        found = score(model, items)
        assert found.protocol == protocol
        assert found.check is not None and found.check.items == 3 and found.check.tokens == 24
        assert found.check.largest > 0.04 if name == "subcritical" else found.check.largest < 2e-7
        chosen = block_logprobs if protocol == "block" else sequential_logprobs
        assert same(found.scores, chosen(model, items))


def test_auto_measures_nothing_where_block_is_proved() -> None:
    for model, kind in ((constant(), "constant operator"), (learned(gram="chunked", gram_chunk=4), "chunked Gram")):
        found = score(model, ITEMS)
        assert (found.protocol, found.check) == ("block", None)
        assert found.reason == f"{kind}: both protocols are one (theorem)"


def test_the_threshold_decides() -> None:
    largest = compare(learned(), ITEMS, sample=12).largest
    assert largest > 1e-4
    assert score(learned(), ITEMS, threshold=largest, sample=12).protocol == "block"
    below = score(learned(), ITEMS, threshold=largest / 2, sample=12)
    assert below.protocol == "sequential"
    assert f"differ by at most {largest:.1e} nats on one of 72 tokens of 12 items" in below.reason


def test_the_check_is_what_it_says() -> None:
    model = learned()
    pairs = zip(block_logprobs(model, ITEMS), sequential_logprobs(model, ITEMS), strict=True)
    gap = torch.cat([block.logprobs - sequential.logprobs for block, sequential in pairs]).abs()
    check = compare(model, ITEMS, sample=99)
    assert (check.items, check.tokens) == (12, 72)
    assert check.mean == pytest.approx(float(gap.mean()), rel=1e-9)
    assert check.largest == pytest.approx(float(gap.max()), rel=1e-9)
    few = [compare(model, ITEMS, sample=2, seed=seed) for seed in (0, 0, 1)]
    assert few[0].tokens == 12 and few[0] == few[1] != few[2]


def test_of_a_long_item_some_tokens_are_compared() -> None:
    model = learned(max_position_embeddings=60)
    long, cut = item(1, 60), item(50, 40, seed=1)
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0]) * inputs[0].shape[1]))
    assert compare(model, [long, cut], batch=1).tokens == 64
    assert sum(seen) == 60 + 40 + 64  # rows read: both blocks, and the last row of a call a token
    (block,), (sequential,) = block_logprobs(model, [cut]), sequential_logprobs(model, [cut])
    gap = (block.logprobs - sequential.logprobs).abs()
    found = compare(model, [cut])
    assert found.tokens == 32
    assert any(found.largest == pytest.approx(float(one), rel=1e-6, abs=1e-12) for one in gap)


def test_block_of_a_learned_operator_is_given_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = score(learned(), ITEMS, "block", threshold=1e-9)
    assert found.protocol == "block" and same(found.scores, block_logprobs(learned(), ITEMS))
    assert "block scores of a learned operator have seen their targets" in caplog.text
    caplog.clear()
    score(learned(), ITEMS, "block", threshold=10.0)
    score(constant(), ITEMS, "block")
    assert caplog.text == ""


def test_truncated_contexts_are_counted() -> None:
    assert score(constant(), [item(30, 2), item(3, 2), item(31, 2)]).truncated == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "both"}, "protocol is 'both', expected one of auto, block, sequential"),
        ({"threshold": -1.0}, "threshold is -1, expected >= 0 nats a token"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"sample": 0}, "sample is 0, expected >= 1 items"),
    ],
)
def test_bad_settings(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(learned(), ITEMS, **options)


def test_nothing_to_score() -> None:
    with pytest.raises(ValueError, match="there are no items to score, expected at least one"):
        score(learned(), [])
