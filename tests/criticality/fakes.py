"""What a process of a sweep does in the tests, instead of training.

Imports next to nothing, so that a process starts at once. A run whose learning rate is at least 0.01 collapses, one of
seed 13 fails. Files in the folder of the sweep say what else happens: ``slow`` (a run takes a second), ``hang`` (it
takes for ever), ``kill`` (it dies), ``error`` (it meets an error that is not its own).
"""

import json
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

COLLAPSE = 0.01


def run(values: dict[str, Any], folder: Path, told: Connection) -> None:
    """As plga.criticality.worker.run."""
    if (folder / "outcome.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    out, recipe = folder.parent, values["optimizer"]
    with (folder / "begun").open("a") as begun:
        begun.write(f"{os.environ['OMP_NUM_THREADS']} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}\n")
    if (out / "error").exists():
        told.send("the disk is full")
        return
    if (out / "kill").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    while (out / "hang").exists():
        time.sleep(0.05)
    if (out / "slow").exists():
        time.sleep(1)
    if recipe["seed"] == 13:
        finish(folder, {"message": "step 7: A of layer 0 is not finite in heads [1]"})
        return
    (folder / "final").mkdir(exist_ok=True)
    finish(folder, {"figures": figures(recipe["learning_rate"], recipe["warmup"], recipe["seed"])})


def figures(learning_rate: float, warmup: float, seed: int) -> dict[str, Any]:
    """Of a run that collapses at learning rates from 0.01 on, and opens again from 0.1 on, after a dragon king."""
    smallest = 0.1 if learning_rate < COLLAPSE else 1e-7
    order = 1e-3 if learning_rate >= 0.1 else smallest
    loss = 4 + learning_rate + seed / 100
    return {
        "order_parameter": order,
        "order_parameter_A": order,
        "order_parameter_A_LM": order,
        "order_parameter_A_P": order,
        "smallest": smallest,
        "smallest_step": 20,
        "validation_loss": loss,
        "unseen_order_parameter": 1.1 * order,
        "unseen_loss": loss + 0.2,
        "loss": loss - 0.1,
        "tokens_per_second": 1000.0,
        "dragon_kings": [{"event_step": 30, "height": 8.0, "order_before": 1e-7, "order_after": 1e-3}]
        * (learning_rate >= 0.1),
        "looks": [[10, 0.1, 5.0], [20, smallest, 4.5], [40, order, loss]],
    }


def finish(folder: Path, outcome: dict[str, Any]) -> None:
    temporary = folder / ".outcome"
    temporary.write_text(json.dumps(outcome))
    temporary.rename(folder / "outcome.json")


def begun(folder: Path) -> int:
    """How many times the run of a folder has begun."""
    return len((folder / "begun").read_text().splitlines())
