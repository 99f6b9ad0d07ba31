"""The published training recipe as plain data (arXiv:2410.16703; arXiv:2603.23539)."""

import math
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from plga.training.settings import Settings

_Positive = Annotated[int, Field(ge=1)]
_Rate = Annotated[float, Field(ge=0, lt=1)]


class Recipe(Settings):
    """AdamW, linear warmup to ``learning_rate``, then cosine to a tenth of it; gradients clipped by value.

    Args:
        learning_rate: maximum, reached at the end of the warmup.
        warmup: steps; below 1 (but not 0), a share of ``steps``.
        steps: of warmup and cosine together, the schedule's length.
        stop: step after which training ends, <= steps; None: the last.
        batch: sequences a step, over all processes and all accumulated parts.
        accumulate: parts that a process computes one after another before it steps.
        betas, eps, weight_decay: of AdamW.
        clip: ``value`` (published: every entry of the gradient), ``norm`` (of the whole gradient).
        clip_at: the bound.
        precision: ``float32``, or ``bf16`` autocast; the deductive branch is float32 in both.
        checkpointing: recompute in the backward pass, to spare memory: the metric ``learner``, whole ``layers``.
        compile: run the model through torch.compile.
        seed: of the initialization and of the data order.
    """

    learning_rate: float = Field(1e-3, gt=0)
    warmup: float = Field(2000, ge=0)
    steps: _Positive = 250_000
    stop: _Positive | None = None
    batch: _Positive = 32
    accumulate: _Positive = 1
    betas: tuple[_Rate, _Rate] = (0.9, 0.95)
    eps: float = Field(1e-5, gt=0)
    weight_decay: float = Field(0.1, ge=0)
    clip: Literal["value", "norm"] = "value"
    clip_at: float = Field(1.0, gt=0)
    precision: Literal["float32", "bf16"] = "float32"
    checkpointing: Literal["none", "learner", "layers"] = "none"
    compile: bool = False
    seed: int = Field(0, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.warmup >= 1 and not self.warmup.is_integer():
            raise ValueError(f"warmup is {self.warmup}, expected whole steps, or a share of the steps below 1")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup is {self.warmup:g}, expected fewer than steps = {self.steps}")
        if self.last > self.steps:
            raise ValueError(f"stop is {self.stop}, expected <= steps = {self.steps}")
        return self

    @property
    def warmup_steps(self) -> int:
        """Warmup in steps."""
        return round(self.warmup if self.warmup >= 1 else self.warmup * self.steps)

    @property
    def last(self) -> int:
        """Step after which training ends."""
        return self.steps if self.stop is None else self.stop

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of step 0, 1, ..."""
        warmup = self.warmup_steps
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        progress = (step - warmup) / (self.steps - warmup)
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW over every parameter that takes a gradient, as published: biases and LayerNorms decay too."""
        return torch.optim.AdamW(
            (p for p in model.parameters() if p.requires_grad),
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )
