"""The trainer: one step by hand, accumulation, clipping, what it logs, keeps and refuses."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from plga.criticality.order_parameter import deductive_outputs, fluctuation
from plga.model.checkpoint import load_model
from plga.training import run
from plga.training.data.dataset import open_data
from plga.training.monitor import looks_of, steadiest
from plga.training.objective import block_loss
from plga.training.penalties import dag_losses
from tests.training import runs


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plga.training.data.dataset.standard_library", lambda: iter(runs.texts()))


class After(TrainerCallback):
    """Calls a function with the model after a step, before it is clipped or logged."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.act(model)


def train(output: Path, *overrides: str, callbacks: tuple[TrainerCallback, ...] = ()) -> run.Trained:
    return run.train(runs.settings(output, *overrides), callbacks)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def lines(trained: run.Trained) -> list[dict[str, Any]]:
    return [entry for entry in trained.history if "grad_norm" in entry]


def first_batch(output: Path, batch: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    settings = runs.settings(output)
    data = open_data(settings.data, runs.VOCABULARY, runs.CONTEXT, seed=0, batch=batch)
    rows = [row for row, _ in zip(data.train, range(batch), strict=False)]
    return torch.stack([row["input_ids"] for row in rows]), torch.stack([row["labels"] for row in rows])


@pytest.mark.parametrize("clip", ["value", "norm"])
def test_one_step_by_hand(tmp_path: Path, clip: str) -> None:
    start: dict[str, torch.Tensor] = {}

    class Begin(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            start.update({name: p.detach().clone() for name, p in model.named_parameters()})
            input_ids, labels = first_batch(tmp_path)
            self.loss = block_loss(model.train(), input_ids, labels, num_items=labels.numel()).loss
            named = dict(model.named_parameters())
            self.gradients = dict(zip(named, torch.autograd.grad(self.loss, list(named.values())), strict=True))

    begin = Begin()
    trained = train(
        tmp_path, "optimizer.stop=1", f"optimizer.clip={clip}", "optimizer.clip_at=1e-2", callbacks=(begin,)
    )
    norm = torch.stack([g.square().sum() for g in begin.gradients.values()]).sum().sqrt()
    rate, decay, eps = 5e-3 / 4, 0.1, 1e-5  # the first of four warmup steps
    after = weights(tmp_path / "final")
    for name, gradient in begin.gradients.items():
        g = gradient.clamp(-1e-2, 1e-2) if clip == "value" else gradient * (1e-2 / norm)
        # At the first step the bias corrections leave the gradient and its square.
        expected = start[name] * (1 - rate * decay) - rate * g / (g.abs() + eps)
        torch.testing.assert_close(after[name], expected, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name} {m}")
    (line,) = lines(trained)
    assert line["loss"] == pytest.approx(begin.loss.item(), rel=1e-6)
    assert line["grad_norm"] == pytest.approx(float(norm), rel=1e-5)  # before it is clipped
    assert line["learning_rate"] == pytest.approx(rate)


def test_accumulated_parts_are_one_batch(tmp_path: Path) -> None:
    calm = ("optimizer.learning_rate=1e-3", "model.metric_initialization=small")  # see test_distributed.py
    whole, parts = train(tmp_path / "1", *calm), train(tmp_path / "2", *calm, "optimizer.accumulate=2")
    losses = [[line["loss"] for line in lines(trained)] for trained in (parts, whole)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6, rel=0)
    assert len(lines(whole)) == 20


def test_training_learns(tmp_path: Path) -> None:
    trained = train(tmp_path, "optimizer.steps=80", "optimizer.learning_rate=2e-2", "logging.save_every=80")
    losses = [line["loss"] for line in lines(trained)]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.5
    looks = looks_of(trained.history)
    assert looks[-1]["validation_loss"] < looks[0]["validation_loss"]


def test_a_run_repeats_its_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tmp_path / name, f"optimizer.seed={seed}", "optimizer.stop=4")
    a, b, c = (weights(tmp_path / name / "final") for name in "abc")
    assert all(a[name].equal(b[name]) for name in a)
    assert not a["lm_head.weight"].equal(c["lm_head.weight"])


def test_the_penalty_is_added_and_logged(tmp_path: Path) -> None:
    start: dict[str, float] = {}

    def note(model: Any) -> None:
        input_ids, labels = first_batch(tmp_path)
        outputs = block_loss(model, input_ids, labels, output_deductive=True)
        start.update({f"dag_{name}": float(value) for name, value in dag_losses(outputs.deductive).items()})
        start["loss"] = float(outputs.loss)

    class Begin(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            note(model)

    trained = train(
        tmp_path,
        "optimizer.stop=1",
        "objective.dag.metric=0.5",
        "objective.dag.curvature=0.25",
        "objective.alignment.coefficient=0.1",
        "objective.alignment.blocks=3",
        callbacks=(Begin(),),
    )
    (line,) = lines(trained)
    assert {name: line[name] for name in ("loss", "dag_metric", "dag_curvature")} == pytest.approx(
        {name: start[name] for name in ("loss", "dag_metric", "dag_curvature")}, rel=1e-5
    )
    assert line["alignment"] > 0
    assert (line["coefficient_metric"], line["coefficient_curvature"]) == (0.5, 0.25)
    assert "dag_potential" not in line


def test_a_penalty_changes_the_training(tmp_path: Path) -> None:
    train(tmp_path / "without", "optimizer.stop=3")
    train(tmp_path / "with", "optimizer.stop=3", "objective.dag.metric=0.5")
    assert not weights(tmp_path / "with" / "final")["lm_head.weight"].equal(
        weights(tmp_path / "without" / "final")["lm_head.weight"]
    )


def test_looks_are_those_of_the_model_then(tmp_path: Path) -> None:
    settings = runs.settings(tmp_path)
    trained = train(tmp_path, "logging.steadiest=true", "optimizer.stop=13", "logging.save_every=13")
    looks = looks_of(trained.history)
    assert [look["step"] for look in looks] == [5, 10, 13]
    windows = open_data(settings.data, runs.VOCABULARY, runs.CONTEXT, seed=0, batch=4).validation(4)
    model = load_model(tmp_path / "final")
    outputs = deductive_outputs(model, windows["input_ids"][:2])
    assert looks[-1]["order_parameter"] == pytest.approx(fluctuation(outputs.curvature), rel=1e-6)
    assert looks[-1]["order_parameter_A"] == pytest.approx(fluctuation(outputs.generator), rel=1e-6)
    with torch.no_grad():
        loss = block_loss(model, windows["input_ids"][2:], windows["labels"][2:]).loss
    assert looks[-1]["validation_loss"] == pytest.approx(float(loss), rel=1e-6)
    exponents = torch.cat([layer.self_attn.operator.exponent.flatten() for layer in model.model.layers])
    assert looks[-1]["exponent_max"] == float(exponents.max())

    chosen = steadiest(looks)
    kept = load_model(tmp_path / "steadiest")
    order = fluctuation(deductive_outputs(kept, windows["input_ids"][:2]).curvature)
    assert order == pytest.approx(chosen["order_parameter"], rel=1e-6)


def test_steadiest_by_hand() -> None:
    looks = [{"step": s, "order_parameter": x} for s, x in enumerate([1e-2, 3e-8, 1e-8, 9e-8, 1e-3])]
    assert steadiest(looks)["step"] == 3  # below float32's resolution the latest
    assert steadiest(looks[:1])["step"] == 0


@pytest.mark.parametrize(
    "changes", ["model.operator=constant model.constant=identity", "model.gram=chunked model.gram_chunk=4"]
)
def test_other_operators_train(tmp_path: Path, changes: str) -> None:
    trained = train(tmp_path, "optimizer.stop=5", *changes.split())
    assert math.isfinite(lines(trained)[-1]["loss"])
    assert load_model(tmp_path / "final").config.operator in ("constant", "learned")


@pytest.mark.parametrize("checkpointing", ["learner", "layers"])
def test_recomputing_changes_no_bit(tmp_path: Path, checkpointing: str) -> None:
    train(tmp_path / "none", "optimizer.stop=3")
    train(tmp_path / "some", "optimizer.stop=3", f"optimizer.checkpointing={checkpointing}")
    a, b = (weights(tmp_path / name / "final") for name in ("none", "some"))
    assert all(a[name].equal(b[name]) for name in a)


def test_compiled_it_trains_alike(tmp_path: Path) -> None:
    calm = ("optimizer.learning_rate=1e-3", "model.metric_initialization=small", "optimizer.stop=4")
    eager, compiled = train(tmp_path / "1", *calm), train(tmp_path / "2", *calm, "optimizer.compile=true")
    losses = [[line["loss"] for line in lines(trained)] for trained in (compiled, eager)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_bf16_trains_and_keeps_float32_weights(tmp_path: Path) -> None:
    trained = train(tmp_path, "optimizer.precision=bf16", "optimizer.stop=5")
    assert math.isfinite(lines(trained)[-1]["loss"])
    assert {tensor.dtype for tensor in weights(tmp_path / "final").values()} == {torch.float32}
    in_float32 = train(tmp_path / "float32", "optimizer.stop=5")
    assert lines(trained)[0]["loss"] == pytest.approx(lines(in_float32)[0]["loss"], rel=2e-2)
    assert lines(trained)[0]["loss"] != lines(in_float32)[0]["loss"]


def test_the_last_checkpoints_are_kept_and_each_is_a_model(tmp_path: Path) -> None:
    train(tmp_path, "optimizer.stop=9", "logging.keep=2")
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-8", "checkpoint-9"]
    assert load_model(tmp_path / "checkpoint-8").config.hidden_size == 8
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    train(tmp_path, "optimizer.stop=4")
    before = weights(tmp_path / "final")
    trained = train(tmp_path, "optimizer.stop=4")
    assert all(weights(tmp_path / "final")[name].equal(before[name]) for name in before)
    assert [line["step"] for line in lines(trained)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1e-3", r"optimizer\.learning_rate was 0\.005 and is 0\.001"),
        ("model.num_metric_units=3", r"model\.num_metric_units was 2 and is 3"),
        ("objective.dag.metric=1", r"objective\.dag was .* and is"),
        ("data.validation=0.2", r"data\.validation was 0\.05 and is 0\.2"),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path: Path, override: str, message: str) -> None:
    train(tmp_path, "optimizer.stop=2")
    with pytest.raises(ValueError, match=rf"checkpoint-2: of another run: {message}.*; choose another logging\.output"):
        train(tmp_path, "optimizer.stop=4", override)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    def second(model: Any) -> None:
        with pytest.raises(ValueError, match="another run is writing there; choose another"):
            train(tmp_path)

    train(tmp_path, "optimizer.stop=2", callbacks=(After(1, second),))


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "run.json", "random.safetensors"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, file: str) -> None:
    train(tmp_path, "optimizer.stop=2")
    damaged = tmp_path / "checkpoint-2" / file
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"checkpoint-2/{file}: truncated"):
        train(tmp_path, "optimizer.stop=4")


def remake(file: Path, change: Any) -> None:
    """Write a file anew with what ``change`` makes of its content."""
    if file.suffix == ".json":
        file.write_text(json.dumps(change(json.loads(file.read_text()))))
    else:
        save_file(change(load_file(file)), file, {"format": "pt"})


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("run.json", lambda run: {**run, "boost": 2.0}, "changed since it was written"),
        ("run.json", lambda run: {}, "changed since it was written"),
        ("trainer_state.json", lambda state: {}, "changed since it was written"),
        ("trainer_state.json", lambda state: {**state, "global_step": "x"}, "changed since it was written"),
        ("optimizer.safetensors", lambda moments: {}, "differs from the model in .*lm_head.bias"),
        ("optimizer.safetensors", lambda moments: dict([*moments.items()][1:]), "differs from the model in lm_head"),
        ("optimizer.safetensors", lambda m: {k: t.flatten()[:1] for k, t in m.items()}, "differs from the model in"),
        ("model.safetensors", lambda tensors: {k: t.half() for k, t in tensors.items()}, "float16, expected"),
        ("model.safetensors", lambda tensors: dict([*tensors.items()][1:]), "tensors of another model"),
        ("random.safetensors", lambda states: {}, "no states of random numbers"),
        ("random.safetensors", lambda states: {k: t[:9].clone() for k, t in states.items()}, "no states of random"),
    ],
)
def test_an_edited_checkpoint_is_refused(tmp_path: Path, file: str, change: Any, message: str) -> None:
    """It would go on with other bits, and say nothing."""
    train(tmp_path, "optimizer.stop=2")
    remake(tmp_path / "checkpoint-2" / file, change)
    with pytest.raises(ValueError, match=rf"checkpoint-2.*{message}") as raised:
        train(tmp_path, "optimizer.stop=4")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "checkpoint-4").exists()


