"""Section E: the Jacobian of the row map, and pairs of rows."""

from pathlib import Path

import numpy as np
import torch

from plga.audit import contraction
from plga.audit.contraction import SECTION, Contraction, jacobians
from plga.model.operator import LearnedOperator
from tests.audit.subjects import by_name, summary, tiny, trained


def test_jacobian_of_the_composition_against_finite_differences() -> None:
    operator = tiny().layers[0].self_attn.operator
    assert isinstance(operator, LearnedOperator)
    learner = operator.learner.double()
    rows = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    images, products, units = jacobians(learner, rows)

    def phi(x: torch.Tensor) -> torch.Tensor:
        for unit in learner.units:
            x = unit(x)
        return x.detach()

    assert torch.allclose(images, phi(rows), atol=1e-12)
    step = 1e-6
    for column in range(4):
        moved = torch.zeros(4, dtype=torch.float64)
        moved[column] = step
        quotient = (phi(rows + moved) - phi(rows - moved)) / (2 * step)
        assert torch.allclose(products[..., column], quotient, atol=1e-7, rtol=1e-5)
    assert units.shape == (3, len(learner.units))
    # The largest of a product is at most the product of the largest.
    assert bool((torch.linalg.matrix_norm(products, ord=2) <= units.prod(dim=-1) * (1 + 1e-12)).all())


def test_pairs_that_are_one_row_are_dropped_and_counted() -> None:
    before, after, scale = np.array([[[0.0, 2.0, 1e-13]]]), np.array([[[0.0, 1.0, 1.0]]]), np.ones((1, 1, 3))
    raw = Contraction(
        np.array([3]), np.ones((1, 1, 3, 2)), np.ones((1, 1, 3, 2)), before, after, scale,
        np.zeros((0, 1, 3)), np.zeros((0, 1, 3)), np.zeros((0, 1, 3)),
    )  # fmt: skip
    found = by_name(SECTION, raw)
    assert found["pairs retained within a prompt"] == 1
    assert found["contraction ratio within a prompt"] == [0.5, 0.5, 0.5]
    assert found["pairs retained across prompts"] == 0
    assert "contraction ratio across prompts" not in found


def test_a_sample_is_seeded() -> None:
    one, two = (SECTION.measure(tiny()) for _ in range(2))
    assert all(np.array_equal(getattr(one, name), getattr(two, name)) for name in vars(one))
    assert one.singular.shape == (3, 2, min(contraction.ROWS, 8), 4)
    assert int(one.visited[0]) == 8


def test_the_critical_checkpoint_contracts_and_the_other_does_not(reference: Path) -> None:
    critical, subcritical = (summary(SECTION, trained(reference, name)) for name in ("critical", "subcritical"))
    for name in ("largest singular value of the Jacobian of φ", "contraction ratio within a prompt"):
        assert critical[name].value[2] < 1e-2  # type: ignore[index]
        assert subcritical[name].value[2] > 0.5  # type: ignore[index]
