"""Operators kept from a prompt beside its keys and values (the published G-cache, arXiv:2502.13502), in any cache.

An attention layer hands its cache to no attention function, so a hook takes it from the layer's arguments. The cache
becomes an instance of a subclass of its own class that keeps the operators and reorders them with its rows.
"""

import functools
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache

from plga.adopt.operators import GeneratedOperator
from plga.adopt.pickles import by_base

if TYPE_CHECKING:
    from transformers.cache_utils import Cache as _Base  # or whatever class of cache comes behind it
else:
    _Base = object


class KeepsOperators(_Base):
    """What a cache that keeps operators adds to its class; ``operators`` are [B, H, d, d] by layer."""

    operators: dict[int, Tensor]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        made: Any = super().__reduce_ex__(protocol)
        return by_base(made, _keeping, type(self).__mro__[2])

    def curvature(self, index: int) -> Tensor | None:
        """G_LM that layer ``index`` kept, or None before the prompt."""
        return self.operators.get(index)

    def keep_curvature(self, curvature: Tensor, index: int) -> None:
        """Keep G_LM for the sequences of this cache."""
        self.operators[index] = curvature

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._map(lambda g: g.index_select(0, beam_idx.to(g.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._map(lambda g: g.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._map(lambda g: g[indices])

    def crop(self, *args: Any, **kwargs: Any) -> None:
        super().crop(*args, **kwargs)
        if self.get_seq_length() == 0:
            self.operators.clear()

    def reset(self) -> None:
        super().reset()
        self.operators.clear()

    def _map(self, function: Any) -> None:
        self.operators = {index: function(g) for index, g in self.operators.items()}


@functools.cache
def _keeping(kind: Any) -> Any:
    return type(kind.__name__, (KeepsOperators, kind), {"__module__": __name__})


def watch(attention: nn.Module) -> list[RemovableHandle]:
    """Let the operator of an attention module know the cache of each call, until the handles are removed."""
    return [
        attention.register_forward_pre_hook(_before, with_kwargs=True),
        attention.register_forward_hook(_after, always_call=True),
    ]


def _before(attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    cache = next((v for v in (*args, *kwargs.values()) if isinstance(v, Cache)), None)
    if cache is not None and not isinstance(cache, KeepsOperators):
        # Zamba's attention is shared between layers: each call says which one it is.
        index = kwargs.get("layer_idx", getattr(attention, "layer_idx", None))
        if cache.get_seq_length(index or 0) > 0:
            raise ValueError(
                "the cache holds tokens but no operator of theirs, expected one that this adopted model filled: a "
                "learned operator is built from the queries of the prompt, which a cache does not keep"
            )
        cache.__class__ = _keeping(cache.__class__)
        cache.operators = {}
    for operator in _operators(attention):
        operator.cache = cache


def _after(attention: nn.Module, args: Any, output: Any) -> None:
    for operator in _operators(attention):
        operator.cache = None


def _operators(attention: nn.Module) -> list[GeneratedOperator]:
    """The operator, or what PEFT's ``modules_to_save`` holds in its place: it as it was, and a copy that is trained."""
    operator = attention.operator
    if isinstance(operator, GeneratedOperator):
        return [operator]
    return [module for module in attention.modules() if isinstance(module, GeneratedOperator)]
