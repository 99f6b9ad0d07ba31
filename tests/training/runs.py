"""Tiny training runs: settings for them, and a process that takes one and says how far it is."""

import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from plga.training import run
from plga.training.config import AdoptedTrainSettings, RunSettings, TrainSettings
from plga.training.data import dataset, standard_library
from plga.training.settings import overridden

VOCABULARY, CONTEXT = 300, 12
BASE: dict[str, Any] = {
    "model": {
        "vocab_size": VOCABULARY,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "metric_intermediate_size": 5,
        "num_metric_units": 2,
        "max_position_embeddings": CONTEXT,
    },
    "optimizer": {"learning_rate": 5e-3, "warmup": 4, "steps": 20, "batch": 4},
    "logging": {"every": 1, "probe_every": 5, "probe_windows": 2, "save_every": 2, "report_to": []},
}


def texts() -> list[str]:
    """In the place of the standard library."""
    return [f"def f_{i}(x):\n" + "".join(f"    x += {j * i}\n" for j in range(8)) + "    return x\n" for i in range(60)]


def install() -> None:
    """Let the standard library of this process be a small one."""
    dataset.standard_library = standard_library.standard_library = lambda: iter(texts())


def settings(output: Path, *overrides: str) -> TrainSettings:
    """Twenty steps of four windows of the small standard library."""
    values = overridden(BASE, [f"logging.output={output}", *overrides])
    return TrainSettings.checked(values, "tiny")


def adopted_settings(output: Path, *overrides: str) -> AdoptedTrainSettings:
    """The same of an adopted model, which ``model.adopted`` names."""
    base = {**BASE, "model": {"context": CONTEXT}}
    return AdoptedTrainSettings.checked(overridden(base, [f"logging.output={output}", *overrides]), "tiny")


def _settings(output: Path, overrides: Sequence[str]) -> RunSettings:
    adopted = any(override.startswith("model.adopted=") for override in overrides)
    return (adopted_settings if adopted else settings)(output, *overrides)


class Report(TrainerCallback):
    """Sends each step when it is done."""

    def __init__(self, steps: Connection) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.send(state.global_step)


def train(output: Path, overrides: tuple[str, ...], steps: Connection) -> None:
    """A run in a process of its own, to be killed: reports every step."""
    torch.set_num_threads(1)
    # Whatever it prints when it dies is not the test's.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    install()
    run.train(_settings(output, overrides), [Report(steps)])


if __name__ == "__main__":  # as a process of torchrun
    torch.set_num_threads(1)
    install()
    run.train(_settings(Path(sys.argv[1]), sys.argv[2:]))
