"""A run that is killed outright, at any moment, goes on with the same bits."""

import os
import random
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.training.processes import CONTEXT
from tests.training.runs import train

# Dropout, so that random numbers count; a checkpoint every second step, so that many kills meet one being written.
# So many steps that on a fast machine, too, twenty kills come before the end.
STEPS = 160
OVERRIDES = (f"optimizer.steps={STEPS}", "model.attention_dropout=0.1", "logging.keep=2", "logging.steadiest=true")


def start(output: Path, *overrides: str) -> tuple[ForkServerProcess, Connection]:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=train, args=(output, (*OVERRIDES, *overrides), sender))
    process.start()
    sender.close()
    return process, receiver


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing stopped."""
    output = tmp_path_factory.mktemp("whole")
    process, _ = start(output)
    process.join()
    assert process.exitcode == 0
    return output


def same(a: Path, b: Path) -> bool:
    tensors = [load_file(folder / "model.safetensors") for folder in (a, b)]
    return tensors[0].keys() == tensors[1].keys() and all(tensors[0][n].equal(tensors[1][n]) for n in tensors[0])


def assert_same_end(output: Path, whole: Path) -> None:
    for name in ("final", "steadiest", f"checkpoint-{STEPS}", f"checkpoint-{STEPS - 2}"):
        assert same(output / name, whole / name), name
    for name in ("optimizer", "random"):
        states = [load_file(folder / f"checkpoint-{STEPS}" / f"{name}.safetensors") for folder in (output, whole)]
        assert states[0].keys() == states[1].keys()
        assert all(states[0][key].equal(states[1][key]) for key in states[0]), name
    assert {path.name for path in output.iterdir()} == {path.name for path in whole.iterdir()}  # nothing left over


def test_killed_twenty_times_at_random_moments_it_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    kills, reached, resumed_from = 0, 0, []
    while kills < 20:
        process, steps = start(tmp_path)
        first = steps.recv()
        resumed_from.append(first - 1)
        # At most three steps on, so that twenty kills fit into the run; then at any moment of the steps that follow.
        target = first + rng.randint(0, 2)
        step = first
        while step < target:
            step = steps.recv()
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        reached, kills = max(reached, step), kills + 1
    assert resumed_from[0] == 0
    assert resumed_from == sorted(resumed_from)
    assert len(set(resumed_from)) > 5  # it did go on, and not always from the same place
    assert not (tmp_path / "final").exists()

    process, _ = start(tmp_path)
    process.join()
    assert process.exitcode == 0
    assert_same_end(tmp_path, whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_goes_on_with_the_same_bits(whole: Path, tmp_path: Path, number: int) -> None:
    process, steps = start(tmp_path, "logging.save_every=50")
    while steps.recv() < 7:
        pass
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join()
    saved = [path.name for path in tmp_path.glob("checkpoint-*")]
    assert len(saved) == 1
    step = int(saved[0].split("-")[1])
    assert 7 <= step < 50
    process, steps = start(tmp_path)
    assert steps.recv() == step + 1
    process.join()
    assert process.exitcode == 0
    for name in ("final", "steadiest"):
        assert same(tmp_path / name, whole / name)
