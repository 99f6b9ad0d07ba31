"""What stays when a prefix is read again with one token more: weights, and rows of the first layer before G_LM.

Queries, keys and values of the first layer are functions of one token and its position each. From the second layer on
every row depends on G_LM, so on the token that was added.
"""

from collections import defaultdict

import torch
from torch import Tensor, nn

from plga.model.growing import Growing
from plga.model.inference import KeptWeights


class FirstRows:
    """Rotated queries and keys, and values, that the first layer computed from the prefix of a ``recompute`` cache.

    They stay good as long as tokens are added to that prefix and nothing else happens to it; otherwise, and where
    gradients or autocast or a hook want every row computed, they are computed anew.
    """

    def __init__(self) -> None:
        self.prefix: Tensor | None = None
        self.forget()

    def forget(self) -> None:
        """Keep nothing."""
        self.kept: tuple[Tensor, ...] = (torch.empty(0),) * 3
        self._growing = (Growing(), Growing(), Growing())
        self.length = 0

    def follow(self, before: Tensor | None, prefix: Tensor) -> None:
        """The prefix [B, 1, S, d_model] has grown out of ``before``: rows that were not computed from that one go."""
        if before is not self.prefix or before is None or self.length != before.shape[-2]:
            self.forget()
        self.prefix = prefix

    def usable(self, projections: tuple[nn.Module, ...]) -> bool:
        """Whether rows may be left out of these projections; if not, nothing is kept of them either."""
        if (
            torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch.is_autocast_enabled("cpu")
            or torch.is_autocast_enabled("cuda")
            or any(p._forward_hooks or p._forward_pre_hooks for p in projections)
        ):
            self.forget()
            return False
        return True

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of all rows, from those of the rows that are not kept yet; each [B, H, S, d]."""
        self.kept = tuple(
            growing.append(kept, rows) for growing, kept, rows in zip(self._growing, self.kept, new, strict=True)
        )
        self.length = self.kept[0].shape[-2]
        return self.kept


class RecomputeSteps:
    """What the steps of one ``recompute`` cache share: rows of the first layer, and weights of each metric learner."""

    def __init__(self) -> None:
        self.rows = FirstRows()
        self.learners: defaultdict[int, KeptWeights] = defaultdict(KeptWeights)  # by layer
