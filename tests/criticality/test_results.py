"""What is read off the history of a run, and what runs of one point have in common."""

import csv
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from plga.criticality.files import write_csv
from plga.criticality.results import Figures, Row, best_near_critical, cells, figures_of, record
from plga.criticality.sweep_settings import Point
from tests.criticality import fakes


def look(step: int, order: float, loss: float = 5.0) -> dict[str, Any]:
    others = {f"order_parameter_{symbol}": order for symbol in ("A", "A_LM", "A_P")}
    return {"step": step, "order_parameter": order, "validation_loss": loss, **others}


def line(step: int, loss: float, speed: float = 100.0) -> dict[str, Any]:
    return {"step": step, "loss": loss, "grad_norm": 1.0, "tokens_per_second": speed}


EVENT = {"guard": "dragon-king", "step": 30, "event_step": 24, "height": 7.5, "order_before": 1e-6, "order_after": 0.2}


def row(number: int, rate: float, seed: int = 0, state: str = "complete", **changes: Any) -> Row:
    figures = Figures(**{**fakes.figures(rate, 10.0, seed), **changes}) if state == "complete" else None
    return Row(number, state, Point(rate, 10.0, "base", seed), figures, "" if figures else "it broke")


def test_figures_by_hand() -> None:
    history = [
        line(10, 6.0, 100.0),
        look(10, 0.1),
        line(20, 5.0, 300.0),
        look(20, 3e-8),
        {"guard": "cycles", "step": 20, "cycle_share": 1.0},
        line(30, 4.0, 110.0),
        EVENT | {"loss": 9.0, "mean": 5.0},
        look(30, 2e-8),
        line(40, 4.5, 120.0),
        look(40, 2e-3, 4.7),
    ]
    figures = figures_of(history, 3e-3, 4.8)
    assert figures.order_parameter == figures.order_parameter_A == 2e-3
    # Float32 does not tell 2e-8 from 3e-8; the latest counts.
    assert (figures.smallest, figures.smallest_step) == (2e-8, 30)
    assert (figures.validation_loss, figures.loss, figures.tokens_per_second) == (4.7, 4.5, 115.0)
    assert (figures.unseen_order_parameter, figures.unseen_loss) == (3e-3, 4.8)
    assert figures.dragon_kings == [
        {"event_step": 24, "height": 7.5, "order_before": 1e-6, "order_after": 0.2},
    ]
    assert figures.looks == [[10, 0.1, 5.0], [20, 3e-8, 5.0], [30, 2e-8, 5.0], [40, 2e-3, 4.7]]
    assert (figures.passed, figures.ended) == (True, False)
    assert figures.regime == "indeterminate with a dragon king"


def test_of_many_looks_some_are_kept_and_the_last_among_them() -> None:
    history = [line(1, 5.0), *(look(step, 0.1) for step in range(1, 1001))]
    steps = [step for step, _, _ in figures_of(history, 0.1, 5.0).looks]
    assert len(steps) == 200
    assert steps[-1] == 1000
    assert {after - before for before, after in pairwise(steps)} == {5}


def test_a_history_without_a_look() -> None:
    with pytest.raises(ValueError, match="no look at its order parameter"):
        figures_of([line(1, 5.0)], 0.1, 5.0)


def test_the_best_run_is_near_critical_at_its_end_and_met_no_dragon_king() -> None:
    rows = [
        row(0, 0.001, validation_loss=1.0),  # sub-critical
        row(1, 0.5, validation_loss=1.0),  # opened again
        row(2, 0.02, validation_loss=1.0, dragon_kings=[EVENT]),
        row(3, 0.02, validation_loss=3.0),
        row(4, 0.02, validation_loss=2.0),
        row(5, 0.02, validation_loss=2.0),
        row(6, 0.02, state="failed"),
    ]
    best = best_near_critical(rows)
    assert best is not None and best.number == 4
    assert best_near_critical(rows[:3]) is None
    assert best_near_critical([]) is None


def test_cells_are_medians_over_seeds() -> None:
    rows = [
        row(0, 0.02, 0, order_parameter=1e-7, smallest=1e-8, validation_loss=4.0),
        row(1, 0.02, 1, order_parameter=1e-3, smallest=1e-7, validation_loss=5.0, dragon_kings=[EVENT]),
        row(2, 0.02, 2, order_parameter=1e-2, smallest=1e-3, validation_loss=9.0),
        row(3, 0.02, 3, state="failed"),
        row(4, 0.5, 0, state="failed"),
        Row(5, "running", Point(0.02, 10.0, "base", 4)),
        Row(6, "abandoned", Point(0.02, 10.0, "base", 5)),
        Row(7, "waiting", None),
    ]
    first, second = cells(rows)
    assert (first.size, first.warmup, first.learning_rate) == ("base", 10.0, 0.02)
    assert (first.complete, first.failed, first.passed, first.ended, first.with_dragon_king) == (3, 1, 2, 1, 1)
    assert (first.order_parameter, first.smallest, first.validation_loss) == (1e-3, 1e-7, 5.0)
    assert (second.complete, second.failed) == (0, 1)
    assert math.isnan(second.order_parameter)


def test_a_table_of_every_row(tmp_path: Path) -> None:
    rows = [
        row(0, 0.02, dragon_kings=[EVENT, EVENT]),
        row(1, 0.001, state="failed"),
        Row(2, "waiting", None),
    ]
    write_csv(tmp_path / "trials.csv", [record(r) for r in rows])
    with (tmp_path / "trials.csv").open(encoding="utf-8", newline="") as opened:
        complete, failed, waiting = csv.DictReader(opened)
    assert float(complete["order_parameter"]) == 1e-7
    assert (complete["regime"], complete["passed_near_critical"]) == ("near-critical with a dragon king", "1")
    assert (complete["dragon_kings"], complete["dragon_king_steps"]) == ("2", "24 24")
    assert (failed["state"], failed["message"], failed["learning_rate"]) == ("failed", "it broke", "0.001")
    assert failed["order_parameter"] == failed["dragon_kings"] == ""
    assert (waiting["state"], waiting["seed"]) == ("waiting", "")
