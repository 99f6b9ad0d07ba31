"""A training loop on one process that can be stopped at any time and goes on with the same bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from plga.model.atomic import new_file
from plga.model.modeling import PldrForCausalLM
from plga.model.pickles import load_tensors
from plga.training.data.windows import Windows
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
        self.extra: dict[str, object] = {}  # what the state resumed from was saved with
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
            with self.naming_step():
                loss = next_token_loss(self.model, batch)
                if not torch.isfinite(loss):
                    raise FloatingPointError(f"the loss is {loss.item()}")
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_value_(self.model.parameters(), self.recipe.clip)
            self.optimizer.step()
            self.losses.append(loss.item())
            self.step += 1
            on_step(self)

    @contextmanager
    def naming_step(self) -> Iterator[None]:
        """Put the step into a FloatingPointError of the block."""
        try:
            yield
        except FloatingPointError as error:
            raise FloatingPointError(f"step {self.step}: {error}") from None

    def save(self, **extra: object) -> None:
        """Write all that the next step depends on, and what ``extra`` names, so that it is there whole or not at all.

        Raises:
            OSError: the disk is full, and whatever else the file system says; the state saved before stays.
        """
        assert self.state_file is not None
        state = {
            "run": self._identity(),
            "step": self.step,
            "losses": self.losses,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),  # of dropout
            "extra": extra,
        }
        with new_file(self.state_file, overwrite=True) as temporary, temporary.open("wb") as file:
            torch.save(state, file)

    def _identity(self) -> str:
        return f"{self.recipe} seed={self.seed} data={self.windows.digest} {self.model.config.to_json_string()}"

    def _resume(self, state_file: Path) -> None:
        try:
            state = load_tensors(state_file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{state_file}: cannot be resumed from, remove it to start anew ({error})") from error
        if not isinstance(state, dict) or state.get("run") != self._identity():
            raise ValueError(
                f"{state_file}: not the state of a run with these settings and data; remove it or choose another place"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.step, self.losses, self.extra = state["step"], state["losses"], state["extra"]