def test_the_steadiest_model_cannot_be_asked_for_later(tmp_path: Path) -> None:
    """The looks that are over have kept none, and one of them may be the steadiest."""
    train(tmp_path, "optimizer.stop=2")
    with pytest.raises(ValueError, match=r"logging\.steadiest was False and is True"):
        train(tmp_path, "optimizer.stop=4", "logging.steadiest=true")


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Any, *args: Any) -> None:
        raise RuntimeError("TensorBoardCallback requires tensorboard to be installed.")

    monkeypatch.setattr("transformers.integrations.integration_utils.TensorBoardCallback.__init__", missing)
    with pytest.raises(ValueError, match=r"^logging\.report_to: tensorboard: TensorBoardCallback requires"):
        train(tmp_path, "logging.report_to=[tensorboard]")


def test_a_model_without_room_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match=r"^out of memory: .*; `plga plan` tells what a run needs"):
        train(tmp_path, "model.hidden_size=4000000000000")


def test_a_non_finite_loss_stops_with_step_and_checkpoint(tmp_path: Path) -> None:
    def poison(model: Any) -> None:
        with torch.no_grad():
            model.lm_head.bias[5] = torch.nan

    with pytest.raises(
        FloatingPointError, match=r"^step 5: the loss is nan; the last good checkpoint is .*checkpoint-4$"
    ):
        train(tmp_path, "logging.probe_every=20", callbacks=(After(5, poison),))
    assert not (tmp_path / "final").exists()


