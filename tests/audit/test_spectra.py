"""Section B: by hand, on weights drawn anew, and on the two reference checkpoints."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from plga.audit.section import NotMeasurable
from plga.audit.spectra import SECTION, Spectra, measure
from plga.collapse.invariance import invariance, outputs_over
from tests.audit.subjects import by_name, shown, summary, tiny, trained


@pytest.fixture(scope="module")
def by_hand() -> Spectra:
    """One layer of two heads: A = diag(3, 4) and ones, A_LM = [[1, 4], [2, 3]] and 1e-200 I, which is not positive."""
    generator = torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    metric = torch.stack((torch.tensor([[1.0, 4.0], [2.0, 3.0]], dtype=torch.float64), 1e-200 * torch.eye(2).double()))
    subject = tiny((3,), hidden_size=4, num_hidden_layers=1, dtype=torch.float64)
    return measure(shown(subject, generator=generator[None, None], metric=metric[None, None]))


def test_spectra_by_hand(by_hand: Spectra) -> None:
    found = by_name(SECTION, by_hand)
    assert found["largest singular value of A"] == pytest.approx([2.0, 3.0, 4.0])
    assert found["s2 / s1 of A"] == pytest.approx([0.0, 0.375, 0.75], abs=1e-15)
    assert found["pooled s2 / s1 of A"] == pytest.approx(3 / math.sqrt(20))
    assert found["numerical rank of A"] == [1.0, 1.5, 2.0]
    assert found["numerical rank of A_LM"] == [2.0, 2.0, 2.0]
    assert found["smallest entry of A_LM"] == [0.0, 0.5, 1.0]
    assert found["largest entry of A_LM"] == [1e-200, 2.0, 4.0]


def test_spreads_of_rows_by_hand(by_hand: Spectra) -> None:
    """A less the mean over the heads is ± [[1, -1/2], [-1/2, 3/2]]; diag(3, 4) less its mean row ± (3/2, -2)."""
    found = by_name(SECTION, by_hand)
    assert found["cross-head RMS difference of A"] == pytest.approx([math.sqrt(7.5 / 8)] * 3)
    assert found["cross-head relative difference of A"] == pytest.approx([math.sqrt(7.5 / 29)] * 3)
    assert found["pooled cross-head relative difference of A"] == pytest.approx(math.sqrt(7.5 / 29))
    assert found["row-variance ratio of A"] == pytest.approx([0.0, 0.25, 0.5], rel=1e-14, abs=0)
    assert found["pooled row-variance ratio of A"] == pytest.approx(12.5 / 29)


def test_perron_by_hand(by_hand: Spectra) -> None:
    """[[1, 4], [2, 3]] has eigenvalues 5 and -1, right vector (1, 1) / 2, left vector (2, 4) / 3."""
    found = by_name(SECTION, by_hand)
    assert found["A_LM with an entry that is not positive"] == 1
    assert found["Perron root of A_LM"] == pytest.approx([5.0] * 3)
    assert found["smallest component of the right Perron vector of A_LM (Σv = 1)"] == pytest.approx([0.5] * 3)
    assert found["smallest component of the left Perron vector of A_LM (u·v = 1)"] == pytest.approx([2 / 3] * 3)
    # What is not positive has no Perron vector, so none that is known to be positive.
    assert found["right Perron vectors of A_LM with a component that is not positive"] == 1
    assert found["Perron gap of A_LM"] == pytest.approx([0.0, 0.4, 0.8])
    assert np.isnan(by_hand.perron_root[0, 0, 1]) and np.isnan(by_hand.perron_left[0, 0, 1]).all()
    assert found["residual of the Perron triple of A_LM"][2] < 1e-14


def test_determinants_by_hand(by_hand: Spectra) -> None:
    """det(1e-200 I) = 1e-400 is 0 in float64; det [[1, 1], [1, 1]] is 0."""
    found = by_name(SECTION, by_hand)
    assert found["det(A_LM) that is 0 in float64 though slogdet is finite"] == 1
    assert found["det(A_LM) that is 0 in float32 though slogdet is finite"] == 1
    assert found["log |det A_LM| by slogdet"] == pytest.approx(
        [-400 * math.log(10), (math.log(5) - 400 * math.log(10)) / 2, math.log(5)]
    )
    assert found["det(A) that is 0 in float64 though slogdet is finite"] == 0
    assert found["A singular by slogdet"] == 1
    assert found["log |det A| by slogdet"] == pytest.approx([math.log(12)] * 3)


def test_critical_and_subcritical_are_opposite(reference: Path) -> None:
    critical, subcritical = (summary(SECTION, trained(reference, name)) for name in ("critical", "subcritical"))
    assert critical["numerical rank of A"].value == [1.0, 1.0, 1.0]
    assert subcritical["numerical rank of A"].value[0] >= 31
    assert critical["s2 / s1 of A"].value[2] < 1e-5 < 0.5 < subcritical["s2 / s1 of A"].value[0]
    assert critical["row-variance ratio of A"].value[2] < 1e-10 < 0.5 < subcritical["row-variance ratio of A"].value[0]
    apart = "cross-head relative difference of A"
    assert critical[apart].value[2] < 1e-5 < 0.5 < subcritical[apart].value[0]
    for found in (critical, subcritical):
        assert found["right Perron vectors of A_LM with a component that is not positive"].value == 0
        assert found["left Perron vectors of A_LM with a component that is not positive"].value == 0
        assert found["smallest entry of A_LM"].value[0] > 0
        assert found["residual of the Perron triple of A_LM"].value[2] < 64 * 2.0**-52
        # At random initialization no checkpoint is near-critical.
        for law in ("xavier-normal", "xavier-uniform"):
            assert found[f"s2 / s1 of A at random initialization ({law})"].value[0] > 0.3
            assert found[f"row-variance ratio of A at random initialization ({law})"].value[0] > 0.9
            assert found[f"numerical rank of A at random initialization ({law})"].value == [31.0, 31.0, 31.0]


def test_spectra_agree_with_the_collapse_report(reference: Path) -> None:
    subject = trained(reference, "critical")
    raw = measure(subject)
    assert subject.model is not None
    told = invariance(outputs_over(subject.model, subject.prompts))
    ratio = raw.generator_singular[0, ..., 1] / raw.generator_singular[0, ..., 0]
    np.testing.assert_allclose(ratio.max(axis=0), told.second_singular_value, rtol=1e-6)


def test_the_laws_differ_and_are_seeded() -> None:
    raw, again, other = measure(tiny()), measure(tiny()), measure(tiny(seed=1))
    for name, values in vars(raw).items():
        np.testing.assert_array_equal(values, vars(again)[name])
    assert raw.metric_singular.shape == (3, 3, 2, 2, 4)
    assert not np.array_equal(raw.metric_max[1], raw.metric_max[2])
    assert not np.array_equal(raw.metric_max[1], other.metric_max[1])
    subject = tiny()
    state = torch.random.get_rng_state()
    measure(subject)
    assert torch.equal(torch.random.get_rng_state(), state)  # drawing them is nobody else's randomness


def test_one_head_has_no_other_to_differ_from() -> None:
    found = summary(SECTION, tiny(num_attention_heads=1, hidden_size=4))
    assert "row-variance ratio of A" in found and "cross-head relative difference of A" not in found


def test_a_constant_operator_has_no_spectra() -> None:
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
