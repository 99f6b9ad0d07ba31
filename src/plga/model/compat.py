"""The one place that knows which Transformers is installed.

The newest Transformers calls the cache of a model ``cache``; before, it was ``past_key_values``, in arguments, in mask
helpers and in outputs. Our code says ``cache``; whoever calls us may say either.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE_NAME = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
_OTHER_NAMES = ("past_key_values",)
assert CACHE_NAME in BaseModelOutputWithPast.__dataclass_fields__


def accepts_either_cache_name(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a ``forward(..., cache=...)`` be called with the older name of that argument too."""

    @functools.wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        for name in _OTHER_NAMES:
            if name in kwargs:
                value = kwargs.pop(name)
                kwargs["cache"] = value if kwargs.get("cache") is None else kwargs["cache"]
        return forward(*args, **kwargs)

    return renamed


def update_cache(
    cache: Any, key: Tensor, value: Tensor, layer_idx: int, kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Keys and values of the past and the present; ``kwargs`` are those of the attention call to come."""
    if CACHE_NAME != "cache" and not isinstance(cache, Cache):
        # The paged cache of continuous batching, which attention functions then updated themselves.
        kwargs["cache"] = cache
        return key, value
    return cache.update(key, value, layer_idx, kwargs=kwargs)
