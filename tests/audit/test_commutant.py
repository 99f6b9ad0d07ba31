"""Section D2: by hand, on the published tensor, and on models."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from plga.audit.commutant import SECTION, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.model.pickles import load_curvatures
from plga.ops.commutant import commutant_residual
from tests.audit.subjects import summary, tiny, trained


def test_by_hand() -> None:
    """[[1, 2], [3, 4]] = (5/2) I + (1/2) J + rest: 30 in all, 13 in the commutant. 10 I commutes. Zero has no ratio."""
    operators = torch.stack((torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 10 * torch.eye(2), torch.zeros(2, 2)))[:, None]
    found = summary(SECTION, Subject(operators=operators))
    largest = math.sqrt(17 / 30)
    assert found["commutant residual of G_LM"].value == pytest.approx([0.0, largest / 2, largest])
    assert found["commutant residual of G_LM"].over.endswith("without 1 of 3 with denominator 0")
    assert found["pooled commutant residual of G_LM"].value == pytest.approx(math.sqrt(17 / 230))


def test_the_published_tensor_needs_no_model(reference: Path) -> None:
    operators = load_curvatures(reference / "G_LM_PLDRv51-110M-1.pkl")
    found = summary(SECTION, Subject(operators=operators))["commutant residual of G_LM"]
    residual = commutant_residual(operators)
    assert found.value == pytest.approx([float(residual.min()), float(residual.quantile(0.5)), float(residual.max())])
    assert found.over == "layer and head"


def test_the_pairs_are_those_of_the_model() -> None:
    subject = tiny(rope_interleaved=False)
    raw = measure(subject)
    expected = commutant_residual(subject.visit(1).deductive.curvature, interleaved=False)
    np.testing.assert_allclose(raw.distance[1] / raw.norm[1], expected, rtol=1e-12)


def test_identity_commutes_and_what_was_trained_does_not(reference: Path) -> None:
    constant = summary(SECTION, tiny(operator="constant", constant="identity"))
    assert constant["commutant residual of G_LM"].value == [0.0, 0.0, 0.0]
    for name in ("critical", "subcritical"):
        assert summary(SECTION, trained(reference, name))["commutant residual of G_LM"].value[0] > 0.8


def test_an_odd_width_has_no_pairs() -> None:
    with pytest.raises(NotMeasurable, match="the width of G_LM is 3"):
        measure(Subject(operators=torch.ones(1, 1, 3, 3)))
