"""``plga train``: what it shows and leaves, and what it says of bad input."""

import signal
from pathlib import Path

import pytest
import yaml

from plga.model.checkpoint import load_model
from plga.training.config import load
from tests.cli.runner import fresh, plga
from tests.training import adopted_models, runs

# A run that waits once it has taken a few steps, so that a signal is sure to find it training.
PAUSED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from transformers import TrainerCallback
from tests.training import runs
from plga.training import run
runs.install()

class Slow(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3:
            print("training", flush=True)
            time.sleep(2)

def train(settings, callbacks, train=run.train):
    return train(settings, [*callbacks, Slow()])

run.train = train
from plga.cli.main import main
main()
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**runs.BASE, "logging": {**runs.BASE["logging"], "report_to": ["tensorboard"]}}))
    return file


def test_a_run_from_a_file(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "[b]out"
    ending = plga("train", config, f"logging.output={out}", "optimizer.stop=12", small_library=True)
    assert (ending.code, ending.err) == (0, ""), ending
    assert "step  5/12  loss" in ending.out
    assert "G_LM fluctuation" in ending.out
    assert f"{out}/final" in ending.out
    assert load_model(out / "final").config.hidden_size == 8
    assert list(out.glob("runs/*/events.out.tfevents.*"))  # TensorBoard's
    again = plga("train", config, f"logging.output={out}", small_library=True)
    assert "going on from step 12" in again.out
    assert "step 20/20" in again.out


def test_an_adopted_model_is_trained_on(tmp_path: Path) -> None:
    directory = adopted_models.write(tmp_path / "model", "constant")
    file = tmp_path / "adopted.yaml"
    model = {"adopted": str(directory), "context": runs.CONTEXT}
    file.write_text(yaml.safe_dump({**runs.BASE, "model": model}))
    out = tmp_path / "out"
    ending = plga("train", file, f"logging.output={out}", "optimizer.stop=5", small_library=True)
    assert (ending.code, ending.err) == (0, ""), ending
    assert "step 5/5  loss" in ending.out
    assert "G_LM fluctuation" not in ending.out
    assert f"trained model  {out}/final\n" in ending.out
    assert f"operators      {out}/operators.safetensors\n" in ending.out
    shown = yaml.safe_load(plga("train", file, "--show").out)
    assert shown["model"] == {**model, "trainable": "operators"}
    assert shown["data"]["tokenizer"] == str(directory)


def test_every_setting_can_be_shown_and_read_back(config: Path, tmp_path: Path) -> None:
    ending = plga("train", config, "optimizer.steps=7", "--show")
    assert (ending.code, ending.err) == (0, "")
    file = tmp_path / "shown.yaml"
    file.write_text(ending.out)
    assert load(file) == load(config, ["optimizer.steps=7"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such file, and no ready configuration"),
        (["tiny", "optimizer.lr=1"], "tiny: optimizer.lr is not a setting, expected one of learning_rate, warmup"),
        (["tiny", "optimizer.clip=none"], "tiny: optimizer.clip is 'none', expected 'value' or 'norm'"),
        (["tiny", "nonsense"], "'nonsense': expected section.key=value"),
        (["tiny", "logging.report_to=[smoke]"], "logging.report_to"),
    ],
)
def test_bad_settings_are_one_line_and_leave_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    out = tmp_path / "out"
    ending = plga("train", *arguments, f"logging.output={out}", small_library=True)
    assert message in ending.error()
    assert not out.exists() or not list(out.glob("*"))


def test_an_output_that_is_a_file_is_one_line(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "file" in plga("train", config, f"logging.output={tmp_path / 'file'}", small_library=True).error()
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_says_where_it_goes_on(config: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    process = fresh("train", str(config), f"logging.output={out}", "logging.save_every=20", code=PAUSED)
    assert process.stdout is not None
    assert any("training" in line for line in process.stdout)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1].startswith(f"plga: stopped by {number.name} at step 4; {out}/checkpoint-4 is")
    assert "going on from step 4" in plga("train", config, f"logging.output={out}", small_library=True).out
