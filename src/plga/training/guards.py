"""Guards: each watches one thing that goes wrong in training, has a threshold, and says when it acts.

That a number is not finite is watched where numbers are made: in the model (layer and heads) and in
:class:`plga.training.trainer.Trainer` (loss, gradients), and always ends the run.
"""

import logging
import statistics
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from plga.training.monitor import Look
from plga.training.subject import learned_operators

if TYPE_CHECKING:
    from plga.training.trainer import Trainer

logger = logging.getLogger(__name__)
_STEADY = 1e-9  # of the mean: a loss that does not move at all has no standard deviation to compare with


class Guard(TrainerCallback):
    """What guards share: a name, a state that checkpoints carry, and a log line and a record when one acts."""

    name: str

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer

    def on_losses(self, first: int, losses: list[float]) -> None:
        """Called at each log line with the losses of steps ``first``, ``first + 1``, ..., over all processes."""

    def on_look(self, look: Look) -> None:
        """Called at each look at the run."""

    def state(self) -> Any:
        """JSON-able."""

    def load_state(self, state: Any) -> None:
        """Go on from a state."""

    def acts(self, message: str, **event: Any) -> None:
        """Say it and keep it in the run's history."""
        self.says(message)
        self.trainer.record(guard=self.name, **event)

    def says(self, message: str) -> None:
        """One line in the log of process 0."""
        if self.trainer.is_world_process_zero():
            logger.warning("step %d: guard %s: %s", self.trainer.state.global_step, self.name, message)


class ExponentGuard(Guard):
    """While an exponent exceeds the limit in magnitude, clips the gradient of P by value more strictly."""

    name = "exponent"

    def __init__(self, trainer: "Trainer") -> None:
        super().__init__(trainer)
        self.settings = trainer.settings.guards.exponent
        self.active = False

    def on_look(self, look: Look) -> None:
        if "exponent_min" not in look.figures:
            return
        low, high = look.figures["exponent_min"], look.figures["exponent_max"]
        beyond = max(-low, high) > self.settings.limit
        if beyond != self.active:
            range_ = f"the exponents P lie in [{low:.3g}, {high:.3g}]"
            if beyond:
                how = f"beyond {self.settings.limit:g}: their gradient is clipped at {self.settings.clip_at:g}"
            else:
                how = f"within {self.settings.limit:g} again"
            self.acts(f"{range_}, {how}", active=beyond, exponent_min=low, exponent_max=high)
        self.active = beyond

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.active:
            for operator in learned_operators(self.trainer.model):
                if operator.exponent.grad is not None:
                    operator.exponent.grad.clamp_(-self.settings.clip_at, self.settings.clip_at)

    def state(self) -> Any:
        return self.active

    def load_state(self, state: Any) -> None:
        self.active = state


class CycleGuard(Guard):
    """Where ρ(A_LM) / σ₁(A_LM) of some head exceeds the limit, raises the DAG coefficients."""

    name = "cycles"

    def __init__(self, trainer: "Trainer") -> None:
        super().__init__(trainer)
        self.settings = trainer.settings.guards.cycles
        self.beyond = False

    def on_look(self, look: Look) -> None:
        if look.cycle_shares is None:
            return
        share = look.figures["cycle_share"]
        beyond = share > self.settings.limit
        penalties = self.trainer.penalties
        rose = beyond and penalties.raise_coefficients(self.settings.factor, self.settings.cap)
        if rose or beyond != self.beyond:
            # [N, L, H], and a chunk between these where the Gram is chunked
            position = torch.unravel_index(look.cycle_shares.argmax(), look.cycle_shares.shape)
            layer, head = int(position[1]), int(position[-1])
            where = f"ρ/σ₁ of A_LM is {share:.3f} in layer {layer}, head {head}"
            if rose:
                how = (
                    f"above {self.settings.limit:g}: DAG coefficients raised to {penalties.boost:g} times the settings"
                )
            elif beyond:
                how = f"above {self.settings.limit:g}: there is no DAG coefficient below the cap to raise"
            else:
                how = f"within {self.settings.limit:g} again"
            self.acts(f"{where}, {how}", cycle_share=share, layer=layer, head=head, boost=penalties.boost)
        self.beyond = beyond

    def state(self) -> Any:
        return self.beyond

    def load_state(self, state: Any) -> None:
        self.beyond = state


class DragonKingGuard(Guard):
    """Records a jump of the loss above its recent history, with the order parameter before and after."""

    name = "dragon-king"

    def __init__(self, trainer: "Trainer") -> None:
        super().__init__(trainer)
        self.settings = trainer.settings.guards.dragon_king
        self.history: list[float] = []
        self.order_parameter: float | None = None
        self.open: list[dict[str, Any]] = []  # events that wait for the next look

    def on_losses(self, first: int, losses: list[float]) -> None:
        for step, loss in enumerate(losses, start=first):
            if len(self.history) == self.settings.history:
                mean = statistics.fmean(self.history)
                deviation = max(statistics.stdev(self.history), _STEADY * abs(mean))
                if loss > mean + self.settings.deviations * deviation:
                    self._event(step, loss, mean, deviation)
            self.history = [*self.history, loss][-self.settings.history :]

    def _event(self, step: int, loss: float, mean: float, deviation: float) -> None:
        height = (loss - mean) / deviation
        self.says(f"the loss jumped to {loss:.4g} at step {step}, {height:.1f} standard deviations above {mean:.4g}")
        self.open.append(
            {"event_step": step, "loss": loss, "mean": mean, "height": height, "order_before": self.order_parameter}
        )

    def on_look(self, look: Look) -> None:
        self.order_parameter = look.figures.get("order_parameter")
        self._close(self.order_parameter)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._close(None)  # no look comes any more

    def _close(self, order_after: float | None) -> None:
        for event in self.open:
            self.trainer.record(guard=self.name, **event, order_after=order_after)
        self.open = []

    def state(self) -> Any:
        return {"history": self.history, "order_parameter": self.order_parameter, "open": self.open}

    def load_state(self, state: Any) -> None:
        self.history, self.order_parameter, self.open = state["history"], state["order_parameter"], state["open"]


def guards_of(trainer: "Trainer") -> list[Guard]:
    """Every guard, for one run."""
    return [ExponentGuard(trainer), CycleGuard(trainer), DragonKingGuard(trainer)]
