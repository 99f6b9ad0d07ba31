"""Section E: maps with known Jacobians, finite differences, and the two reference checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plga.audit import contraction
from plga.audit.contraction import SECTION, Contraction, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.model.linear import Linear
from plga.model.operator import MetricLearner
from tests.audit.subjects import by_name, shown, summary, tiny, trained

LARGEST = "largest singular value of the Jacobian of φ"


def learner_of(subject: Subject) -> MetricLearner:
    """Of the first layer."""
    learner = subject.layers[0].self_attn.operator.learner
    assert isinstance(learner, MetricLearner)
    return learner


def with_map(*matrices: Tensor, density: Tensor | None = None) -> Subject:
    """A model of one layer and head whose units are linear, and whose prompts have these density operators."""
    prompts = 2 if density is None else len(density)
    subject = tiny((5,) * prompts, num_hidden_layers=1, num_attention_heads=1, hidden_size=4)
    units = nn.ModuleList(Linear(4, 4) for _ in matrices)
    with torch.no_grad():
        for unit, matrix in zip(units, matrices, strict=True):
            unit.weight.copy_(matrix)
    if density is not None:
        subject = shown(subject, density=density[:, None, None])
    else:
        list(subject.visits())  # before the operator is another
    learner_of(subject).units = units
    return subject


def test_a_linear_map_by_hand() -> None:
    """φ = diag(4, 1/4, 1/2, 0) diag(1/4, 4, 2, 1) = diag(1, 1, 1, 0): its singular values are no products of theirs."""
    first, second = torch.tensor([0.25, 4.0, 2.0, 1.0]), torch.tensor([4.0, 0.25, 0.5, 0.0])
    raw = measure(with_map(first.diag(), second.diag()))
    np.testing.assert_allclose(raw.singular, np.broadcast_to([1.0, 1.0, 1.0, 0.0], (2, 1, 4, 4)), rtol=1e-15)
    np.testing.assert_allclose(raw.unit_largest, 4.0, rtol=1e-15)
    found = by_name(SECTION, raw)
    assert found[LARGEST] == pytest.approx([1.0] * 3)
    assert found["rows where φ does not contract"] == found["rows of LN(D) with a Jacobian"] == 8
    assert found["diagnostic: product of the largest singular values of the units"] == pytest.approx([16.0] * 3)


def test_ratios_of_a_multiple_of_the_identity() -> None:
    """φ(x) = x / 2 + b halves every distance, within prompts and across them."""
    subject = with_map(torch.eye(4) / 2)
    torch.nn.init.normal_(learner_of(subject).units[0].bias)
    found = by_name(SECTION, measure(subject))
    for where, pairs in (("within a prompt", 2 * 6), ("across prompts", 4)):
        assert found[f"retained pairs {where}"] == pairs
        assert found[f"pairwise contraction ratio {where}"] == pytest.approx([0.5] * 3)
        assert found[f"pooled pairwise contraction ratio {where}"] == pytest.approx(0.5)
    assert found["rows where φ does not contract"] == 0


def test_ratios_by_hand() -> None:
    """Rows ±(1, -1, 0, 0) √2 and ±(0, 0, 1, -1) √2 of LN(D), less the first two axes: ‖x - y‖ is 4, or √8."""
    rows = torch.tensor([[1.0, -1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0], [0.0, 0.0, -1.0, 1.0]])
    raw = measure(with_map(torch.tensor([1.0, 1.0, 0.0, 0.0]).diag(), density=1e4 * rows[None]))
    before, after = raw.within_input[0], raw.within_output[0]
    order = np.lexsort((after, before))
    np.testing.assert_allclose(before[order], [8**0.5] * 4 + [4.0] * 2, rtol=1e-7)
    np.testing.assert_allclose(after[order], [2.0] * 4 + [0.0, 4.0], atol=1e-7)
    found = by_name(SECTION, raw)
    assert found["retained pairs within a prompt with one image"] == 1
    assert found["pairwise contraction ratio within a prompt"] == pytest.approx([0.0, 0.5**0.5, 1.0], rel=1e-7)
    assert found["pooled pairwise contraction ratio within a prompt"] == pytest.approx((32 / 64) ** 0.5, rel=1e-7)


def test_pairs_that_rounding_makes_are_dropped_and_counted() -> None:
    """Two rows are equal, and a third is one float32 rounding away: three of six pairs are none."""
    row = torch.tensor([1.0, 2.0, 3.0, 5.0])
    near = row.clone()
    near[3] = torch.nextafter(row[3], torch.tensor(6.0))
    density = torch.stack((row, row, near, -row))
    found = by_name(SECTION, measure(with_map(torch.eye(4), density=density[None])))
    assert found["retained pairs within a prompt"] == 3
    assert found["pairwise contraction ratio within a prompt"] == pytest.approx([1.0] * 3)
    # All rows are one: there is no ratio.
    found = by_name(SECTION, measure(with_map(torch.eye(4), density=row.expand(1, 4, 4))))
    assert found["retained pairs within a prompt"] == 0
    assert found["pairwise contraction ratio within a prompt"] is None
    assert found["pooled pairwise contraction ratio within a prompt"] is None


def test_one_prompt_has_no_pairs_across() -> None:
    raw = measure(tiny((6,)))
    found = {quantity.name: quantity for quantity in SECTION.quantities(raw)}
    assert raw.across_input.shape == (2, 0)
    assert found["pairwise contraction ratio across prompts"].value is None
    assert "one prompt only" in found["pairwise contraction ratio across prompts"].over
    assert found["retained pairs within a prompt"].value == raw.within_input.size


def test_jacobians_are_finite_differences_of_the_model() -> None:
    subject = tiny((6, 5), seed=3)
    with torch.no_grad():
        for parameter in learner_of(subject).parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    raw = measure(subject)
    learner = learner_of(subject).double()

    def by_differences(function: nn.Module, x: Tensor) -> Tensor:
        """Singular values at rows [n, 4]."""
        moves = 1e-6 * torch.eye(4, dtype=torch.float64)
        columns = (function(x[:, None] + moves) - function(x[:, None] - moves)) / 2e-6
        return torch.linalg.svdvals(columns.mT)

    with torch.no_grad():
        for number in range(2):
            x = learner.input_norm(subject.visit(number).density[0].double()).flatten(0, 1)[raw.rows[number, 0]]
            expected = by_differences(nn.Sequential(*learner.units), x)
            np.testing.assert_allclose(raw.singular[number, 0], expected, rtol=0, atol=1e-8 * float(expected.max()))
            assert float(expected.max()) > 1e-3
            for unit, largest in zip(learner.units, raw.unit_largest[number, 0], strict=True):
                np.testing.assert_allclose(largest, by_differences(unit, x)[:, 0], rtol=1e-6)
                x = unit(x)
    assert (raw.singular[..., 0] <= raw.unit_largest.prod(axis=2) * (1 + 1e-12)).all()


def test_rows_are_a_seeded_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 rows; the sample is told, and what is measured at a row is the same in a larger sample."""
    subject = tiny()
    every = measure(subject)
    assert np.array_equal(np.sort(every.rows, axis=-1), np.broadcast_to(np.arange(8), (3, 2, 8)))
    monkeypatch.setattr(contraction, "ROWS", 3)
    some = measure(subject)
    assert some.rows.shape == (3, 2, 3) and np.array_equal(some.rows, measure(subject).rows)
    assert not np.array_equal(some.rows, measure(Subject(subject.model, subject.prompts, seed=1)).rows)
    told = next(q for q in SECTION.quantities(some) if q.name == LARGEST)
    assert told.over == "3 of the 8 rows of LN(D) of each layer and prompt, seeded"
    for index in np.ndindex(3, 2):
        at = {int(row): value for row, value in zip(every.rows[index], every.singular[index], strict=True)}
        for row, value in zip(some.rows[index], some.singular[index], strict=True):
            np.testing.assert_allclose(value, at[int(row)], rtol=1e-12, atol=1e-14 * value.max())  # the small ones


