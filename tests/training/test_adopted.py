"""Runs that train an adopted model on: what moves and what does not, resume, shards, files, and what is refused."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import plga
from plga.adopt.classes import operators
from plga.training import config, run
from plga.training.data.dataset import open_data
from plga.training.monitor import looks_of
from tests.training import adopted_models, runs
from tests.training.processes import CONTEXT

CURVATURE = "model.layers.1.self_attn.operator.curvature"


@pytest.fixture(autouse=True)
def small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plga.training.data.dataset.standard_library", lambda: iter(runs.texts()))


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Llamas with tied embeddings and dropout, so that random numbers count."""
    root = tmp_path_factory.mktemp("adopted")
    changes = {"tie_word_embeddings": True, "attention_dropout": 0.1}
    return {kind: adopted_models.write(root / kind, kind, **changes) for kind in ("constant", "low_rank", "learned")}


def train(output: Path, directory: Path, *overrides: str) -> run.Trained:
    return run.train(runs.adopted_settings(output, f"model.adopted={directory}", *overrides))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def losses(trained: run.Trained) -> list[float]:
    return [entry["loss"] for entry in trained.history if "grad_norm" in entry]


def test_the_first_loss_is_that_of_the_base_model(tmp_path: Path) -> None:
    """Gemma 2 caps its logits: the loss is of what the model itself gives."""
    changes = {"final_logit_softcapping": 0.5, "initializer_range": 1.0}
    directory = adopted_models.write(tmp_path / "model", "constant", kind="gemma2", **changes)
    settings = runs.adopted_settings(tmp_path / "run", f"model.adopted={directory}", "optimizer.stop=1")
    trained = run.train(settings)
    data = open_data(settings.data, runs.VOCABULARY, runs.CONTEXT, seed=0, batch=4)
    rows = [row for row, _ in zip(data.train, range(4), strict=False)]
    ids, targets = (torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels"))
    with torch.no_grad():
        logits = adopted_models.base("gemma2", **changes)(input_ids=ids).logits
    assert float(logits.abs().max()) <= 0.5  # capped
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert losses(trained) == pytest.approx([float(expected)], rel=1e-6)
    line = next(entry for entry in trained.history if "grad_norm" in entry)
    assert line["accuracy"] == pytest.approx(float((logits.argmax(-1) == targets).float().mean()))


@pytest.mark.parametrize("kind", ["constant", "low_rank", "learned"])
def test_operators_alone_are_trained(tmp_path: Path, directories: dict[str, Path], kind: str) -> None:
    trained = train(tmp_path, directories[kind], "optimizer.steps=40", "optimizer.learning_rate=5e-2")
    assert sum(losses(trained)[-5:]) < sum(losses(trained)[:5])
    before, after = weights(directories[kind]), weights(tmp_path / "final")
    assert before.keys() == after.keys()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved
    assert all(".operator." in name for name in moved)
    moments = load_file(tmp_path / "checkpoint-40" / "optimizer.safetensors")
    assert all(".operator." in name for name in moments)  # nothing is kept for weights that are frozen
    looks = [entry for entry in trained.history if "validation_loss" in entry]
    assert [look["step"] for look in looks] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert ("order_parameter" in looks[-1]) == (kind == "learned")


def test_all_weights_are_trained(tmp_path: Path, directories: dict[str, Path]) -> None:
    train(tmp_path, directories["constant"], "model.trainable=all", "optimizer.stop=3")
    before, after = weights(directories["constant"]), weights(tmp_path / "final")
    assert not [name for name in before if before[name].equal(after[name])]
    assert not (tmp_path / "operators.safetensors").exists()  # they belong to other weights now


def test_what_it_leaves_loads_as_the_trained_model(tmp_path: Path, directories: dict[str, Path]) -> None:
    models: list[Any] = []

    class End(run.TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            models.append(model.eval())

    settings = runs.adopted_settings(tmp_path, f"model.adopted={directories['learned']}", "optimizer.stop=3")
    trained = run.train(settings, [End()])
    ids = torch.arange(12).view(2, 6)
    base = adopted_models.base(tie_word_embeddings=True, attention_dropout=0.1)
    with torch.no_grad():
        expected = models[0](input_ids=ids).logits
        for folder in ("final", "checkpoint-3"):
            loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
            assert type(loaded).__name__ == "AdoptedLlamaForCausalLM"
            assert loaded(input_ids=ids).logits.equal(expected)
        with_operators = plga.adopt.load_operators(base, tmp_path / "operators.safetensors")
        assert with_operators(input_ids=ids).logits.equal(expected)
    assert trained.data.tokenizer.decode([5]) == settings_tokenizer(tmp_path / "final").decode([5])


def settings_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_experts_are_trained_and_load(tmp_path: Path) -> None:
    directory = adopted_models.write(tmp_path / "model", "constant", kind="mixtral", num_local_experts=3)
    train(tmp_path / "run", directory, "model.trainable=all", "optimizer.stop=3", "logging.save_every=2")
    whole = weights_of(AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "final"))
    train(tmp_path / "halves", directory, "model.trainable=all", "optimizer.stop=2")
    train(tmp_path / "halves", directory, "model.trainable=all", "optimizer.stop=3")
    halves = weights_of(AutoModelForCausalLM.from_pretrained(tmp_path / "halves" / "final"))
    assert all(whole[name].equal(halves[name]) for name in whole)


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["learner", "layers"])
def test_recomputing_changes_no_bit(
    tmp_path: Path, directories: dict[str, Path], checkpointing: str, precision: str
) -> None:
    same = ("optimizer.stop=3", f"optimizer.precision={precision}", "objective.dag.metric=0.1")
    train(tmp_path / "none", directories["learned"], *same)
    train(tmp_path / "some", directories["learned"], *same, f"optimizer.checkpointing={checkpointing}")
    a, b = (weights(tmp_path / name / "final") for name in ("none", "some"))
    assert all(a[name].equal(b[name]) for name in a)
    assert {tensor.dtype for tensor in a.values()} == {torch.float32}


