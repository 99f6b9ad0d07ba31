"""Long texts in blocks: the scores of one pass, whatever the block."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.model.modeling import PldrForCausalLM
from plga.scoring.long_text import log_probabilities
from tests.training import examples

LENGTH = 40


def constant(dtype: torch.dtype = torch.float32) -> PldrForCausalLM:
    return examples.model(dtype=dtype, operator="constant", constant="random", max_position_embeddings=LENGTH)


@torch.no_grad()
def one_pass(model: PldrForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """The scores from their definition."""
    predicted = model(ids, use_cache=False).logits[:, :-1].float().log_softmax(dim=-1)
    return predicted.gather(-1, ids[:, 1:, None]).squeeze(-1)


@given(block=st.integers(1, LENGTH + 5), length=st.integers(2, LENGTH), batch=st.integers(1, 3))
def test_any_block_gives_the_scores_of_one_pass(block: int, length: int, batch: int) -> None:
    model, ids = constant(), torch.randint(examples.VOCABULARY, (batch, length))
    scores = log_probabilities(model, ids, block)
    assert scores.shape == (batch, length - 1) and not scores.requires_grad
    torch.testing.assert_close(scores, one_pass(model, ids), rtol=0, atol=1e-5)


def test_scores_are_float32_at_least() -> None:
    ids = torch.randint(examples.VOCABULARY, (1, 9))
    assert log_probabilities(constant(torch.bfloat16), ids).dtype == torch.float32
    assert log_probabilities(constant(torch.float64), ids).dtype == torch.float64


def test_no_block_needs_more_rows_than_it_has() -> None:
    """Memory: no pass sees more than a block of tokens, and the head reads no more rows."""
    model, seen = constant(), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    log_probabilities(model, torch.randint(examples.VOCABULARY, (1, 30)), 8)
    assert seen == [8, 8, 8, 5]


def test_what_is_refused() -> None:
    ids = torch.randint(examples.VOCABULARY, (1, 9))
    with pytest.raises(ValueError, match=r"learned, expected a constant one: .*collapse it first \(plga collapse"):
        log_probabilities(examples.model(), ids)
    for wrong in (ids[0], ids[:, :1], torch.zeros(1, LENGTH + 1, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"expected \[B, S\] with S from 2 to the context of 40"):
            log_probabilities(constant(), wrong)
    with pytest.raises(ValueError, match="block is 0, expected >= 1 tokens"):
        log_probabilities(constant(), ids, 0)
