"""The demo from end to end, small: what it reports is what it did."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plga.audit import demo
from plga.collapse.fidelity import compare, decode
from plga.collapse.freeze import freeze_on
from plga.criticality.order_parameter import deductive_outputs, fluctuation
from plga.model.modeling import PldrForCausalLM
from plga.training.data.windows import Windows, pack
from plga.training.loop import Trainer
from plga.training.objective import next_token_loss
from tests.audit import small


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, small_demo: None) -> demo.Outcome:
    return demo.run(small.settings(), tmp_path_factory.mktemp("demo") / "state.pt")


@pytest.fixture(scope="module")
def windows(outcome: demo.Outcome) -> Windows:
    return Windows(pack(small.texts(), outcome.tokenizer), 16)


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
    assert report["settings"]["recipe"]["learning_rate"] == 1e-2
    assert report["parameters"] == sum(p.numel() for p in outcome.model.parameters())
    assert all(seconds >= 0 for seconds in report["seconds"].values())


def test_a_look_every_few_steps_and_at_the_end(outcome: demo.Outcome) -> None:
    assert [look["step"] for look in outcome.report["training"]] == [3, 6, 9, 12, 15, 16]


def test_the_looks_are_those_of_the_training(outcome: demo.Outcome, windows: Windows) -> None:
    torch.manual_seed(0)
    model = PldrForCausalLM(small.settings().config())
    trainer = Trainer(model, windows, small.settings().recipe, seed=0)
    probe = windows.held_out(3, 3, 2)[0][:, :-1]
    last = 0
    for look in outcome.report["training"]:
        trainer.run(look["step"])
        losses = trainer.losses[last : look["step"]]  # since the look before, and no others
        assert look["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-12)
        assert look["order_parameter"] == fluctuation(deductive_outputs(model, probe).curvature)
        assert look["learning_rate"] == trainer.recipe.learning_rate_at(look["step"] - 1)
        if look["step"] == outcome.report["chosen"]["step"]:
            assert same_tensors(model.state_dict(), outcome.model.state_dict())
        last = look["step"]


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_chosen_checkpoint_has_the_smallest_order_parameter(outcome: demo.Outcome, windows: Windows) -> None:
    chosen, looks = outcome.report["chosen"], outcome.report["training"]
    assert chosen in looks
    assert chosen["order_parameter"] == min(look["order_parameter"] for look in looks)
    probe = windows.held_out(3, 3, 2)[0][:, :-1]
    assert fluctuation(deductive_outputs(outcome.model, probe).curvature) == chosen["order_parameter"]


def test_what_is_reported_was_measured_on_other_windows(outcome: demo.Outcome, windows: Windows) -> None:
    probe, measured_on, prompts = windows.held_out(3, 3, 2)
    outputs = deductive_outputs(outcome.model, measured_on[:, :-1])
    report = outcome.report
    assert report["fluctuation"]["G_LM"] == fluctuation(outputs.curvature)
    assert report["fluctuation"]["A"] == fluctuation(outputs.generator)
    assert report["fluctuation"]["G_LM"] != report["chosen"]["order_parameter"]
    assert report["fluctuation_per_layer"]["A_P"] == [fluctuation(outputs.potential[:, i]) for i in range(2)]
    assert report["collapsed"] == (report["fluctuation"]["G_LM"] < demo.COLLAPSED)

    frozen, _ = freeze_on(outcome.model, probe[:, :-1])  # frozen on the probe, judged elsewhere
    assert same_tensors(frozen.state_dict(), outcome.frozen.state_dict())
    with torch.no_grad():
        losses = [float(next_token_loss(model, measured_on)) for model in (outcome.model, frozen)]
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
    state_file, steps = tmp_path / "state.pt", []

    def interrupt(trainer: Trainer, last: object) -> None:
        if trainer.step == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.run(small.settings(), state_file, on_step=interrupt)
    again = demo.run(small.settings(), state_file, on_step=lambda trainer, last: steps.append(trainer.step))
    assert steps[0] == stop_at // 6 * 6 + 1  # it went on where it had saved
    assert figures(again.report) == figures(outcome.report)
    assert same_tensors(again.model.state_dict(), outcome.model.state_dict())
    assert same_tensors(again.frozen.state_dict(), outcome.frozen.state_dict())


def test_an_interruption_while_measuring_trains_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    settings = small.settings(stop=12)  # a step that is saved
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo, "_decode", interrupt)
        demo.run(settings, tmp_path / "state.pt")
    steps: list[int] = []
    report = demo.run(settings, tmp_path / "state.pt", on_step=lambda trainer, last: steps.append(trainer.step)).report
    assert steps == []
    assert [look["step"] for look in report["training"]] == [3, 6, 9, 12]


def test_another_seed_is_another_run(outcome: demo.Outcome, tmp_path: Path) -> None:
    other = demo.run(small.settings(seed=1, stop=6), tmp_path / "state.pt")
    assert other.report["training"][0]["loss"] != outcome.report["training"][0]["loss"]
    with pytest.raises(ValueError, match="not the state of a run with these settings and data"):
        demo.run(small.settings(seed=2, stop=6), tmp_path / "state.pt")


def test_an_operator_that_breaks_between_two_steps_is_named_with_its_step(tmp_path: Path) -> None:
    def poison(trainer: Trainer, last: object) -> None:
        if trainer.step == 6:
            with torch.no_grad():
                trainer.model.model.layers[0].self_attn.operator.metric_weight.fill_(torch.nan)

    with pytest.raises(FloatingPointError, match=r"^step 6: A_LM of layer 0 is not finite"):
        demo.run(small.settings(), tmp_path / "state.pt", on_step=poison)