def test_reference_checkpoints(reference: Path) -> None:
    """Near the critical point φ forgets its row; below it, it keeps it."""
    critical = {name: quantity.value for name, quantity in summary(SECTION, trained(reference, "critical")).items()}
    below = {name: quantity.value for name, quantity in summary(SECTION, trained(reference, "subcritical")).items()}
    assert critical[LARGEST][2] < 1e-4 and critical["rows where φ does not contract"] == 0
    assert below[LARGEST][0] > 1 and below["rows where φ does not contract"] == 4 * 2 * 64
    for where in ("within a prompt", "across prompts"):
        name = f"pairwise contraction ratio {where}"
        assert critical[f"retained pairs {where}"] == below[f"retained pairs {where}"] > 0
        assert critical[name][2] < 1e-4 and below[name][0] > 0.1


def test_raw_shapes_and_reasons() -> None:
    raw = measure(tiny())
    assert isinstance(raw, Contraction)
    assert raw.singular.shape == (3, 2, 8, 4) and raw.unit_largest.shape == (3, 2, 2, 8)
    assert raw.within_input.shape == (2, 3 * 28) and raw.across_output.shape == (2, 3 * 8)
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
    with pytest.raises(NotMeasurable, match="prompt 1 has 1 token"):
        measure(tiny((1, 4)))
