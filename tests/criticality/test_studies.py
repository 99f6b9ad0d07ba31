"""The studies: collapse threshold against size, and the spectrum of A_LM over the steps of a run."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from plga.criticality import size_study, spectrum_study
from plga.criticality.order_parameter import deductive_outputs, fluctuation
from plga.criticality.results import Figures, Row
from plga.criticality.sweep_settings import Sweep, SweepSettings
from plga.model.checkpoint import load_model
from plga.model.modeling import PldrForCausalLM
from plga.ops.spectrum import numerical_rank, perron, singular_values
from plga.training.run import Stopped
from tests.criticality import fakes
from tests.criticality.sweeps import sweep
from tests.training import examples, runs

SIZES = {
    "wide": {"hidden_size": 128, "num_attention_heads": 2},
    "narrow": {"hidden_size": 32, "num_attention_heads": 2},
}


def sizes(**changes: Any) -> Sweep:
    axes = {"learning_rate": [0.001, 0.01, 0.1], "size": SIZES, "seed": [0, 1]}
    return sweep(**{"axes": axes, **changes})


def rows(of: Sweep, collapse: dict[str, float]) -> list[Row]:
    """Runs that collapse from a learning rate on, and open again at their end where it is 0.1."""
    found = []
    for number, point in enumerate(of.grid()):
        order = 1e-7 if point.learning_rate >= collapse[point.size] else 0.1
        end = 0.1 if point.learning_rate == 0.1 else order
        figures = fakes.figures(point.learning_rate, point.warmup, point.seed)
        found.append(Row(number, "complete", point, Figures(**{**figures, "smallest": order, "order_parameter": end})))
    return found


def test_thresholds_by_hand(tmp_path: Path) -> None:
    of = sizes()
    found = size_study.write(of, rows(of, {"narrow": 0.01, "wide": 0.1}), tmp_path)
    assert [(t.size, t.seed, t.passing, t.ending, t.runs) for t in found] == [
        ("narrow", 0, 0.01, 0.01, 3),
        ("narrow", 1, 0.01, 0.01, 3),
        ("wide", 0, 0.1, None, 3),
        ("wide", 1, 0.1, None, 3),
    ]
    parameters = [PldrForCausalLM(of.run(list(of.grid())[i], tmp_path).model.config()).num_parameters() for i in (3, 0)]
    assert sorted({t.parameters for t in found}) == parameters == sorted(parameters)
    with (tmp_path / "size_study.csv").open(encoding="utf-8", newline="") as opened:
        table = list(csv.DictReader(opened))
    assert [line["smallest_learning_rate_passing"] for line in table] == ["0.01", "0.01", "0.1", "0.1"]
    assert [line["smallest_learning_rate_ending"] for line in table] == ["0.01", "0.01", "", ""]
    assert (tmp_path / "size_study.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_are_missing_are_counted(tmp_path: Path) -> None:
    of = sizes()
    some = [row for row in rows(of, {"narrow": 0.001, "wide": 9.0}) if row.number not in (0, 3)]
    found = {(t.size, t.seed): t for t in size_study.write(of, some, tmp_path)}
    assert (found["narrow", 0].passing, found["narrow", 0].runs) == (0.01, 2)
    assert (found["wide", 0].passing, found["wide", 0].runs) == (None, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"learning_rate": [0.1, 0.2]}}, "needs two sizes or more, but this sweep has one; set axes.size"),
        ({"axes": {"size": SIZES}}, "needs two learning rates or more, but this sweep has one"),
        ({"sampler": "random", "trials": 3}, "needs a grid, but sampler is random"),
    ],
)
def test_sweeps_that_say_nothing_about_sizes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        size_study.check(sizes(**changes))


def test_a_study_of_one_run_needs_one_run() -> None:
    message = r"follows one run, but this sweep has 4; name it: axes.learning_rate=\[0.001\] axes.warmup=\[150\]"
    with pytest.raises(ValueError, match=message):
        spectrum_study.check(sweep())
    with pytest.raises(ValueError, match="follows one run, but this sweep has 1;"):
        spectrum_study.check(sweep(sampler="random", trials=1, axes={"learning_rate": [0.1]}))


def test_spectra_are_medians_over_the_inputs() -> None:
    metric = torch.rand(3, 2, 2, 4, 4) + 0.1  # [N, L, H, d, d]
    found = spectrum_study.spectrum(metric)
    values, root = singular_values(metric), perron(metric).root
    for layer in range(2):
        for head in range(2):
            at = (slice(None), layer, head)
            assert found["singular_values"][layer][head] == values[at].median(dim=0).values.tolist()
            assert found["perron_root"][layer][head] == float(root[at].median())
            assert found["rank"][layer][head] == int(numerical_rank(metric)[at].median())
    # A Gram in chunks has more inputs, not more heads.
    chunked = metric.unsqueeze(2).expand(3, 2, 5, 2, 4, 4)
    assert spectrum_study.spectrum(chunked) == found


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """One run of twenty steps on a small library."""
    monkeypatch.setattr("plga.training.data.dataset.standard_library", lambda: iter(runs.texts()))
    axes = {"learning_rate": [5e-3]}
    return Sweep(SweepSettings.checked({"base": "tiny", "settings": runs.BASE, "axes": axes}, "test"))


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Stopped("in the middle")


def test_what_a_study_of_the_spectrum_leaves(one: Sweep, tmp_path: Path) -> None:
    out = tmp_path / "new"
    looks = spectrum_study.run(one, out)
    assert [look["step"] for look in looks] == [5, 10, 15, 20]
    with (out / "spectrum.csv").open(encoding="utf-8", newline="") as opened:
        table = list(csv.DictReader(opened))
    assert len(table) == 4 * 2 * 2  # looks, layers, heads
    assert list(table[0])[-3:] == ["s2_over_s1", "s3_over_s1", "s4_over_s1"]
    assert (out / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    # The last look is one at the trained model, on the probe of the run's own looks.
    history = json.loads((out / "run" / "checkpoint-20" / "trainer_state.json").read_text())["log_history"]
    last = [entry for entry in history if "order_parameter" in entry][-1]
    assert looks[-1]["order_parameter"] == pytest.approx(last["order_parameter"], rel=1e-5)
    assert load_model(out / "run" / "final").config.operator == "learned"


def test_a_study_of_the_spectrum_that_was_stopped_goes_on(one: Sweep, tmp_path: Path) -> None:
    whole = spectrum_study.run(one, tmp_path / "whole")
    out = tmp_path / "pieces"
    with pytest.raises(Stopped):
        spectrum_study.run(one, out, [StopAt(11)])  # the newest checkpoint is of step 10
    with (out / "spectrum.jsonl").open("a") as opened:
        opened.write(json.dumps({**whole[2], "order_parameter": 7.0}) + "\n")  # a look after that checkpoint
        opened.write('{"step": 20, "order')  # and one that was cut off
    assert spectrum_study.run(one, out) == whole
    assert (out / "spectrum.csv").read_bytes() == (tmp_path / "whole" / "spectrum.csv").read_bytes()
    assert spectrum_study.run(one, out) == whole  # finished, it only draws again


def test_a_recorder_looks_at_what_the_model_is(tmp_path: Path) -> None:
    model = examples.model()
    probe = torch.randint(examples.VOCABULARY, (3, 9))
    recorder = spectrum_study.SpectrumRecorder(probe, 2, tmp_path / "spectrum.jsonl")
    state = SimpleNamespace(global_step=0, max_steps=3)
    recorder.on_train_begin(None, state, None)
    for step in (1, 2, 3):
        state.global_step = step
        recorder.on_step_end(SimpleNamespace(device="cpu"), state, None, model=model)
    outputs = deductive_outputs(model, probe)
    expected = {"order_parameter": fluctuation(outputs.curvature), **spectrum_study.spectrum(outputs.metric)}
    assert spectrum_study.read(tmp_path / "spectrum.jsonl") == [{"step": step, **expected} for step in (2, 3)]
