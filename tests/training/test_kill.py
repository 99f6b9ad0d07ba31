"""A run that is killed outright, at any moment, goes on with the same bits."""

import random
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.training.killable import train
from tests.training.processes import CONTEXT


def start(state_file: Path, out: Path) -> tuple[ForkServerProcess, Connection]:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=train, args=(state_file, out, sender))
    process.start()
    sender.close()
    return process, receiver


def test_killed_at_random_moments_and_resumed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole.safetensors", tmp_path / "pieces.safetensors"
    process, _ = start(tmp_path / "whole.pt", whole)
    process.join()
    assert process.exitcode == 0

    rng = random.Random(0)
    last, kills, first_steps = 0, 0, []
    while last < 17:
        process, steps = start(tmp_path / "pieces.pt", pieces)
        target, reached = last + rng.randint(1, 4), None
        while reached is None or reached < target:
            reached = steps.recv()
            first_steps += [reached] if len(first_steps) == kills else []
        process.kill()  # in the step after, or in the middle of a save
        process.join()
        last, kills = reached, kills + 1
    assert not pieces.exists()
    assert kills >= 4
    assert first_steps[0] == 1
    assert first_steps[-1] > 5  # it did resume

    process, steps = start(tmp_path / "pieces.pt", pieces)
    process.join()
    assert process.exitcode == 0
    assert steps.recv() > 10
    assert pieces.read_bytes() == whole.read_bytes()
