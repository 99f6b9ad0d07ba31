"""Section D: by hand, on stationary queries, and on the two reference checkpoints."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.audit.twirl import SECTION, measure
from plga.ops.commutant import commutant_projection
from plga.ops.rotary import inverse_frequencies, rotate_interleaved, tables
from tests.audit.subjects import by_name, shown, summary, tiny, trained


def of_queries(queries: Tensor) -> Subject:
    """A model of one layer and one head whose one prompt has these queries before the rotation, [S, d]."""
    tokens, width = queries.shape
    subject = tiny((tokens,), num_hidden_layers=1, num_attention_heads=1, hidden_size=width)
    table = tables(torch.arange(tokens), inverse_frequencies(width), torch.float64)
    rotated = rotate_interleaved(queries.double(), *table)
    return shown(subject, queries=queries[None, None, None], rotated=rotated[None, None, None])


def test_one_plane_by_hand() -> None:
    """d = 2, θ = 1, S = 2, q = (1, 0) at both positions.

    Before: M = diag(1, 0), half of its energy in the commutant. After: M = (1/2) Σ of the projections on angles 0 and
    1, whose traceless part is reduced by |cos 1|: the off-commutant energy by cos² 1, as stationary queries have it.
    """
    found = by_name(SECTION, measure(of_queries(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))))
    kept = math.cos(1) ** 2
    assert found["energy of the query second moment before rotation"] == pytest.approx([1.0] * 3)
    assert found["off-commutant energy before rotation"] == pytest.approx([0.5] * 3)
    assert found["off-commutant energy after rotation"] == pytest.approx([kept / 2] * 3)
    assert found["energy of the query second moment after rotation"] == pytest.approx([(1 + kept) / 2] * 3)
    assert found["commutant fraction before rotation"] == pytest.approx([0.5] * 3)
    assert found["commutant fraction after rotation"] == pytest.approx([1 / (1 + kept)] * 3)
    for name in (
        "off-commutant suppression",
        "off-commutant suppression, by head",
        "off-commutant suppression that stationary queries would have",
    ):
        assert found[name] == pytest.approx([1 - kept] * 3)
    assert found["pooled off-commutant suppression"] == pytest.approx(1 - kept)
    assert found["relative difference of the second moments of two halves"] == [0.0, 0.0, 0.0]


def test_queries_that_the_rotation_aligns_have_a_negative_suppression() -> None:
    """q_t = R_{-t} (1, 0): not stationary, and after the rotation all of them are (1, 0)."""
    angle = -torch.arange(4.0)
    raw = measure(of_queries(torch.stack((angle.cos(), angle.sin()), dim=-1)))
    found = by_name(SECTION, raw)
    assert found["off-commutant energy after rotation"] == pytest.approx([0.5] * 3)
    assert found["off-commutant suppression"][0] < 0
    assert found["off-commutant suppression that stationary queries would have"][0] > 0
    assert found["relative difference of the second moments of two halves"][0] > 0.5


def test_halves_by_hand() -> None:
    """Of five tokens the first two are (1, 0) and the last two (0, 1): ‖diag(1, -1)‖ / 1; the middle one is in none."""
    queries = torch.tensor([[1.0, 0.0], [1.0, 0.0], [9.0, 9.0], [0.0, 1.0], [0.0, 1.0]])
    found = by_name(SECTION, measure(of_queries(queries)))
    assert found["relative difference of the second moments of two halves"] == pytest.approx([math.sqrt(2)] * 3)
    assert found["pooled relative difference of the second moments of two halves"] == pytest.approx(math.sqrt(2))


@given(st.integers(2, 9), st.integers(1, 3), st.integers(0, 100))
def test_the_commutant_keeps_its_energy(tokens: int, half: int, seed: int) -> None:
    queries = torch.randn(tokens, 2 * half, generator=torch.Generator().manual_seed(seed))
    raw = measure(of_queries(queries))
    np.testing.assert_allclose(raw.kept_after, raw.kept_before, rtol=1e-5)  # the tables' angles are float32
    moment = (queries.T @ queries).double() / tokens
    kept = commutant_projection(moment).square().sum()
    np.testing.assert_allclose(raw.kept_before.item(), kept, rtol=1e-5)
    np.testing.assert_allclose((raw.kept_before + raw.off_before).item(), moment.square().sum(), rtol=1e-5)
    assert (raw.off_stationary <= raw.off_before).all()


def test_modes_add_up_to_the_energies() -> None:
    raw = measure(tiny())
    off = ~np.eye(4, dtype=bool)
    for modes, outside in ((raw.modes_before, raw.off_before), (raw.modes_after, raw.off_after)):
        np.testing.assert_allclose(modes[:, off].sum(-1), outside.mean(axis=(0, 2)), rtol=1e-12)
    assert raw.frequencies.shape == (4, 4) and not raw.frequencies.diagonal().any()


def test_both_layouts_of_pairs() -> None:
    """The rotation leaves the commutant alone only if the pairs are those that the model turns."""
    for interleaved in (True, False):
        raw = measure(tiny(rope_interleaved=interleaved))
        np.testing.assert_allclose(raw.kept_after, raw.kept_before, rtol=1e-5)


def test_pooling_over_heads_is_of_energies() -> None:
    raw = measure(tiny())
    pooled = 1 - raw.off_after.sum(-1) / raw.off_before.sum(-1)
    value = by_name(SECTION, raw)["off-commutant suppression"]
    assert value == pytest.approx([pooled.min(), np.median(pooled), pooled.max()], rel=1e-12)


def test_reference_checkpoints(reference: Path) -> None:
    """Short prompts: the rotation removes a part of what does not commute, less than of stationary queries."""
    for name in ("critical", "subcritical"):
        found = summary(SECTION, trained(reference, name))
        assert 0 < found["pooled off-commutant suppression"].value < 0.3
        fraction = [found[f"commutant fraction {when} rotation"].value[1] for when in ("before", "after")]
        assert 0 < fraction[0] < fraction[1] < 0.5
        assert found["relative difference of the second moments of two halves"].value[1] > 0.5


def test_a_constant_operator_has_no_density() -> None:
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
