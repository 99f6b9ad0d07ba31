"""Guards: each acts at its threshold, says so, keeps a record, and can be put down and taken up again."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plga.training.config import DagSettings, GuardSettings, ObjectiveSettings, TrainSettings
from plga.training.guards import CycleGuard, DragonKingGuard, ExponentGuard, Guard
from plga.training.monitor import Look
from plga.training.penalties import Penalties
from tests.training import examples


class Run:
    """What guards need of a trainer."""

    def __init__(self, **settings: Any) -> None:
        self.settings = TrainSettings(**settings)
        self.penalties = Penalties(self.settings.objective, steps=10)
        self.model = examples.model()
        self.state = SimpleNamespace(global_step=7)
        self.events: list[dict[str, Any]] = []

    def is_world_process_zero(self) -> bool:
        return True

    def record(self, **event: Any) -> None:
        self.events.append(event)


def exponents(low: float, high: float) -> Look:
    return Look({"exponent_min": low, "exponent_max": high}, None)


def cycles(share: float, layer: int = 0, head: int = 0) -> Look:
    shares = torch.full((3, 2, 2), 0.1)
    shares[1, layer, head] = share
    return Look({"cycle_share": share}, shares)


def step(guard: Guard) -> None:
    guard.on_pre_optimizer_step(None, None, None)


def gradients(run: Run) -> list[float]:
    return [float(layer.self_attn.operator.exponent.grad.abs().max()) for layer in run.model.model.layers]


def fill_gradients(run: Run) -> None:
    for parameter in run.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.7)


@pytest.mark.parametrize(("low", "high"), [(-2.5, 1.0), (-1.0, 2.5)])
def test_exponents_beyond_the_limit_have_their_gradient_clipped(
    low: float, high: float, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(guards={"exponent": {"limit": 2.0, "clip_at": 0.01}})
    guard = ExponentGuard(run)  # type: ignore[arg-type]
    fill_gradients(run)
    guard.on_look(exponents(-1.9, 1.9))
    step(guard)
    assert gradients(run) == pytest.approx([0.7, 0.7])
    with caplog.at_level(logging.WARNING):
        guard.on_look(exponents(low, high))
    step(guard)
    assert gradients(run) == pytest.approx([0.01, 0.01])
    others = [p.grad for name, p in run.model.named_parameters() if not name.endswith("exponent")]
    assert all(bool((gradient == 0.7).all()) for gradient in others if gradient is not None)
    assert f"step 7: guard exponent: the exponents P lie in [{low:.3g}, {high:.3g}], beyond 2" in caplog.text
    assert run.events == [{"guard": "exponent", "active": True, "exponent_min": low, "exponent_max": high}]

    guard.on_look(exponents(low, high))  # says it once
    assert len(run.events) == 1
    guard.on_look(exponents(-1.0, 1.0))
    assert run.events[1]["active"] is False
    fill_gradients(run)
    step(guard)
    assert gradients(run) == pytest.approx([0.7, 0.7])


def test_cycles_raise_the_coefficients_up_to_the_cap(caplog: pytest.LogCaptureFixture) -> None:
    dag = {"dag": {"metric": 0.1}}
    run = Run(objective=dag, guards={"cycles": {"limit": 0.9, "factor": 4.0, "cap": 0.5}})
    guard = CycleGuard(run)  # type: ignore[arg-type]
    guard.on_look(cycles(0.89))
    assert run.events == []
    with caplog.at_level(logging.WARNING):
        guard.on_look(cycles(0.95, layer=1, head=1))
    assert run.penalties.coefficients(0)["metric"] == pytest.approx(0.4)
    assert "ρ/σ₁ of A_LM is 0.950 in layer 1, head 1, above 0.9: DAG coefficients raised to 4 times" in caplog.text
    guard.on_look(cycles(0.95))
    assert run.penalties.coefficients(0)["metric"] == pytest.approx(0.5)
    guard.on_look(cycles(0.95))
    assert [event["boost"] for event in run.events] == pytest.approx([4.0, 5.0])


def test_cycles_without_a_coefficient_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    guard = CycleGuard(run)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        guard.on_look(cycles(0.995))
        guard.on_look(cycles(0.995))
    assert caplog.text.count("there is no DAG coefficient below the cap to raise") == 1
    assert run.penalties.boost == 1.0


def losses(count: int) -> list[float]:
    generator = torch.Generator().manual_seed(0)
    return (3 + 0.1 * torch.randn(count, generator=generator)).tolist()


def dragon_king(run: Run) -> DragonKingGuard:
    return DragonKingGuard(run)  # type: ignore[arg-type]


def test_a_jump_of_the_loss_is_an_event_with_the_order_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(guards={"dragon_king": {"deviations": 6.0, "history": 50}})
    guard = dragon_king(run)
    guard.on_losses(1, losses(60))
    guard.on_look(Look({"order_parameter": 1e-7}, None))
    with caplog.at_level(logging.WARNING):
        guard.on_losses(61, [3.0, 3.9, 3.0])
    assert "the loss jumped to 3.9 at step 62" in caplog.text
    assert run.events == []  # what comes after is not known yet
    guard.on_look(Look({"order_parameter": 1e-2}, None))
    (event,) = run.events
    assert (event["event_step"], event["loss"]) == (62, 3.9)
    assert (event["order_before"], event["order_after"]) == (1e-7, 1e-2)
    assert 6 < event["height"] < 20


def test_no_jump_no_event_and_a_short_history_tells_nothing() -> None:
    run = Run(guards={"dragon_king": {"history": 50}})
    guard = dragon_king(run)
    guard.on_losses(1, [*losses(49), 9.0])
    guard.on_losses(51, losses(60))
    guard.on_look(Look({"order_parameter": 1.0}, None))
    assert run.events == []


def test_an_event_in_the_last_steps_is_not_lost() -> None:
    run = Run(guards={"dragon_king": {"history": 10}})
    guard = dragon_king(run)
    guard.on_losses(1, [*losses(10), 30.0])
    guard.on_train_end(None, None, None)
    assert [event["order_after"] for event in run.events] == [None]


def test_a_loss_that_stood_still_and_then_moves_is_an_event() -> None:
    run = Run(guards={"dragon_king": {"history": 10}})
    guard = dragon_king(run)
    guard.on_losses(1, [2.0] * 12)
    assert guard.open == []
    guard.on_losses(13, [2.1])
    assert len(guard.open) == 1


def test_a_guard_goes_on_where_another_was_put_down() -> None:
    run = Run(guards={"dragon_king": {"history": 50}})
    series = [*losses(70), 8.0, *losses(20)]
    whole, first, second = dragon_king(run), dragon_king(run), dragon_king(run)
    whole.on_losses(1, series)
    first.on_losses(1, series[:40])
    second.load_state(json.loads(json.dumps(first.state())))
    second.on_losses(41, series[40:])
    assert second.state() == whole.state()
    assert len(second.open) == 1


def test_thresholds_are_those_the_sources_advise() -> None:
    guards = GuardSettings()
    assert (guards.exponent.limit, guards.cycles.limit) == (2.0, 0.99)
    assert ObjectiveSettings().dag == DagSettings()
