"""The demo from end to end, small: what it reports is what it did."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback

from plga.audit import demo
from plga.collapse.fidelity import compare, decode
from plga.collapse.freeze import freeze_on
from plga.criticality.order_parameter import deductive_outputs, fluctuation
from plga.model.modeling import PldrForCausalLM
from plga.training.data.dataset import open_data
from plga.training.objective import block_loss
from plga.training.run import train
from tests.audit import small
from tests.training import runs


class Step(TrainerCallback):
    """Notes each step, and does something after one of them."""

    def __init__(self, step: int = 0, act: Callable[[PldrForCausalLM], None] = lambda model: None) -> None:
        self.step, self.act = step, act
        self.steps: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.steps.append(state.global_step)
        if state.global_step == self.step:
            self.act(model)


def interrupt(*args: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, small_demo: None) -> demo.Outcome:
    return demo.run(small.settings(tmp_path_factory.mktemp("demo")))


@pytest.fixture(scope="module")
def windows(small_demo: None) -> dict[str, Tensor]:
    return open_data(small.settings(Path()).data, runs.VOCABULARY, 16, seed=0, batch=4).validation(8)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """The report without times."""
    kept = copy.deepcopy(report)
    del kept["seconds"]
    for mode in kept["decoding"]["modes"].values():
        del mode["tokens_per_second"], mode["speedup"]
    return kept


def test_the_report_is_complete_finite_and_json(outcome: demo.Outcome) -> None:
    report = json.loads(json.dumps(outcome.report, allow_nan=False))
    assert report.keys() >= {
        "collapsed",
        "settings",
        "parameters",
        "training",
        "chosen",
        "windows",
        "fluctuation",
        "fluctuation_per_layer",
        "A_s2_over_s1",
        "validation_loss",
        "decoding",
        "seconds",
        "machine",
        "versions",
    }
    assert all(math.isfinite(number) for number in numbers(report))
    assert report["fluctuation"].keys() == report["fluctuation_per_layer"].keys() == {"A", "A_LM", "A_P", "G_LM"}
    assert report["decoding"]["modes"].keys() == {"recompute", "prompt", "constant"}
    assert report["settings"]["optimizer"]["learning_rate"] == 1e-2
    assert report["parameters"] == sum(p.numel() for p in outcome.model.parameters())
    assert all(seconds >= 0 for seconds in report["seconds"].values())


def test_a_look_every_few_steps_and_at_the_end(outcome: demo.Outcome) -> None:
    assert [look["step"] for look in outcome.report["training"]] == [3, 6, 9, 12, 15, 16]


def test_the_looks_are_those_of_the_training(outcome: demo.Outcome, windows: dict[str, Tensor], tmp_path: Path) -> None:
    chosen = outcome.report["chosen"]["step"]
    models: list[dict[str, Tensor]] = []
    trained = train(
        small.settings(tmp_path), [Step(chosen, lambda model: models.append(copy.deepcopy(model.state_dict())))]
    )
    assert same_tensors(models[0], outcome.model.state_dict())
    losses = [entry["loss"] for entry in trained.history if "grad_norm" in entry]
    last = 0
    for look in outcome.report["training"]:
        step = look["step"]
        assert look["loss"] == pytest.approx(sum(losses[last:step]) / (step - last), rel=1e-12)
        assert look["learning_rate"] == pytest.approx(small.settings(tmp_path).optimizer.learning_rate_at(step - 1))
        last = step


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_chosen_checkpoint_has_the_smallest_order_parameter(
    outcome: demo.Outcome, windows: dict[str, Tensor]
) -> None:
    chosen, looks = outcome.report["chosen"], outcome.report["training"]
    assert chosen in looks
    assert chosen["order_parameter"] == min(look["order_parameter"] for look in looks)
    probe = windows["input_ids"][:3]
    assert fluctuation(deductive_outputs(outcome.model, probe).curvature) == pytest.approx(chosen["order_parameter"])


def test_what_is_reported_was_measured_on_other_windows(outcome: demo.Outcome, windows: dict[str, Tensor]) -> None:
    probe, measured_on, prompts = windows["input_ids"].split([3, 3, 2])
    outputs = deductive_outputs(outcome.model, measured_on)
    report = outcome.report
    assert report["fluctuation"]["G_LM"] == fluctuation(outputs.curvature)
    assert report["fluctuation"]["A"] == fluctuation(outputs.generator)
    assert report["fluctuation"]["G_LM"] != report["chosen"]["order_parameter"]
    assert report["fluctuation_per_layer"]["A_P"] == [fluctuation(outputs.potential[:, i]) for i in range(2)]
    assert report["collapsed"] == (report["fluctuation"]["G_LM"] < demo.COLLAPSED)

    frozen, _ = freeze_on(outcome.model, probe)  # frozen on the probe, judged elsewhere
    assert same_tensors(frozen.state_dict(), outcome.frozen.state_dict())
    with torch.no_grad():
        labels = windows["labels"][3:6]
        losses = [float(block_loss(model, measured_on, labels).loss) for model in (outcome.model, frozen)]
    assert report["validation_loss"] == {"learned": losses[0], "constant": losses[1]}

    recomputed = decode(outcome.model, prompts[:, :6], 5, "recompute")
    constant = compare(recomputed, decode(frozen, prompts[:, :6], 5))
    reported = report["decoding"]["modes"]["constant"]
    assert (reported["agreeing"], reported["total"]) == (constant.agreeing, 10)
    assert reported["largest_deviation"] == constant.largest_deviation
    assert report["decoding"]["smallest_margin"] == float(recomputed.margins.min())
    assert report["decoding"]["modes"]["recompute"]["largest_deviation"] == 0


@pytest.mark.parametrize("stop_at", [5, 7, 16])  # before the first save; after one; after the last step
def test_an_interrupted_run_reports_the_same_figures(outcome: demo.Outcome, tmp_path: Path, stop_at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        demo.run(small.settings(tmp_path), callbacks=[Step(stop_at, interrupt)])
    step = Step()
    again = demo.run(small.settings(tmp_path), callbacks=[step])
    assert step.steps[0] == stop_at // 6 * 6 + 1  # it went on where it had saved
    assert figures(again.report) == figures(outcome.report)
    assert same_tensors(again.model.state_dict(), outcome.model.state_dict())
    assert same_tensors(again.frozen.state_dict(), outcome.frozen.state_dict())


def test_an_interruption_while_measuring_trains_nothing_again(
    outcome: demo.Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo, "_decode", interrupt)
        demo.run(small.settings(tmp_path))
    step = Step()
    report = demo.run(small.settings(tmp_path), callbacks=[step]).report
    assert step.steps == []
    assert figures(report) == figures(outcome.report)


def test_another_seed_is_another_run(outcome: demo.Outcome, tmp_path: Path) -> None:
    other = demo.run(small.settings(tmp_path, seed=1, stop=6))
    assert other.report["training"][0]["loss"] != outcome.report["training"][0]["loss"]
    with pytest.raises(ValueError, match=r"of another run: optimizer\.seed was 1 and is 2"):
        demo.run(small.settings(tmp_path, seed=2, stop=6))


def test_the_documented_setting() -> None:
    settings = demo.settings(Path("folder"), seed=3, learning_rate=1e-3, stop=None)
    assert settings.logging.output == Path("folder")
    recipe = settings.optimizer
    assert (recipe.seed, recipe.learning_rate, recipe.steps, recipe.last) == (3, 1e-3, 300, 300)
