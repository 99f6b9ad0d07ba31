"""The published training recipe as plain data (arXiv:2410.16703; arXiv:2603.23539)."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Recipe:
    """AdamW, linear warmup to ``learning_rate``, then cosine to a tenth of it; gradients clipped by value.

    Args:
        learning_rate: maximum, reached at the end of the warmup.
        warmup: steps.
        steps: of warmup and cosine together, the schedule's length.
        stop: step after which training ends, <= steps.
        batch: sequences a step.
        clip: bound on every entry of the gradient.
    """

    learning_rate: float
    warmup: int
    steps: int
    stop: int
    batch: int = 16
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-5
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning rate is {self.learning_rate}, expected a finite number > 0")
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup is {self.warmup}, expected 0 <= warmup < steps = {self.steps}")
        if not 1 <= self.stop <= self.steps:
            raise ValueError(f"stop is {self.stop}, expected 1 <= stop <= steps = {self.steps}")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}, expected >= 1")
        if not self.clip > 0:
            raise ValueError(f"clip is {self.clip}, expected > 0")

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of step 0, 1, ..."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / (self.steps - self.warmup)
        return self.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW over every parameter, as published: biases and LayerNorms decay too."""
        return torch.optim.AdamW(
            model.parameters(),
            lr=self.learning_rate,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )
