"""The price: both contracts by hand, and what a constant must not change."""

import pytest
import torch

from plga.collapse.freeze import freeze
from plga.collapse.loss import block_scores, price, sequential_scores
from plga.criticality.order_parameter import deductive_outputs
from plga.scoring import block_logprobs, sequential_logprobs
from plga.scoring.items import text_item
from plga.training.objective import next_token_loss
from tests.training import examples


@torch.no_grad()
def test_both_contracts_against_calls_by_hand() -> None:
    model = examples.model(dtype=torch.float64)
    constant = freeze(model, deductive_outputs(model, torch.randint(examples.VOCABULARY, (2, 6))).curvature[0])
    texts = [torch.randint(examples.VOCABULARY, (length,)) for length in (2, 7, 4)]
    found = price(model, constant, texts)
    block, sequential, kept = [], [], []
    for text in texts:
        targets = text[1:]
        for rows, learner in ((block, model), (kept, constant)):
            logits = learner(text[None, :-1], use_cache=False).logits[0].log_softmax(-1)
            rows.append(logits[torch.arange(len(targets)), targets])
        last = [model(text[None, :end], use_cache=False).logits[0, -1] for end in range(1, len(text))]
        sequential.append(torch.stack(last).log_softmax(-1)[torch.arange(len(targets)), targets])
    scores = {name: torch.cat(rows) for name, rows in (("b", block), ("s", sequential), ("k", kept))}
    assert found.tokens == 1 + 6 + 3
    assert found.constant == pytest.approx(-float(scores["k"].mean()), rel=1e-12)
    for change, name in ((found.block, "b"), (found.sequential, "s")):
        assert change.loss == pytest.approx(-float(scores[name].mean()), rel=1e-12)
        assert change.price == pytest.approx(found.constant - change.loss, rel=1e-6, abs=1e-13)
        assert change.moved == pytest.approx(float((scores[name] - scores["k"]).abs().mean()), rel=1e-9)
        assert change.moved >= abs(change.price)
    assert found.moved == max(found.block.moved, found.sequential.moved) > 0


@torch.no_grad()
def test_block_scores_are_the_training_objective() -> None:
    model, ids = examples.model(dtype=torch.float64), torch.randint(examples.VOCABULARY, (1, 9))
    assert -float(block_scores(model, ids).mean()) == pytest.approx(float(next_token_loss(model, ids)), rel=1e-12)


def test_both_contracts_are_the_protocols_of_scoring() -> None:
    model, ids = examples.model(dtype=torch.float64), torch.randint(examples.VOCABULARY, (1, 9))
    item = text_item(ids[0].tolist(), "text")
    for ours, theirs in ((block_scores, block_logprobs), (sequential_scores, sequential_logprobs)):
        (scores,) = theirs(model, [item])
        with torch.no_grad():
            torch.testing.assert_close(ours(model, ids), scores.logprobs, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_constant_scores_alike_under_both_contracts() -> None:
    model = examples.model(dtype=torch.float64, operator="constant", constant="random")
    ids = torch.randint(examples.VOCABULARY, (1, 9))
    torch.testing.assert_close(block_scores(model, ids), sequential_scores(model, ids), rtol=1e-12, atol=1e-12)
