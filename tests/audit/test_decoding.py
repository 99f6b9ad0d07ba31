"""Section G: G_LM kept from the prompt against rebuilding it."""

from pathlib import Path

import numpy as np
import pytest

from plga.audit.decoding import SECTION, Decoding, measure
from plga.audit.section import NotMeasurable
from plga.collapse.fidelity import decode
from tests.audit.subjects import by_name, summary, tiny, trained


def test_by_hand() -> None:
    raw = Decoding(
        tokens=np.array([[3, 3, 3, 5], [1, 2, 1, 2]]),
        deviation=np.array([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.0, 0.6]]),
        margin=np.array([[1.0, 0.4, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]),
        operator=np.array([[0.0, 0.1, 0.2, 0.1], [0.0, 0.0, 0.0, 0.0]]),
        size=np.array([[1.0, 1.0, 1.0, 0.5], [1.0, 1.0, 1.0, 0.0]]),
        same=np.array([[True] * 4, [True, True, True, False]]),
    )
    found = by_name(SECTION, raw)
    assert found["largest logit deviation"] == [0.4, 0.5, 0.6]
    assert found["smallest decoding margin"] == [0.4, 0.7, 1.0]
    assert found["deviation of G"] == [0.0, 0.1, 0.2]
    assert found["relative deviation of G"] == [0.0, 0.0, 0.2]  # of seven steps, 0 at five and 0.1 at none
    assert (found["steps with the same token"], found["steps with another token"]) == (7, 1)
    # 0.4 < 0.4 and 1.2 < 1.0 do not hold.
    assert found["steps with 2B < margin"] == 6
    assert found["steps with 2B < margin and another token"] == 0
    # Pairs 33 33 35 and 12 21 12: two distinct of three, in both.
    assert found["share of distinct pairs of tokens"] == pytest.approx([2 / 3] * 3)
    assert found["longest run of one token"] == 3


def test_the_text_is_that_of_recomputing_and_the_first_step_agrees() -> None:
    subject = tiny((5, 4), max_position_embeddings=12)
    assert subject.model is not None
    raw = measure(subject)
    assert raw.tokens.shape == (2, 7)  # what the context has room for
    for prompt, tokens in zip(subject.prompts, raw.tokens, strict=True):
        written = decode(subject.model, prompt.unsqueeze(0), 7, "recompute").tokens[0]
        assert tokens.tolist() == written.tolist()
    assert np.all(raw.operator[:, 0] == 0) and np.all(raw.deviation[:, 0] < 1e-5)


def test_a_full_context_has_no_room() -> None:
    subject = tiny((6,), max_position_embeddings=6)
    with pytest.raises(NotMeasurable, match="no room for a new token"):
        measure(subject)


def test_kept_and_rebuilt_agree_on_the_critical_checkpoint_alone(reference: Path) -> None:
    critical, subcritical = (summary(SECTION, trained(reference, name)) for name in ("critical", "subcritical"))
    assert critical["steps with another token"].value == 0
    assert critical["relative deviation of G"].value[2] < 1e-4  # type: ignore[index]
    assert subcritical["relative deviation of G"].value[2] > 1e-2  # type: ignore[index]
    for found in (critical, subcritical):
        assert found["steps with 2B < margin and another token"].value == 0
