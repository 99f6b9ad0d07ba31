"""Section J: what later tokens, repetition and padding change."""

from pathlib import Path

import numpy as np
import pytest

from plga.audit.contract import SECTION, Contract, measure
from plga.audit.section import NotMeasurable
from tests.audit.subjects import by_name, summary, tiny, trained


def test_by_hand() -> None:
    one, zero = np.array([1.0, 3.0]), np.zeros(2)
    raw = Contract(one, zero, np.array([[1.0, 2.0], [3.0, 8.0]]), np.zeros((2, 2)), zero, zero, zero, zero, one)
    found = by_name(SECTION, raw)
    assert found["change of a logit under a fixed change of suffix"] == [1.0, 2.0, 3.0]
    assert found["change of a logit under a seeded change of suffix"] == [1.0, 2.5, 8.0]
    assert found["repeated calls with the same bits"] == 2


def test_padding_that_the_mask_names_changes_nothing_and_other_does() -> None:
    raw = measure(tiny((5, 4, 6), max_position_embeddings=16))
    assert max(raw.left.max(), raw.right.max(), raw.suffix_masked.max()) < 1e-4
    assert raw.unmasked.min() > 1e-3
    # A mask of ones says nothing.
    assert np.allclose(raw.fixed, raw.fixed_masked, atol=1e-5)
    assert np.allclose(raw.random, raw.random_masked, atol=1e-5)
    assert raw.random.shape == (3, 4) and np.all(raw.repeated == 0)


def test_no_room_for_a_suffix() -> None:
    with pytest.raises(NotMeasurable, match="no room for 4 more tokens"):
        measure(tiny((6,), max_position_embeddings=8))


def test_history_changes_on_the_subcritical_checkpoint_alone(reference: Path) -> None:
    critical, subcritical = (summary(SECTION, trained(reference, name)) for name in ("critical", "subcritical"))
    name = "change of a logit under a seeded change of suffix"
    assert critical[name].value[2] < 1e-3  # type: ignore[index]
    assert subcritical[name].value[2] > 1e-2  # type: ignore[index]
