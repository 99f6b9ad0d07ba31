"""Section H: by hand, at any magnitude, and on the two reference checkpoints."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from plga.audit.acyclicity import SECTION, Acyclicity, measure
from plga.audit.section import NotMeasurable
from tests.audit.subjects import by_name, shown, tiny, trained


def of_matrices(metric: Tensor, potential: Tensor, curvature: Tensor) -> Acyclicity:
    """Of one prompt, layer and head, [d, d] each."""
    subject = tiny((3,), num_hidden_layers=1, num_attention_heads=1, hidden_size=len(metric))
    named = {"metric": metric, "potential": potential, "curvature": curvature}
    return measure(shown(subject, **{name: matrix[None, None, None] for name, matrix in named.items()}))


def test_by_hand() -> None:
    """tr exp of ones(2) is 1 + e²; of diag(ln 2, ln 3) it is 5; [[0, 1], [0, 0]] has no cycle, and 0 as its floor."""
    diagonal = torch.tensor([[math.sqrt(math.log(2)), 0.0], [0.0, math.sqrt(math.log(3))]], dtype=torch.float64)
    found = by_name(SECTION, of_matrices(torch.ones(2, 2), diagonal, torch.tensor([[0.0, 1.0], [0.0, 0.0]])))
    loss = math.log((1 + math.exp(2)) / 2)
    assert found["DAG loss of A_LM"] == pytest.approx([loss] * 3, rel=1e-12)
    assert found["mean DAG loss of A_LM"] == pytest.approx(loss, rel=1e-12)
    assert found["floor of the DAG loss of A_LM"] == pytest.approx([math.log(2)] * 3)
    assert found["log10(tr exp(M ⊙ M) - d) of A_LM"] == pytest.approx([math.log10(math.exp(2) - 1)] * 3, rel=1e-12)
    assert found["floor of log10(tr exp(M ⊙ M) - d) of A_LM"] == pytest.approx([math.log10(2)] * 3)
    assert found["DAG loss of A_P"] == pytest.approx([math.log(2.5)] * 3, rel=1e-12)
    assert found["DAG loss of G_LM"] == [0.0, 0.0, 0.0]
    assert found["log10(tr exp(M ⊙ M) - d) of G_LM"] is None
    assert found["floor of log10(tr exp(M ⊙ M) - d) of G_LM"] is None
    assert all(found[f"DAG losses of {symbol} below their floor"] == 0 for symbol in ("A_LM", "A_P", "G_LM"))


def test_at_the_architectural_floor_loss_and_floor_are_one() -> None:
    """Published A_LM consist of ε alone: tr exp - d is then d ε² to a relative d ε², and a rounding must not show."""
    floor = torch.full((4, 4), 1e-9)
    found = by_name(SECTION, of_matrices(floor, floor, floor))
    assert found["DAG loss of A_LM"] == pytest.approx([1e-18] * 3, rel=1e-6)
    assert found["architectural floor of the DAG loss of A_LM"] == pytest.approx(1e-18, rel=1e-6)
    assert found["DAG losses of A_LM below the architectural floor"] == 0
    assert found["DAG losses of A_LM below their floor"] == 0
    assert found["architectural floor of log10(tr exp(M ⊙ M) - d) of A_LM"] == pytest.approx(
        math.log10(4) - 18, rel=1e-6
    )


@given(st.integers(-30, 30), st.integers(0, 50))
def test_finite_and_above_the_floor_at_any_magnitude(power: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    matrices = 10.0**power * torch.randn(3, 4, 4, generator=draw, dtype=torch.float64)
    raw = of_matrices(*matrices)
    assert np.isfinite(raw.loss).all()
    found = by_name(SECTION, raw)
    for symbol, loss in zip(("A_LM", "A_P", "G_LM"), raw.loss, strict=True):
        assert found[f"DAG losses of {symbol} below their floor"] == 0
        excess, least = (found[f"{kind}log10(tr exp(M ⊙ M) - d) of {symbol}"] for kind in ("", "floor of "))
        assert math.isfinite(excess[0]) and excess[0] >= least[0] - 1e-9
        assert loss.item() >= 0


def test_a_loss_below_its_floor_is_seen() -> None:
    raw = Acyclicity(np.full((3, 1, 1, 1), 1e-4), np.full((3, 1, 1, 1), 0.1), np.array([4]), np.array([1e-9]))
    assert by_name(SECTION, raw)["DAG losses of A_P below their floor"] == 1


def test_reference_checkpoints_keep_their_floors(reference: Path) -> None:
    for name in ("critical", "subcritical"):
        raw = measure(trained(reference, name))
        assert raw.loss.shape == (3, 4, 2, 4) and (raw.loss > 0).all()
        found = by_name(SECTION, raw)
        for symbol in ("A_LM", "A_P", "G_LM"):
            assert found[f"DAG losses of {symbol} below their floor"] == 0
        assert found["DAG losses of A_LM below the architectural floor"] == 0


def test_the_losses_are_those_of_the_reference_implementation(reference: Path) -> None:
    expected = load_file(reference / "subcritical.expected.safetensors")
    subject = trained(reference, "subcritical")
    whole = type(subject)(model=subject.model, prompts=(expected["case0.input_ids"][0],))
    raw = measure(whole)
    for symbol, loss in zip(("metric", "potential", "curvature"), raw.loss, strict=True):
        np.testing.assert_allclose(loss[0], expected[f"case0.dag_{symbol}"], rtol=1e-3)


def test_a_constant_operator_has_no_metric() -> None:
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
