"""Section E2: the spread of D / S, and the bound for independent rows."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from plga.audit.concentration import SECTION, Concentration, bernstein, measure
from plga.audit.section import NotMeasurable
from tests.audit.subjects import by_name, shown, summary, tiny, trained


def test_by_hand() -> None:
    subject = tiny((4, 4))
    # One layer and head of width 2: rows e1 in one prompt and e2 in the other.
    first = torch.tensor([1.0, 0.0]).expand(1, 1, 4, 2)
    rotated = torch.stack([first, first.flip(-1)])
    raw = measure(shown(subject, rotated=rotated))
    assert raw.lengths.tolist() == [1, 2, 4]
    # D / S is diag(1, 0) and diag(0, 1), their mean I / 2, so both lie 1/2 from it.
    assert np.allclose(raw.deviation, 0.5) and np.allclose(raw.mean, 0.5)
    assert np.allclose(raw.moment, 0.5) and np.allclose(raw.largest, 1.0)
    assert np.allclose(raw.variance, 0.25)  # E (q qT)^2 = I / 2, less I / 4
    expected = math.sqrt(2 * 0.25 * math.log(4) / 4) + math.log(4) / 12
    assert np.allclose(bernstein(raw)[2], expected)
    assert by_name(SECTION, raw)["exponent of the spread of D / S in S"] == pytest.approx(0.0, abs=1e-12)


def test_independent_rows_stay_below_the_bound_and_fall_with_the_root() -> None:
    generator = torch.Generator().manual_seed(0)
    rotated = torch.randn(40, 1, 1, 64, 4, generator=generator).clamp(-2, 2)
    raw = measure(shown(tiny((64,) * 40, max_position_embeddings=64), rotated=rotated))
    relative = (raw.deviation / raw.mean[:, None]).mean(axis=1)
    assert (relative <= bernstein(raw) / raw.moment).all()
    slope = by_name(SECTION, raw)["exponent of the spread of D / S in S"]
    assert -0.6 < slope < -0.4


def test_one_prompt_has_no_mean() -> None:
    with pytest.raises(NotMeasurable, match="one prompt only"):
        measure(tiny((5,)))


def test_reference_checkpoints(reference: Path) -> None:
    for name in ("critical", "subcritical"):
        found = summary(SECTION, trained(reference, name))
        assert "spread of D / S at S = 16" in found and "spread of D / S at S = 32" not in found
        bound = found["matrix-Bernstein bound of the spread of D / S at S = 16"]
        assert (bound.kind, bound.claim) == ("bound", "conditional theorem")


def test_arrays_are_all_there_is() -> None:
    assert set(Concentration.__dataclass_fields__) == set(vars(measure(tiny())))
