"""Penalties: schedules by hand, the sum with its coefficients, and how far a guard may raise them."""

import pytest
import torch

from plga.model.operator import DeductiveOutputs
from plga.ops.acyclicity import dag_loss
from plga.training.config import AlignmentSettings, DagSettings, ObjectiveSettings
from plga.training.penalties import Penalties, dag_losses, rise


def outputs(seed: int) -> DeductiveOutputs:
    generator = torch.Generator().manual_seed(seed)
    return DeductiveOutputs(*(torch.rand(3, 2, 4, 4, generator=generator) for _ in range(4)))


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.0, 0.25, 0.5, 1.0, 1.0]),
        ("cosine", [0.0, 0.1464466, 0.5, 1.0, 1.0]),
    ],
)
def test_schedules_by_hand(schedule: str, shares: list[float]) -> None:
    settings = DagSettings(metric=1.0, schedule=schedule, rise=0.4)
    assert [rise(settings, step, 100) for step in (0, 10, 20, 40, 90)] == pytest.approx(shares, abs=1e-7)


def test_the_losses_are_means_over_layers_sequences_and_heads() -> None:
    layers = [outputs(0), outputs(1)]
    losses = dag_losses(layers)
    expected = torch.cat([dag_loss(layer.potential).flatten() for layer in layers]).mean()
    torch.testing.assert_close(losses["potential"], expected)
    assert losses.keys() == {"metric", "potential", "curvature"}


def test_the_sum_by_hand() -> None:
    settings = ObjectiveSettings(
        dag=DagSettings(metric=0.5, curvature=2.0, schedule="linear", rise=1.0),
        alignment=AlignmentSettings(coefficient=3.0),
    )
    layers, alignment = [outputs(0), outputs(1)], [torch.tensor(0.1), torch.tensor(0.3)]
    total, values = Penalties(settings, steps=10).parts(5, layers, alignment)
    losses = dag_losses(layers)
    torch.testing.assert_close(total, 0.25 * losses["metric"] + losses["curvature"] + 3.0 * torch.tensor(0.2))
    assert values.keys() == {"dag_metric", "dag_curvature", "alignment"}  # what has no coefficient costs nothing
    torch.testing.assert_close(values["dag_curvature"], losses["curvature"])


def test_without_coefficients_nothing_is_asked_of_the_model() -> None:
    penalties = Penalties(ObjectiveSettings(), steps=10)
    assert not penalties.needs_deductive
    assert penalties.alignment_blocks is None
    assert penalties.parts(0, None, None) == (0.0, {})


def test_coefficients_rise_by_a_factor_up_to_the_cap() -> None:
    penalties = Penalties(ObjectiveSettings(dag=DagSettings(metric=0.1, potential=0.2)), steps=10)
    assert penalties.raise_coefficients(2.0, cap=0.7)
    assert penalties.coefficients(0) == pytest.approx({"metric": 0.2, "potential": 0.4, "curvature": 0.0})
    assert penalties.raise_coefficients(2.0, cap=0.7)  # as far as the largest may
    assert penalties.coefficients(0) == pytest.approx({"metric": 0.35, "potential": 0.7, "curvature": 0.0})
    assert not penalties.raise_coefficients(2.0, cap=0.7)


def test_a_coefficient_above_the_cap_is_not_lowered() -> None:
    penalties = Penalties(ObjectiveSettings(dag=DagSettings(metric=5.0)), steps=10)
    assert not penalties.raise_coefficients(2.0, cap=1.0)
    assert penalties.coefficients(0)["metric"] == 5.0


def test_zero_stays_zero() -> None:
    assert not Penalties(ObjectiveSettings(), steps=10).raise_coefficients(2.0, cap=1.0)
