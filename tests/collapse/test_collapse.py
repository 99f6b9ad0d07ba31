"""A collapse as a whole: verdicts on trained checkpoints, what is written, and the report of it."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import plga
from plga.collapse.absorb import constants
from plga.collapse.collapse import Outcome, collapse, write
from plga.collapse.freeze import freeze
from plga.collapse.invariance import outputs_over
from plga.collapse.prompts import Prompts, neutral_prompts
from plga.collapse.report import record, texts
from plga.collapse.verdict import COLLAPSED, INPUT_DEPENDENT, Level, Thresholds
from plga.model.checkpoint import load_model
from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer
from plga.training.data.tokenizer import train_tokenizer
from tests.training import examples, runs

EVERYTHING = Level(distance=1e9, divergence=1e9, moved=1e9, agreement=0.0)


def some(seed: int = 0) -> Prompts:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(1, examples.VOCABULARY, (n,), generator=generator) for n in (3, 5, 4, 6, 3)]
    return Prompts(rows[:3], rows[3:], "random tokens")


def quick(model: PldrForCausalLM, **options: Any) -> Outcome:
    return collapse(model, some(), 3, **options)


@pytest.fixture(scope="module", params=["critical", "subcritical"])
def trained(request: pytest.FixtureRequest, reference: Path) -> tuple[str, PldrForCausalLM, Outcome]:
    model = load_model(reference / f"{request.param}.pth")
    prompts = neutral_prompts(load_tokenizer(reference / "tokenizer.json"), 24)
    few = Prompts(prompts.calibration[::2], prompts.held_out[::3], prompts.origin)
    return request.param, model, collapse(model, few, 6)


def test_verdicts_on_trained_checkpoints(trained: tuple[str, PldrForCausalLM, Outcome]) -> None:
    name, _, outcome = trained
    found, steps = outcome.frozen, outcome.frozen.fidelity["float32"]
    assert list(outcome.frozen.fidelity) == ["float32", "bfloat16"]
    assert found.bound is not None and found.bound.prefixes == 12
    assert found.bound.logit_change > found.bound.margin  # it does not certify
    if name == "critical":
        # Measured: distance 4e-7, scores changed by 1e-6, every step within its margin.
        assert (found.verdict.name, found.verdict.reasons) == (COLLAPSED, [])
        assert bool(steps.within.all() and steps.same.all() and steps.free.all())
        assert max(max(rank) for rank in outcome.invariance.rank) <= 2
        assert max(outcome.invariance.heads) < 1e-4 < outcome.invariance.layers
    else:
        assert found.verdict.name == INPUT_DEPENDENT
        assert any(reason.startswith("distance 0.1") for reason in found.verdict.reasons)
        assert found.price.sequential.moved > 1e-2
        assert not bool(steps.within.all())


def test_an_invariant_operator_under_a_constant_of_others(reference: Path) -> None:
    model = load_model(reference / "critical.pth")
    prompts = neutral_prompts(load_tokenizer(reference / "tokenizer.json"), 12)
    few = Prompts(prompts.calibration[:2], prompts.held_out[:2], prompts.origin)
    found = collapse(model, few, 2, ("a random one", torch.randn(2, 4, 32, 32))).frozen.verdict
    assert found.name == INPUT_DEPENDENT
    assert found.reasons[-1].endswith("only: this constant is another one")


def test_input_dependent_writes_nothing_without_force(
    trained: tuple[str, PldrForCausalLM, Outcome], reference: Path, tmp_path: Path
) -> None:
    name, _, outcome = trained
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    report = texts(record(outcome, f"{name}.pth"))
    if name == "subcritical":
        with pytest.raises(ValueError, match=r"input-dependent \(distance 0\.1.* nats a token \(block\) and .*--force"):
            write(outcome, tmp_path / "out", torch.float32, tokenizer, report)
        assert list(tmp_path.iterdir()) == []
    write(outcome, tmp_path / "out", torch.float32, tokenizer, report, force=name == "subcritical")
    page = (tmp_path / "out" / "COLLAPSE.md").read_text()
    assert ("written by force" in page) == (name == "subcritical")
    assert f"# Collapse of {name}.pth: {outcome.frozen.verdict.name}" in page
    loaded, ids = load_model(tmp_path / "out"), torch.arange(1, 9)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, outcome.frozen.model(ids).logits)


def test_what_is_written_loads_with_the_auto_classes(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(runs.texts(), 300, 24)
    model = examples.model(vocab_size=300, max_position_embeddings=24, dtype=torch.float32)
    outcome = quick(model, thresholds=Thresholds(collapsed=EVERYTHING, nearly_invariant=EVERYTHING))
    report = record(outcome, "model")
    write(outcome, tmp_path / "out", torch.bfloat16, tokenizer, texts(report))
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "COLLAPSE.md",
        "collapse_report.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert json.loads((tmp_path / "out" / "collapse_report.json").read_text()) == report
    assert plga.__version__ == report["versions"]["plga"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert (loaded.config.operator, loaded.dtype) == ("constant", torch.bfloat16)
    assert not any("learner" in name or "exponent" in name for name in loaded.state_dict())
    assert outcome.frozen.model.dtype == torch.float32  # what was measured is not what was cast
    expected = outputs_over(model, some().calibration).curvature.mean(dim=0)
    assert torch.equal(constants(loaded), expected.bfloat16())
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == len(tokenizer)
    with pytest.raises(FileExistsError, match="--overwrite"):
        write(outcome, tmp_path / "out", torch.float32, tokenizer, {})
    write(outcome, tmp_path / "out", torch.float32, tokenizer, {}, overwrite=True)
    assert not (tmp_path / "out" / "COLLAPSE.md").exists()


def test_nothing_is_left_of_a_writing_that_failed(tmp_path: Path) -> None:
    outcome = quick(examples.model(), thresholds=Thresholds(collapsed=EVERYTHING, nearly_invariant=EVERYTHING))
    tokenizer = train_tokenizer(runs.texts(), 300, 24)
    with pytest.raises(OSError, match="No such file or directory"):
        write(outcome, tmp_path / "out", torch.float32, tokenizer, {"nowhere/report": ""})
    assert list(tmp_path.iterdir()) == []


def test_the_operator_that_is_frozen() -> None:
    model = examples.model()
    curvature = outputs_over(model, some().calibration).curvature
    given = torch.randn(2, 2, 4, 4)
    for operator, expected, name in (
        (("mean", None), curvature.mean(dim=0), "mean over the calibration prompts"),
        (("first", None), curvature[0], "first calibration prompt"),
        (("that of g.pkl", given), given, "that of g.pkl"),
    ):
        outcome = quick(model, operator=operator)
        assert torch.equal(constants(outcome.frozen.model), expected)
        assert outcome.operator == name
    assert outcome.frozen.distance > 1.0  # a constant of other origin is judged by how far it is from the operator


def test_a_commuting_operator_is_absorbed_by_itself_and_any_other_after_projection() -> None:
    model = examples.model()
    plain = quick(model)
    assert (plain.frozen.absorbed, plain.projected) == (False, None)
    assert plain.written is plain.frozen
    both = quick(model, project=True)
    assert both.projected is not None and both.written is both.projected
    assert (both.frozen.absorbed, both.projected.absorbed) == (False, True)
    assert both.projected.model.config.constant == "identity"
    assert (
        max(max(heads) for heads in both.projected.residual) < 1e-6 < min(min(heads) for heads in both.frozen.residual)
    )
    assert both.projected.distance > both.frozen.distance
    assert "what is left is SDPA" in texts(record(both, "x"))["COLLAPSE.md"]
    assert "Without the projection" in texts(record(both, "x"))["COLLAPSE.md"]
    identity = torch.eye(4).expand(2, 2, 4, 4)
    assert quick(model, operator=("the identity", 3 * identity)).frozen.absorbed
    lax = Thresholds(commuting=0.999)
    assert quick(model, thresholds=lax).frozen.absorbed


def test_the_serving_dtype_that_is_the_own_is_measured_once() -> None:
    outcome = quick(examples.model(), serving=torch.float32)
    assert list(outcome.frozen.fidelity) == ["float32"]


def test_a_chunked_gram_has_no_chain() -> None:
    outcome = quick(examples.model(gram="chunked", gram_chunk=3))
    assert outcome.frozen.bound is None
    report = record(outcome, "x")
    assert report["written"]["bound"] is None
    assert "there is no such chain" in texts(report)["COLLAPSE.md"]


def test_the_report_has_every_step_and_is_json() -> None:
    outcome = quick(examples.model())
    report = record(outcome, "runs/model")
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    steps = report["written"]["fidelity"]["float32"]
    assert len(steps["by_step"]) == 3
    assert sum(step["same"] for step in steps["by_step"]) == steps["all"]["same"]
    assert max(step["largest_deviation"] for step in steps["by_step"]) == steps["all"]["largest_deviation"]
    spelled = str([row.tolist() for row in some().calibration]).replace(" ", "")
    assert report["prompts"] == {
        "origin": "random tokens",
        "calibration": 3,
        "held_out": 2,
        "shortest": 3,
        "longest": 6,
        "new_tokens": 3,
        "calibration_sha256": hashlib.sha256(spelled.encode()).hexdigest(),
        "held_out_sha256": report["prompts"]["held_out_sha256"],
    }
    assert report["prompts"]["held_out_sha256"] != report["prompts"]["calibration_sha256"]
    bound = report["written"]["bound"]
    assert bound["label"] == "quantifies, does not certify"
    assert bound["orders_above_margin"] == pytest.approx(math.log10(2 * bound["logit_change"] / bound["margin"]))
    page = texts(report)["COLLAPSE.md"]
    assert "quantifies, does not certify" in page and "*conditional theorem*" in page and "*measurement*" in page
    assert page.count("| layer ") == 5  # two layers of two heads, and the head of the chain


def test_what_cannot_be_collapsed() -> None:
    model = examples.model()
    with pytest.raises(ValueError, match="constant already, expected learned"):
        quick(freeze(model, torch.zeros(2, 2, 4, 4)))
    with pytest.raises(ValueError, match=r"curvature is \(2, 2, 2, 2\), expected \(2, 2, 4, 4\)"):
        quick(model, operator=("another", torch.zeros(2, 2, 2, 2)))
    with pytest.raises(ValueError, match="non-finite"):
        quick(model, operator=("another", torch.full((2, 2, 4, 4), math.nan)))