def test_a_non_finite_operator_stops_with_layer_and_head(tmp_path: Path) -> None:
    def poison(model: Any) -> None:
        with torch.no_grad():
            model.model.layers[1].self_attn.operator.coupling_bias[1, 0, 0] = torch.inf

    with pytest.raises(
        FloatingPointError, match=r"^step 1: G_LM of layer 1 is not finite in heads \[1\]; no checkpoint"
    ):
        train(tmp_path, callbacks=(After(1, poison),))


def test_a_non_finite_gradient_stops_with_parameter_and_head(tmp_path: Path) -> None:
    def poison(model: Any) -> None:
        exponent = model.model.layers[0].self_attn.operator.exponent
        exponent.register_hook(
            lambda gradient: torch.where(torch.eye(4).bool(), gradient, torch.nan).index_fill(0, torch.tensor([0]), 0.0)
        )

    name = r"model\.layers\.0\.self_attn\.operator\.exponent"
    with pytest.raises(
        FloatingPointError, match=rf"^step 3: the gradient of {name} is not finite in heads \[1\]; the last"
    ):
        train(tmp_path, callbacks=(After(3, poison),))


def test_a_batch_that_cannot_be_shared_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer\.batch is 4, expected a multiple of optimizer\.accumulate = 3"):
        train(tmp_path / "run", "optimizer.accumulate=3")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_ends_the_run_and_keeps_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plga.training import checkpoints

    def full(tensors: Any, file: Path, *args: Any) -> None:
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    def act(model: Any) -> None:
        monkeypatch.setattr(checkpoints, "save_file", full)

    with pytest.raises(OSError, match="No space left on device"):
        train(tmp_path, callbacks=(After(3, act),))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoint-2"]
    monkeypatch.undo()
    monkeypatch.setattr("plga.training.data.dataset.standard_library", lambda: iter(runs.texts()))
    train(tmp_path)
    train(tmp_path / "whole")
    a, b = weights(tmp_path / "final"), weights(tmp_path / "whole" / "final")
    assert all(a[name].equal(b[name]) for name in a)


def test_the_history_is_json(tmp_path: Path) -> None:
    trained = train(tmp_path, "optimizer.stop=5")
    saved = json.loads((tmp_path / "checkpoint-5" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in saved] == [entry["step"] for entry in trained.history][: len(saved)]
