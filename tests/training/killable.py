"""A tiny training run in a process of its own, to be killed."""

from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import save_file

from plga.training.loop import Trainer
from tests.training import examples


def train(state_file: Path, out: Path, steps: Connection) -> None:
    """Train to the end, saving every second step and reporting every step, then write the weights to ``out``."""
    torch.set_num_threads(1)
    trainer = Trainer(examples.model(), examples.windows(), examples.recipe(stop=20), 0, state_file)

    def on_step(trainer: Trainer) -> None:
        steps.send(trainer.step)
        if trainer.step % 2 == 0:
            trainer.save()

    trainer.run(20, on_step)
    save_file({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}, out)
