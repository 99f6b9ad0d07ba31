"""Looks at a run while it trains: order parameter, validation loss, and what else tells how it stands."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import TrainerCallback

from plga.criticality.order_parameter import fluctuation
from plga.model.atomic import new_directory
from plga.model.loss import IGNORED
from plga.model.operator import DeductiveOutputs
from plga.ops.spectrum import cycle_share
from plga.training import checkpoints
from plga.training.penalties import dag_losses
from plga.training.subject import learned_operators

if TYPE_CHECKING:
    from plga.training.trainer import Trainer

# Below the resolution of float32 a fluctuation is rounding, and a smaller one is not a steadier operator.
RESOLUTION = torch.finfo(torch.float32).eps


class Look(NamedTuple):
    """What one look at a run gives; see :meth:`Monitor.look`."""

    figures: dict[str, float]
    cycle_shares: Tensor | None


def steadiest(looks: list[dict[str, Any]]) -> dict[str, Any]:
    """The look with the smallest order parameter; of those that float32 cannot tell apart the latest, which has
    learned longest."""
    return min(reversed(looks), key=lambda look: max(look["order_parameter"], RESOLUTION))


class Monitor(TrainerCallback):
    """Every ``logging.probe_every`` steps, and after the last, looks at a fixed probe of validation windows.

    With ``logging.steadiest`` the model of the steadiest look is kept in the folder of that name.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self.trainer = trainer
        count = trainer.settings.logging.probe_windows
        windows = trainer.data.validation(2 * count)
        # The order parameter is taken on one half and the loss on the other, so that choosing by one says nothing
        # about the other.
        self.probe = {name: t[:count] for name, t in windows.items()}
        self.held_out = {name: t[count:] for name, t in windows.items()}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._due(state):
            control.should_log = True

    def after_log(self) -> None:
        """Look if it is time: after the log line of the same step, and before a checkpoint of it."""
        trainer = self.trainer
        if not self._due(trainer.state):
            return
        look = self.look()
        trainer.log(dict(look.figures))
        for guard in trainer.guards:
            guard.on_look(look)
        if trainer.settings.logging.steadiest and "order_parameter" in look.figures:
            looks = looks_of(trainer.state.log_history)
            if steadiest(looks) is looks[-1]:
                self._keep()

    def _due(self, state: Any) -> bool:
        step = state.global_step
        return step % self.trainer.settings.logging.probe_every == 0 or step == state.max_steps

    def look(self) -> Look:
        """Measure the model as it stands.

        Returns:
            ``validation_loss`` (nats a token) and ``validation_accuracy``; for a learned operator also
            ``order_parameter`` (fluctuation of G_LM over the probe) and that of A, A_LM and A_P, ``probe_dag_*``
            (mean DAG losses), ``cycle_share`` (largest of A_LM), ``exponent_min`` and ``exponent_max`` (of P),
            ``probe_alignment`` (relative difference of the operators of blocks).
        """
        model = self.trainer.model
        with self._evaluating(model):
            figures = self._inductive(self.held_out)
            operators = learned_operators(model)
            if not operators:
                return Look(figures, None)
            layers, alignment = self._deductive(self.probe)
            figures["order_parameter"] = fluctuation(_stacked(layers, "curvature"))
            for symbol, name in (("A", "generator"), ("A_LM", "metric"), ("A_P", "potential")):
                figures[f"order_parameter_{symbol}"] = fluctuation(_stacked(layers, name))
            figures |= {f"probe_dag_{name}": float(value) for name, value in dag_losses(layers).items()}
            shares = cycle_share(_stacked(layers, "metric"))
            exponents = [checkpoints.whole(operator.exponent) for operator in operators]
            figures["cycle_share"] = float(shares.max())
            figures["exponent_min"] = min(float(p.min()) for p in exponents)
            figures["exponent_max"] = max(float(p.max()) for p in exponents)
            if alignment is not None:
                figures["probe_alignment"] = alignment
            return Look(figures, shares)

    def _inductive(self, windows: dict[str, Tensor]) -> dict[str, float]:
        """Cross-entropy and accuracy over all real targets of some windows."""
        loss = hits = count = 0.0
        for part in self._parts(windows):
            passed = self.trainer.subject.forward(self.trainer.model, part)
            real = int((part["labels"] != IGNORED).sum())
            loss += float(passed.loss) * real
            count += real
            hits += int(passed.hits())
        return {"validation_loss": loss / count, "validation_accuracy": hits / count}

    def _deductive(self, windows: dict[str, Tensor]) -> tuple[list[DeductiveOutputs], float | None]:
        """Deductive outputs of each layer over some windows, on the CPU, and the alignment where it is defined."""
        parts, alignments = [], []
        blocks = self._alignment_blocks(windows)
        for part in self._parts(windows):
            passed = self.trainer.subject.forward(self.trainer.model, part, deductive=True, blocks=blocks)
            assert passed.deductive is not None  # asked for
            parts.append(passed.deductive)
            if blocks is not None:
                assert passed.alignment is not None
                alignments.append(float(torch.stack(passed.alignment).mean()) * len(part["input_ids"]))
        layers = [
            DeductiveOutputs(*(torch.cat([p.cpu() for p in tensors]) for tensors in zip(*layer, strict=True)))
            for layer in zip(*parts, strict=True)
        ]
        return layers, sum(alignments) / len(windows["input_ids"]) if alignments else None

    def _alignment_blocks(self, windows: dict[str, Tensor]) -> int | None:
        """How many blocks the settings name, where every window has a token for each and one G_LM."""
        blocks: int = self.trainer.settings.objective.alignment.blocks
        mask = windows.get("attention_mask")
        shortest = windows["input_ids"].shape[1] if mask is None else int(mask.sum(dim=1).min())
        # Of a PLDR-LLM: an adopted model has no choice of a Gram.
        gram = getattr(self.trainer.model.config, "gram", None)
        return blocks if gram == "global" and shortest >= blocks else None

    def _parts(self, windows: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        size = self.trainer.args.per_device_train_batch_size
        device = self.trainer.args.device
        for start in range(0, len(windows["input_ids"]), size):
            yield {name: t[start : start + size].to(device) for name, t in windows.items()}

    @contextmanager
    def _evaluating(self, model: Any) -> Iterator[None]:
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            model.train(training)

    def _keep(self) -> None:
        trainer = self.trainer
        tensors = checkpoints.weights(trainer.model)
        if trainer.is_world_process_zero():
            target = trainer.settings.logging.output / "steadiest"
            with new_directory(target, overwrite=True) as directory:
                checkpoints.write_model(directory, trainer.model, tensors, trainer.data.tokenizer)


def looks_of(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The looks at a learned operator in a Trainer's log history."""
    return [entry for entry in history if "order_parameter" in entry]


def _stacked(layers: list[DeductiveOutputs], name: str) -> Tensor:
    """One deductive output over the probe, [N, L, ...]."""
    return torch.stack([getattr(layer, name) for layer in layers], dim=1)
