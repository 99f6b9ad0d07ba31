"""The operators that an adopted attention layer can have; each begins at G = I exactly."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import initialization as init

from plga.adopt.settings import OperatorSettings
from plga.model.configuration import PldrConfig
from plga.model.initialization import initialize
from plga.model.operator import LearnedOperator


class AdoptedOperator(nn.Module, ABC):
    """What acts on the rotated queries of one layer, a head each: q' = q G.

    Args:
        heads: H, query heads.
        width: d, of a query.

    Attributes:
        watching: hooks of its attention module that are there for it.
    """

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.watching: list[RemovableHandle] = []

    @abstractmethod
    def forward(self, query: Tensor, attention_mask: Any) -> Tensor:
        """q' = q G.

        Args:
            query: rotated, [B, H, S, d].
            attention_mask: as the attention kernel gets it.

        Returns:
            [B, H, S, d], in the dtype of ``query``.
        """

    @abstractmethod
    def start(self) -> None:
        """Set G to I, and draw what else there is; Transformers' ``init`` passes over what a checkpoint filled."""

    @abstractmethod
    def matrix(self) -> Tensor:
        """G, [H, d, d], where it is one for all inputs.

        Raises:
            ValueError: the operator is learned.
        """


class ConstantOperator(AdoptedOperator):
    """One learned matrix a head; ``curvature`` is [H, d, d]."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__(heads, width)
        self.curvature = nn.Parameter(torch.empty(heads, width, width))

    def forward(self, query: Tensor, attention_mask: Any) -> Tensor:
        return _headwise(query, self.curvature.to(query.dtype))

    def start(self) -> None:
        init.copy_(self.curvature, torch.eye(self.width).expand_as(self.curvature))

    def matrix(self) -> Tensor:
        return self.curvature


class LowRankOperator(AdoptedOperator):
    """I + U Vᵀ a head, as q + (q U) Vᵀ; ``left`` U and ``right`` V are [H, d, r]. U begins at 0, V at N(0, 1/d)."""

    def __init__(self, heads: int, width: int, rank: int) -> None:
        super().__init__(heads, width)
        self.left = nn.Parameter(torch.empty(heads, width, rank))
        self.right = nn.Parameter(torch.empty(heads, width, rank))

    def forward(self, query: Tensor, attention_mask: Any) -> Tensor:
        inner = _headwise(query, self.left.to(query.dtype))
        return query + _headwise(inner, self.right.to(query.dtype).mT)

    def start(self) -> None:
        init.zeros_(self.left)
        init.normal_(self.right, mean=0.0, std=self.width**-0.5)

    def matrix(self) -> Tensor:
        identity = torch.eye(self.width, dtype=self.left.dtype, device=self.left.device)
        return identity + self.left @ self.right.mT


class GeneratedOperator(AdoptedOperator):
    """The full PLGA generator: G_LM built from the queries of each sequence, with a = 0 and b_a = I at the start.

    A call without a cache builds G from all its tokens: the online contract, if it is given a whole prefix. With a
    cache G is built from the first call, the prompt, and kept with the cache for its sequences (the published
    G-cache); see :mod:`plga.adopt.kept`, which sets ``cache`` by the hooks ``watching``.
    """

    def __init__(self, heads: int, width: int, index: int, settings: OperatorSettings) -> None:
        super().__init__(heads, width)
        config = PldrConfig(
            hidden_size=heads * width,
            num_attention_heads=heads,
            metric_intermediate_size=settings.metric_intermediate_size or 8 * width // 3,
            num_metric_units=settings.metric_units,
            num_metric_blocks=settings.metric_blocks,
        )
        self.generator = LearnedOperator(config, index)
        self.cache: Any = None

    def forward(self, query: Tensor, attention_mask: Any) -> Tensor:
        real = None if self.has_kept() else real_tokens(attention_mask)
        curvature = self.generator(query, real, self.cache).curvature
        return query @ curvature.to(query.dtype)

    def has_kept(self) -> bool:
        """Whether the cache of this call has a G of its prompt already."""
        return self.cache is not None and self.cache.curvature(self.generator.layer_idx) is not None

    def start(self) -> None:
        for module in self.generator.modules():
            initialize(module, _PUBLISHED)
        init.zeros_(self.generator.coupling_weight)
        init.copy_(self.generator.coupling_bias, torch.eye(self.width).expand_as(self.generator.coupling_bias))

    def matrix(self) -> Tensor:
        raise ValueError("the operator of this model is learned: it has no one matrix for all inputs")


# The laws of the published trainings.
_PUBLISHED = PldrConfig()


def make(settings: OperatorSettings, heads: int, width: int, index: int) -> AdoptedOperator:
    """The operator of layer ``index``; its tensors are not yet set.

    Raises:
        ValueError: more columns of U and V than a head is wide.
    """
    if settings.kind == "constant":
        return ConstantOperator(heads, width)
    if settings.kind == "low_rank":
        if settings.rank > width:
            raise ValueError(f"rank is {settings.rank}, expected at most {width}, the width of a head")
        return LowRankOperator(heads, width, settings.rank)
    return GeneratedOperator(heads, width, index, settings)


def real_tokens(attention_mask: Any) -> Tensor | None:
    """Which tokens of a call that begins a sequence are real, read off the mask of its attention kernel.

    A causal mask of any window lets each real token see itself, and nobody see a padded one: the diagonal tells.

    Args:
        attention_mask: None (all real), [B, T] of the flash kernels, or [B, 1, S, T] of the others, T >= S: bool, True
            where a query may look, or floating, added to the scores.

    Returns:
        [B, S] bool, or None: all are real.

    Raises:
        ValueError: a block mask of the kernel ``flex_attention``, from which padding cannot be read.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor):
        raise ValueError(
            f"the attention mask is a {type(attention_mask).__name__}, but a learned operator has to know which tokens "
            "are padding; expected attn_implementation 'sdpa', 'eager' or a flash kernel"
        )
    if attention_mask.dim() == 2:
        return attention_mask.bool()
    diagonal = attention_mask[:, 0].diagonal(dim1=-2, dim2=-1)
    if diagonal.dtype == torch.bool:
        return diagonal
    # What is masked is the smallest number of the dtype, or -inf.
    return diagonal > torch.finfo(diagonal.dtype).min


def _headwise(x: Tensor, matrix: Tensor) -> Tensor:
    """x M a head: [B, H, S, d] and [H, d, e] → [B, H, S, e]."""
    if x.shape[0] == 1:
        return torch.bmm(x[0], matrix).unsqueeze(0)
    # Heads first: matmul would copy the matrices for each sequence.
    rows = x.transpose(0, 1)
    return torch.bmm(rows.flatten(1, 2), matrix).unflatten(1, rows.shape[1:3]).transpose(0, 1)
