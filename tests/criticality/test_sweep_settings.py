"""What a sweep is made of: from a file, with overrides, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from plga.criticality import sweep_settings
from plga.criticality.sweep_settings import Point, load
from tests.criticality.sweeps import sweep


def test_an_axis_that_is_left_out_keeps_the_value_of_the_base() -> None:
    found = sweep(axes={"learning_rate": [0.02, 0.001]}, settings={"optimizer": {"seed": 7}})
    assert found.learning_rates == [0.001, 0.02]
    assert (found.warmups, found.sizes, found.seeds) == ([150], {"base": {}}, [7])
    assert found.count == 2


def test_a_grid_goes_seed_by_seed() -> None:
    found = sweep(axes={"learning_rate": [1, 2], "warmup": [3], "size": {"a": {}, "b": {}}, "seed": [5, 4]})
    assert list(found.grid())[:5] == [
        Point(1, 3, "a", 5),
        Point(2, 3, "a", 5),
        Point(1, 3, "b", 5),
        Point(2, 3, "b", 5),
        Point(1, 3, "a", 4),
    ]
    assert found.count == len(list(found.grid())) == len(set(found.grid())) == 8


def test_a_run_is_the_base_with_the_settings_and_its_point_over_it(tmp_path: Path) -> None:
    found = sweep(
        settings={"optimizer": {"steps": 99}, "objective": {"dag": {"metric": 0.5}}, "logging": {"probe_every": 9}},
        axes={"warmup": [0.1], "size": {"wide": {"hidden_size": 64, "num_attention_heads": 2}}},
    )
    run = found.run(Point(0.5, 0.1, "wide", 3), tmp_path)
    assert (run.optimizer.learning_rate, run.optimizer.warmup_steps, run.optimizer.seed) == (0.5, 10, 3)
    assert (run.optimizer.steps, run.optimizer.batch) == (99, 8)
    assert run.objective.dag.metric == 0.5
    assert (run.model.hidden_size, run.model.num_metric_units) == (64, 24)  # type: ignore[attr-defined]
    assert (run.logging.output, run.logging.probe_every) == (tmp_path, 9)
    assert (run.logging.keep, run.logging.steadiest, run.logging.report_to) == (1, False, [])


def test_ready_sweeps_can_be_run() -> None:
    assert "tiny" in sweep_settings.ready()
    for name in sweep_settings.ready():
        assert load(name).count >= 24


def test_overrides_go_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nbase: tiny\naxes:\n  learning_rate: [1e-3, 2e-3]\n")
    found = load(file, ["axes.learning_rate=[1e-3,2e-3,4e-3]", "workers=3", "settings.optimizer.steps=200"])
    assert found.learning_rates == [0.001, 0.002, 0.004]
    assert (found.settings.workers, found.base.optimizer.steps) == (3, 200)
    with pytest.raises(FileNotFoundError, match=r"nothing: no such file, and no ready sweep \(.*tiny"):
        load("nothing")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"batch": [1]}}, "axes.batch is not a setting, expected one of learning_rate, warmup, size, seed"),
        ({"axes": {"learning_rate": []}}, r"axes.learning_rate is \[\], expected"),
        ({"axes": {"learning_rate": [0.1, 0.1]}}, r"axes.learning_rate is \[0.1, 0.1\], expected each value once"),
        ({"axes": {"learning_rate": [-1]}}, "axes.learning_rate.0 is -1, expected greater than 0"),
        ({"axes": {"size": {"a": {"depth": 3}}}}, "size a, seed 0: model.depth is not a setting"),
        ({"axes": {"size": {"a": {"hidden_size": 129}}}}, "expected a multiple of num_attention_heads = 4"),
        ({"axes": {"warmup": [10, 300]}}, "warmup 300, .*: warmup is 300, expected fewer than steps = 300"),
        ({"sampler": "grid", "trials": 3}, "trials is 3, but sampler grid takes every combination"),
        ({"sampler": "random"}, "trials is missing, expected how many runs sampler random takes"),
        ({"sampler": "random", "trials": 0}, "trials is 0, expected greater than or equal to 1"),
        ({"sampler": "best"}, "sampler is 'best', expected 'grid', 'random' or 'tpe'"),
        ({"workers": 0}, "workers is 0, expected greater than or equal to 1"),
        ({"settings": {"optimiser": {}}}, "settings of the sweep over tiny: optimiser is not a setting"),
        ({"settings": {"optimizer": 3}}, "settings: optimizer is 3, expected a section"),
        (
            {"settings": {"model": {"operator": "constant", "constant": "identity"}}},
            "its operator is constant",
        ),
        ({"base": "missing"}, "missing: no such file, and no ready configuration"),
        ({"colour": 1}, "colour is not a setting, expected one of name, base"),
    ],
)
def test_what_cannot_be_swept(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        sweep(**changes)


def test_two_sweeps_differ_by_what_they_run_alone() -> None:
    first = sweep().identity()
    assert sweep(workers=5, name="other", settings={"logging": {"output": "elsewhere"}}).identity() == first
    for changes in (
        {"settings": {"optimizer": {"steps": 301}}},
        {"axes": {"learning_rate": [0.001]}},
        {"sampler": "random", "trials": 4},
        {"seed": 1},
    ):
        assert sweep(**changes).identity() != first
