"""Two processes on a CPU, through torchrun: replicas (DDP) and shards (FSDP2) train as one process with the same batch
does, and each goes on from the checkpoints of the others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from plga.training import run
from plga.training.data.tokenizer import train_tokenizer
from tests.training import runs

STEPS, HALF = 20, 10
# From the published initialization a model this small magnifies one rounding a thousandfold within twenty steps; from
# the small one it does not, so there the layouts can be compared to 1e-6.
OVERRIDES = (
    "logging.save_every=10",
    "logging.keep=9",
    "objective.dag.metric=0.01",
    "optimizer.learning_rate=1e-3",
    "model.metric_initialization=small",
)
LAYOUTS = ("one", "ddp", "fsdp2")


def launch(output: Path, strategy: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(output), f"distributed.strategy={strategy}", *OVERRIDES, *overrides]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "-m", "tests.training.runs", *arguments], env=environment, capture_output=True, text=True
    )


def train(output: Path, layout: str, *overrides: str) -> Path:
    """A run in ``output`` as one process, or as two."""
    if layout == "one":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("plga.training.data.dataset.standard_library", lambda: iter(runs.texts()))
            run.train(runs.settings(output, *OVERRIDES, *overrides))
    else:
        ended = launch(output, layout, *overrides)
        assert ended.returncode == 0, ended.stderr
    return output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {layout: train(tmp_path_factory.mktemp(layout), layout) for layout in LAYOUTS}


def history(output: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((output / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())[
        "log_history"
    ]
    return entries


def losses(output: Path) -> list[float]:
    return [entry["loss"] for entry in history(output) if "grad_norm" in entry]


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_losses_are_those_of_one_process_with_the_whole_batch(trained: dict[str, Path], layout: str) -> None:
    assert len(losses(trained["one"])) == STEPS
    assert losses(trained[layout]) == pytest.approx(losses(trained["one"]), abs=1e-6, rel=0)
    for name in ("grad_norm", "dag_metric", "accuracy"):
        ours, theirs = (
            [entry[name] for entry in history(trained[key]) if "grad_norm" in entry] for key in (layout, "one")
        )
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_looks_are_those_of_one_process(trained: dict[str, Path], layout: str) -> None:
    looks = {
        key: [(e["order_parameter"], e["validation_loss"]) for e in history(trained[key]) if "validation_loss" in e]
        for key in (layout, "one")
    }
    assert len(looks["one"]) == STEPS // 5
    for ours, theirs in zip(looks[layout], looks["one"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_the_model_is_written_whole(trained: dict[str, Path], layout: str) -> None:
    one, other = (load_file(trained[key] / "final" / "model.safetensors") for key in ("one", layout))
    assert {name: t.shape for name, t in other.items()} == {name: t.shape for name, t in one.items()}
    for name, tensor in one.items():
        assert float((other[name] - tensor).abs().max()) < 1e-4, name


@pytest.mark.parametrize(
    ("writer", "reader"), [(writer, reader) for writer in LAYOUTS for reader in LAYOUTS if writer != reader]
)
def test_each_goes_on_from_the_checkpoint_of_the_other(
    trained: dict[str, Path], tmp_path: Path, writer: str, reader: str
) -> None:
    shutil.copytree(trained[writer] / f"checkpoint-{HALF}", tmp_path / f"checkpoint-{HALF}")
    train(tmp_path, reader, "optimizer.accumulate=2")  # which may change, as how many processes there are may
    assert losses(tmp_path) == pytest.approx(losses(trained["one"]), abs=1e-6, rel=0)


def test_documents_are_dealt_anew_to_another_number_of_processes(tmp_path: Path) -> None:
    corpus, output = tmp_path / "corpus.jsonl", tmp_path / "out"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in runs.texts() * 3))
    train_tokenizer(runs.texts(), runs.VOCABULARY, runs.CONTEXT).save_pretrained(tmp_path / "tokenizer")
    data = ("data.source=jsonl", f"data.path={corpus}", f"data.tokenizer={tmp_path / 'tokenizer'}")
    for layout, stop in (("one", 8), ("ddp", 14), ("one", STEPS)):
        train(output, layout, *data, f"optimizer.stop={stop}")
    assert len(losses(output)) == STEPS
    whole = losses(train(tmp_path / "whole", "one", *data))
    assert losses(output)[:8] == whole[:8]
    assert losses(output)[8:] != whole[8:]  # other windows from there on, as the log says


def test_a_batch_that_two_processes_cannot_share_is_named_by_both(tmp_path: Path) -> None:
    ended = launch(tmp_path, "ddp", "optimizer.batch=5")
    assert ended.returncode != 0
    assert "optimizer.batch is 5, expected a multiple of 2 processes x optimizer.accumulate = 1" in ended.stderr