def test_the_regularizer_reaches_learned_operators(tmp_path: Path, directories: dict[str, Path]) -> None:
    trained = train(tmp_path / "with", directories["learned"], "optimizer.stop=3", "objective.dag.metric=0.5")
    train(tmp_path / "without", directories["learned"], "optimizer.stop=3")
    line = next(entry for entry in trained.history if "grad_norm" in entry)
    assert line["dag_metric"] > 0
    assert "dag_curvature" not in line
    a, b = (weights(tmp_path / name / "final") for name in ("with", "without"))
    name = "model.layers.0.self_attn.operator.generator.metric_weight"
    # With a = 0 the loss reaches W only after the first step; the regularizer at once.
    assert not a[name].equal(b[name])
    look = looks_of(trained.history)[-1]
    assert look["probe_dag_metric"] > 0
    assert math.isfinite(look["exponent_max"])


def test_the_steadiest_is_kept(tmp_path: Path, directories: dict[str, Path]) -> None:
    train(tmp_path, directories["learned"], "optimizer.stop=6", "logging.steadiest=true")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "steadiest")
    assert len(operators(loaded)) == 2


def test_windows_with_padding(tmp_path: Path, directories: dict[str, Path]) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        "".join(json.dumps({"text": text[: 7 * (i % 9 + 1)]}) + "\n" for i, text in enumerate(runs.texts() * 3))
    )
    data = ("data.source=jsonl", f"data.path={corpus}", "data.packing=padded", "optimizer.stop=3")
    trained = train(tmp_path / "run", directories["learned"], *data)
    assert all(map(math.isfinite, losses(trained)))


# --- resume ---

KILLED = ("optimizer.steps=60", "logging.keep=2")


def start(output: Path, directory: Path, *overrides: str) -> Any:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    arguments = (f"model.adopted={directory}", *KILLED, *overrides)
    process = CONTEXT.Process(target=runs.train, args=(output, arguments, sender))
    process.start()
    sender.close()
    return process, receiver


@pytest.mark.parametrize(("kind", "trainable"), [("learned", "operators"), ("constant", "all")])
def test_killed_at_random_moments_it_ends_with_the_same_bits(
    tmp_path: Path, directories: dict[str, Path], kind: str, trainable: str
) -> None:
    moves = f"model.trainable={trainable}"
    process, _ = start(tmp_path / "whole", directories[kind], moves)
    process.join()
    assert process.exitcode == 0
    rng, resumed_from = random.Random(0), []
    for _ in range(5):
        process, steps = start(tmp_path / "killed", directories[kind], moves)
        step = steps.recv()
        resumed_from.append(step - 1)
        target = step + rng.randint(0, 5)
        while step < target:
            step = steps.recv()
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert resumed_from == sorted(resumed_from)
    assert len(set(resumed_from)) > 2  # it did go on
    process, _ = start(tmp_path / "killed", directories[kind], moves)
    process.join()
    assert process.exitcode == 0
    files = ("final/model", "checkpoint-60/model", "checkpoint-60/optimizer", "checkpoint-60/random")
    for file in files:
        a, b = (load_file(tmp_path / name / f"{file}.safetensors") for name in ("killed", "whole"))
        assert a.keys() == b.keys()
        assert all(a[name].equal(b[name]) for name in a), file


