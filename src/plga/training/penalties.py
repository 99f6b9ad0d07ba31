"""What is added to the cross-entropy: the DAG regularizer and the Gram alignment, with their coefficients."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from plga.model.operator import DeductiveOutputs
from plga.ops.acyclicity import dag_loss
from plga.training.config import DagSettings, ObjectiveSettings

DAG_TENSORS = ("metric", "potential", "curvature")


def rise(settings: DagSettings, step: int, steps: int) -> float:
    """Share of the DAG coefficients that holds at a step: 1, or a rise from 0 to 1 over the first steps.

    Args:
        step: 0, 1, ...
        steps: of the whole schedule.
    """
    progress = min(1.0, step / (settings.rise * steps))
    if settings.schedule == "linear":
        return progress
    if settings.schedule == "cosine":
        return 0.5 * (1 - math.cos(math.pi * progress))
    return 1.0


def dag_losses(deductive: Sequence[DeductiveOutputs], names: Sequence[str] = DAG_TENSORS) -> dict[str, Tensor]:
    """ℓ of A_LM, A_P and G_LM (arXiv:2410.16703), each averaged over layers, sequences and heads: scalars in float32.

    Args:
        deductive: of each layer, with the tensors named.
        names: which.
    """
    return {name: torch.stack([dag_loss(getattr(layer, name)).mean() for layer in deductive]).mean() for name in names}


class Penalties:
    """The penalties of a run, step by step.

    Attributes:
        boost: factor on the DAG coefficients that the guard of cycles has raised; part of a checkpoint.
    """

    def __init__(self, settings: ObjectiveSettings, steps: int) -> None:
        self.settings, self.steps = settings, steps
        self.boost = 1.0

    @property
    def needs_deductive(self) -> bool:
        """Whether the forward pass must return the deductive outputs."""
        return any(self._base().values())

    @property
    def alignment_blocks(self) -> int | None:
        """Into how many blocks the forward pass must cut each sequence; None: into none."""
        return self.settings.alignment.blocks if self.settings.alignment.coefficient else None

    def coefficients(self, step: int) -> dict[str, float]:
        """DAG coefficient of each tensor at a step 0, 1, ..."""
        share = rise(self.settings.dag, step, self.steps) * self.boost
        return {name: base * share for name, base in self._base().items()}

    def raise_coefficients(self, factor: float, cap: float) -> bool:
        """Multiply the DAG coefficients by ``factor``, as far as the largest stays below ``cap``; whether any rose."""
        largest = max(self._base().values())
        raised = min(self.boost * factor, cap / largest) if largest else self.boost
        rose = raised > self.boost
        self.boost = max(self.boost, raised)
        return rose

    def parts(
        self, step: int, deductive: Sequence[DeductiveOutputs] | None, alignment: Sequence[Tensor] | None
    ) -> tuple[Tensor | float, dict[str, Tensor]]:
        """What to add to the loss, and the value of each part of it without its coefficient.

        Args:
            step: 0, 1, ...
            deductive: of each layer; None where :attr:`needs_deductive` is False.
            alignment: relative difference of each layer, scalars; None where :attr:`alignment_blocks` is.

        Returns:
            The weighted sum, and ``dag_metric``, ``dag_potential``, ``dag_curvature``, ``alignment`` as far as they
            have a coefficient.
        """
        total: Tensor | float = 0.0
        values: dict[str, Tensor] = {}
        if deductive is not None:
            weights = self.coefficients(step)
            for name, value in dag_losses(deductive, [n for n, base in self._base().items() if base]).items():
                total = total + weights[name] * value
                values[f"dag_{name}"] = value
        if alignment is not None:
            values["alignment"] = torch.stack(list(alignment)).mean()
            total = total + self.settings.alignment.coefficient * values["alignment"]
        return total, values

    def _base(self) -> dict[str, float]:
        dag = self.settings.dag
        return {name: getattr(dag, name) for name in DAG_TENSORS}
