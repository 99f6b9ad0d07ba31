"""A training loop on one process that can be stopped at any time and goes on with the same bits."""

import os
from collections.abc import Callable
from pathlib import Path

import torch

from plga.model.modeling import PldrForCausalLM
from plga.training.corpus import Windows
from plga.training.objective import next_token_loss
from plga.training.recipe import Recipe


class Trainer:
    """Trains ``model`` in place; ``state_file`` is what an interrupted run resumes from.

    Args:
        model: in float32.
        windows: the data; the batch of a step depends on ``seed`` and the step alone.
        recipe: schedule and optimizer.
        seed: of the data order.
        state_file: where :meth:`save` writes, to a temporary name first. If it exists, training resumes from it.

    Raises:
        ValueError: ``state_file`` is of another run or damaged.
    """

    def __init__(
        self, model: PldrForCausalLM, windows: Windows, recipe: Recipe, seed: int, state_file: Path | None = None
    ) -> None:
        self.model, self.windows, self.recipe, self.seed, self.state_file = model, windows, recipe, seed, state_file
        self.optimizer = recipe.optimizer(model)
        self.step = 0
        self.losses: list[float] = []
        if state_file is not None and state_file.exists():
            self._resume(state_file)

    def run(self, until: int, on_step: Callable[["Trainer"], None] = lambda trainer: None) -> None:
        """Take steps up to step ``until`` or the recipe's stop, calling ``on_step`` after each.

        Raises:
            FloatingPointError: a non-finite loss, naming the step (a non-finite G_LM names layer and heads).
        """
        self.model.train()
        while self.step < min(until, self.recipe.stop):
            batch = self.windows.batch(self.seed, self.step, self.recipe.batch)
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.learning_rate_at(self.step)
            try:
                loss = next_token_loss(self.model, batch)
            except FloatingPointError as error:
                raise FloatingPointError(f"step {self.step}: {error}") from None
            if not torch.isfinite(loss):
                raise FloatingPointError(f"step {self.step}: the loss is {loss.item()}")
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self.recipe.clip)
            self.optimizer.step()
            self.losses.append(loss.item())
            self.step += 1
            on_step(self)

    def save(self, **extra: object) -> None:
        """Write all that the next step depends on, and what ``extra`` names, so that it is there whole or not at all."""
        assert self.state_file is not None
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.state_file.with_name(self.state_file.name + ".tmp")
        state = {
            "run": self._identity(),
            "step": self.step,
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "extra": extra,
        }
        try:
            with open(temporary, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.state_file)
        finally:
            temporary.unlink(missing_ok=True)

    def _identity(self) -> str:
        return f"{self.recipe} seed={self.seed} {self.model.config.to_json_string()}"

    def _resume(self, state_file: Path) -> None:
        try:
            state = torch.load(state_file, weights_only=True)
            run, self.extra = state["run"], state["extra"]
        except Exception as error:  # torch.load raises whatever the bytes provoke
            raise ValueError(f"{state_file} is not a training state ({type(error).__name__}): remove it") from error
        if run != self._identity():
            raise ValueError(
                f"{state_file} is the state of a run with other settings: remove it or choose another --out"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses = state["step"], state["losses"]

    extra: dict[str, object] = {}
