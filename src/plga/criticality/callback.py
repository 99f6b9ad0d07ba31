"""Looks at a fixed probe batch while any Trainer of Transformers trains."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from plga.criticality.order_parameter import Deductive, deductive_outputs, fluctuations


class ProbeCallback(TrainerCallback, ABC):
    """Every so many steps, and after the last, hands the deductive outputs of a probe to :meth:`look`.

    One forward pass a look; with several processes each makes it, as a sharded model needs.

    Args:
        probe: [N, S] token ids, N >= 2, none of it padding.
        every: steps between looks.
    """

    def __init__(self, probe: Tensor, every: int) -> None:
        if probe.dim() != 2 or len(probe) < 2:
            raise ValueError(f"probe is {tuple(probe.shape)}, expected [N, S] with N >= 2 inputs")
        if every < 1:
            raise ValueError(f"every is {every}, expected >= 1 step")
        self.probe, self.every = probe, every

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            self.look(deductive_outputs(model, self.probe.to(args.device)), state)

    @abstractmethod
    def look(self, outputs: Deductive, state: Any) -> None:
        """What to do with the deductive outputs [N, L, H, d, d]; ``state`` is the Trainer's."""


class OrderParameterCallback(ProbeCallback):
    """Puts ``order_parameter`` (fluctuation of G_LM), ``order_parameter_A``, ``_A_LM`` and ``_A_P`` into the history.

    ``plga train`` looks by itself (:class:`plga.training.monitor.Monitor`); this is for other Trainers.
    """

    def look(self, outputs: Deductive, state: Any) -> None:
        found = fluctuations(outputs)
        entry = {"order_parameter": found.pop("G_LM")} | {f"order_parameter_{s}": v for s, v in found.items()}
        state.log_history.append(entry | {"step": state.global_step})