# --- more than one process ---


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize(("kind", "trainable"), [("learned", "operators"), ("constant", "all")])
def test_two_processes_train_as_one(tmp_path: Path, strategy: str, kind: str, trainable: str) -> None:
    directory = adopted_models.write(tmp_path / "model", kind, tie_word_embeddings=True)
    same = (f"model.trainable={trainable}", "optimizer.learning_rate=1e-3", "optimizer.stop=6", "logging.save_every=3")
    one = train(tmp_path / "one", directory, *same)
    arguments = [str(tmp_path / "two"), f"model.adopted={directory}", f"distributed.strategy={strategy}", *same]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, "-m", "tests.training.runs", *arguments], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    history = json.loads((tmp_path / "two" / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert [entry["loss"] for entry in history if "grad_norm" in entry] == pytest.approx(losses(one), abs=1e-6, rel=0)
    a, b = (weights(tmp_path / name / "final") for name in ("one", "two"))
    assert a.keys() == b.keys()
    for name in a:
        assert float((a[name] - b[name]).abs().max()) < 1e-4, name
    # One process goes on from what two wrote.
    (tmp_path / "on").mkdir()
    (tmp_path / "two" / "checkpoint-3").rename(tmp_path / "on" / "checkpoint-3")
    assert losses(train(tmp_path / "on", directory, *same)) == pytest.approx(losses(one), abs=1e-6, rel=0)


# --- settings ---


def test_the_yaml_of_an_adopted_model(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("model: {adopted: there, context: 64}\n")
    settings = config.load(file, ["optimizer.weight_decay=0"])
    assert isinstance(settings, config.AdoptedTrainSettings)
    assert (settings.model.trainable, settings.context, settings.data.tokenizer) == ("operators", 64, "there")
    assert isinstance(config.load(file, ["data.tokenizer=other"]), config.AdoptedTrainSettings)
    assert config.load(file, ["data.tokenizer=other"]).data.tokenizer == "other"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hidden_size=8", "model.hidden_size is not a setting, expected one of adopted, trainable, context"),
        ("model.trainable=none", "model.trainable is 'none', expected 'operators' or 'all'"),
        ("model.adopted=3", "model.adopted is 3, expected text; a number is text in quotes"),
        ("objective.alignment.coefficient=1", "objective.alignment.coefficient is for a PLDR-LLM"),
        ("optimizer.compile=true", "optimizer.compile is true, but an adopted model is not compiled"),
        ("data=3", "data is 3, expected a section"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, override: str, message: str) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("model: {adopted: there}\n")
    with pytest.raises(ValueError) as raised:
        config.load(file, [override])
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.dag.metric=1", "objective.dag has a coefficient, which is for learned operators, but those of"),
        ("optimizer.checkpointing=learner", "optimizer.checkpointing is 'learner', which is for learned operators"),
        ("logging.steadiest=true", "logging.steadiest is true, which is for learned operators, but .* are constant"),
        ("model.context=65", "model.context is 65, expected <= 64, the positions of"),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    tmp_path: Path, directories: dict[str, Path], override: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        train(tmp_path, directories["constant"], override)
    assert "\n" not in str(raised.value)


def test_what_is_no_adopted_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file, but the directory of a model has one"):
        train(tmp_path / "run", tmp_path / "none")
    plain = tmp_path / "plain"
    adopted_models.base().save_pretrained(plain)
    with pytest.raises(ValueError, match=r"plain: model_type is 'llama', expected 'plga_adopted', which `plga adopt`"):
        train(tmp_path / "run", plain)


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    directory = adopted_models.write(tmp_path / "model", "constant")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    curvature = tensors.pop(CURVATURE)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"model: AdoptedLlamaForCausalLM lacks model\.layers\.1\.self_attn\.operator"):
        train(tmp_path / "run", directory)
    save_file(load_file(file) | {"model.norm.bias": torch.zeros(16), CURVATURE: curvature}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"model: AdoptedLlamaForCausalLM has no place for model\.norm\.bias$"):
        train(tmp_path / "run", directory)
    save_file(tensors | {CURVATURE: curvature[:2]}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"model: model\.layers\.1\.\S+ has shape \[2, 4, 4\], expected \[4, 4, 4\]$"):
        train(tmp_path / "run", directory)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"model\.safetensors: truncated"):
        train(tmp_path / "run", directory)
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(settings | {"quantization_config": {"quant_method": "x"}}))
    with pytest.raises(ValueError, match="its weights are quantized, expected floating point ones to train"):
        train(tmp_path / "run", directory)


def test_a_run_does_not_go_on_with_other_weights_trained(tmp_path: Path, directories: dict[str, Path]) -> None:
    train(tmp_path, directories["constant"], "optimizer.stop=2")
    with pytest.raises(ValueError, match=r"model\.trainable was 'operators' and is 'all'"):
        train(tmp_path, directories["constant"], "model.trainable=all")
    with pytest.raises(ValueError, match=r"of another run: model\.vocab_size was None and is 300"):
        run.train(runs.settings(tmp_path))


def test_no_gradient_that_is_not_finite_is_stepped_on(tmp_path: Path) -> None:
    directory = adopted_models.write(tmp_path / "model", "constant")
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors[CURVATURE][2, 0, 0] = torch.inf
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(FloatingPointError, match=r"^step 0: the loss is nan; no checkpoint yet$"):
        train(tmp_path / "run", directory)
