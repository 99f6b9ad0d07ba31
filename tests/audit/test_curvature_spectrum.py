"""Section B2: by hand, on the published tensor, and on models."""

import math
from pathlib import Path

import pytest
import torch

from plga.audit.curvature_spectrum import SECTION, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.model.pickles import load_curvatures
from tests.audit.subjects import summary, tiny, trained


def test_by_hand() -> None:
    """diag(3, -4) and the zero matrix, which has no ratio."""
    operators = torch.stack((torch.tensor([3.0, -4.0]).diag(), torch.zeros(2, 2)))[None]
    found = summary(SECTION, Subject(operators=operators))
    assert found["spectral norm of G_LM"].value == [0.0, 2.0, 4.0]
    assert found["Frobenius norm of G_LM"].value == [0.0, 2.5, 5.0]
    assert found["largest magnitude of an entry of G_LM"].value == [0.0, 2.0, 4.0]
    assert found["s2 / s1 of G_LM"].value == [0.75, 0.75, 0.75]
    assert found["s2 / s1 of G_LM"].over == "layer and head, without 1 of 2 with denominator 0"
    assert found["pooled s2 / s1 of G_LM"].value == 0.75
    assert found["numerical rank of G_LM"].value == [0.0, 1.0, 2.0]


def test_the_published_tensor_needs_no_model(reference: Path) -> None:
    operators = load_curvatures(reference / "G_LM_PLDRv51-110M-1.pkl")
    raw = measure(Subject(operators=operators))
    assert raw.singular.shape == (1, 5, 14, 64) and raw.curvature.shape == (5, 14, 64, 64)
    found = {quantity.name: quantity.value for quantity in SECTION.quantities(raw)}
    norms = operators.double().square().sum((-2, -1)).sqrt()
    assert found["Frobenius norm of G_LM"] == pytest.approx(
        [float(norms.min()), float(norms.quantile(0.5)), float(norms.max())], rel=1e-12
    )


def test_operators_of_models(reference: Path) -> None:
    assert measure(trained(reference, "critical")).singular.shape == (4, 2, 4, 32)
    constant = summary(SECTION, tiny(operator="constant", constant="identity"))
    assert constant["Frobenius norm of G_LM"].value == [2.0, 2.0, 2.0]
    assert constant["spectral norm of G_LM"].over == "layer and head"
    assert math.isclose(constant["pooled s2 / s1 of G_LM"].value, 1.0)


def test_a_width_of_one_has_no_spectrum() -> None:
    with pytest.raises(NotMeasurable, match="the width of G_LM is 1"):
        measure(Subject(operators=torch.ones(1, 1, 1, 1)))
