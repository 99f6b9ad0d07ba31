"""Section E2: orthonormal rows by hand, the bound against its definition and a simulation, and the references."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from plga.audit.concentration import SECTION, Concentration, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from tests.audit.subjects import by_name, prompt, shown, summary, tiny, trained


def with_rows(rows: Tensor) -> Subject:
    """A model of one layer and head whose prompts have these rotated queries, [N, S, 4]."""
    subject = tiny((rows.shape[1],) * len(rows), num_hidden_layers=1, num_attention_heads=1, hidden_size=4)
    return shown(subject, rotated=rows[:, None, None])


def test_orthonormal_rows_by_hand() -> None:
    """One prompt reads e1 e2 e3 e4, the other e2 e1 e4 e3.

    At S = 1 the mean is diag(1, 1, 0, 0) / 2 and either prompt is 1/2 from it; at S = 2 and 4 both prompts are the
    mean. ‖q‖² = 1, so v is the largest of m - m² over the diagonal m of the mean: 1/4, 1/4 and 3/16.
    """
    basis = torch.eye(4)
    raw = measure(with_rows(torch.stack((basis, basis[[1, 0, 3, 2]]))))
    assert raw.lengths.tolist() == [1, 2, 4] and raw.width == 4
    np.testing.assert_allclose(raw.apart[:, :, 0, 0], [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]], atol=1e-15)
    np.testing.assert_allclose(raw.size.ravel(), [0.5, 0.5, 0.25])
    np.testing.assert_allclose(raw.largest.ravel(), 1.0)
    np.testing.assert_allclose(raw.variance.ravel(), [0.25, 0.25, 3 / 16])
    found = by_name(SECTION, raw)
    assert found["relative spread of D / S at S = 1"] == pytest.approx([1.0] * 3)
    assert found["relative spread of D / S at the longest prefix"] == [0.0] * 3
    assert found["exponent of the relative spread in S"] is None
    name = "matrix-Bernstein bound of the expected relative spread at"
    log = math.log(8)
    assert found[f"{name} S = 1"] == pytest.approx([(math.sqrt(0.5 * log) + log / 3) / 0.5] * 3)
    assert found[f"{name} S = 4"] == pytest.approx([(math.sqrt(3 / 32 * log) + log / 12) / 0.25] * 3)
    assert found[f"{name} the longest prefix"] == found[f"{name} S = 4"]


def test_a_difference_of_scale_by_hand() -> None:
    """Rows e1 and 3 e1: D / S is 1 and 9, the mean 5, either 4 / 5 from it at every S, and the spread never falls."""
    row = torch.tensor([1.0, 0.0, 0.0, 0.0])
    found = by_name(SECTION, measure(with_rows(torch.stack((row, 3 * row))[:, None].expand(2, 5, 4))))
    for length in (1, 2, 4):
        assert found[f"relative spread of D / S at S = {length}"] == pytest.approx([0.8] * 3)
        assert found[f"pooled relative spread of D / S at S = {length}"] == pytest.approx(0.8)
    assert found["exponent of the relative spread in S"] == pytest.approx([0.0] * 3, abs=1e-14)


def test_against_the_definitions() -> None:
    """Prefixes of prompts of unlike lengths, each norm the largest singular value, the variance by single rows."""
    subject = tiny((9, 5, 6))
    raw = measure(subject)
    assert raw.lengths.tolist() == [1, 2, 4]
    for index, length in enumerate((1, 2, 4)):
        rows = torch.stack([visit.rotated[1, 0, :length] for visit in subject.visits()]).double()
        outer = rows[..., :, None] * rows[..., None, :]
        mean = outer.mean((0, 1))
        apart = torch.linalg.matrix_norm(outer.mean(1) - mean, ord=2)
        variance = torch.linalg.matrix_norm(((outer - mean) @ (outer - mean)).mean((0, 1)), ord=2)
        np.testing.assert_allclose(raw.apart[index, :, 1, 0], apart, rtol=1e-12)
        np.testing.assert_allclose(raw.size[index, 1, 0], torch.linalg.matrix_norm(mean, ord=2), rtol=1e-12)
        np.testing.assert_allclose(raw.variance[index, 1, 0], variance, rtol=1e-12)
        np.testing.assert_allclose(raw.largest[index, 1, 0], rows.norm(dim=-1).max() ** 2, rtol=1e-12)


def test_independent_rows_keep_the_bound_and_its_rate() -> None:
    rows = torch.randn(40, 64, 4, generator=torch.Generator().manual_seed(0))
    subject = with_rows(torch.zeros(40, 12, 4))  # the context of the model is shorter than these rows
    subject = shown(subject, rotated=rows[:, None, None])
    found = by_name(SECTION, measure(subject))
    assert found["mean spread above the matrix-Bernstein bound at the longest prefix"] == 0
    assert found["exponent of the relative spread in S"] == pytest.approx([-0.5] * 3, abs=0.1)


def test_rows_that_repeat_are_above_the_bound() -> None:
    """Each prompt says one of 4 directions all along: the rows depend on each other, and the bound does not hold."""
    rows = torch.eye(4)[torch.arange(8) % 4][:, None].expand(8, 512, 4)
    subject = shown(with_rows(torch.zeros(8, 12, 4)), rotated=rows[:, None, None])
    found = by_name(SECTION, measure(subject))
    assert found["mean spread above the matrix-Bernstein bound at the longest prefix"] == 1
    assert found["relative spread of D / S at the longest prefix"] == pytest.approx([3.0] * 3)


def test_prompts_with_one_beginning_show_no_spread() -> None:
    """Up to S = 4, what the model reads is the same: that nothing differs there is no concentration."""
    model, same = tiny().model, prompt(5)
    prompts = tuple(torch.cat((same, ends)) for ends in (prompt(1, 1), prompt(2, 2), prompt(1, 3)))
    with pytest.raises(NotMeasurable, match="all prompts begin with the same 4 tokens"):
        measure(Subject(model=model, prompts=prompts))
    found = summary(SECTION, Subject(model=model, prompts=(*prompts, torch.cat((same[:2], prompt(5, 4))))))
    over = "layer, head and prompt"
    assert found["relative spread of D / S at S = 2"].over.startswith(f"{over} (1 different prefixes of 4 prompts)")
    assert found["relative spread of D / S at S = 4"].over == f"{over} (2 different prefixes of 4 prompts)"
    assert (
        found["pooled relative spread of D / S at S = 4"].over
        == f"pooled over {over} (2 different prefixes of 4 prompts)"
    )
    longest = found["relative spread of D / S at the longest prefix"].over
    assert longest == f"{over} (2 different prefixes of 4 prompts), S = 4"


def test_the_bound_is_labelled() -> None:
    for quantity in SECTION.quantities(measure(tiny())):
        if quantity.name.startswith("matrix-Bernstein"):
            assert quantity.kind == "bound" and quantity.claim == "conditional theorem"
            assert "independent" in quantity.over


def test_reference_checkpoints(reference: Path) -> None:
    for name in ("critical", "subcritical"):
        found = summary(SECTION, trained(reference, name))
        first, last = (found[f"pooled relative spread of D / S at S = {length}"].value for length in (1, 16))
        assert last < 0.5 * first
        assert found["exponent of the relative spread in S"].value[2] < -0.1


def test_raw_shapes_and_reasons() -> None:
    raw = measure(tiny())
    assert isinstance(raw, Concentration) and raw.apart.shape == (3, 3, 2, 2) and raw.size.shape == (3, 2, 2)
    with pytest.raises(NotMeasurable, match="one prompt only"):
        measure(tiny((6,)))
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
    with pytest.raises(NotMeasurable, match="prompt 2 has 1 token"):
        measure(tiny((4, 1)))
