"""Attention implementations ``plga_<kernel>``: q G before whatever kernel was selected.

Transformers looks an implementation up by name, twice: for the function and for the mask that it wants. Each kernel
has a second name here, with the same mask, whose function lets the layer's operator act on the rotated queries first.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PREFIX = "plga_"
OPERATOR = "operator"  # the attribute of an attention module
REACHED = "plga_reached"  # another: the implementation by which a pass last came to its operator


class Kernel(str):
    """The name ``plga_<kernel>`` that says it is ``<kernel>`` where a model asks which one it runs on.

    Sparse attention of DeepSeek V3.2 and its like hides what was not selected by a mask if its kernel is called eager
    or sdpa, and expects any other to do it.
    """

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or str.__eq__(self.rpartition(PREFIX)[2], other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__  # of the whole name: tables of kernels find the one with operators


@functools.cache
def asks_for_names(module: str) -> bool:
    """Whether the code of a module compares the name of its kernel.

    Only such a model has a :class:`Kernel`: ``torch.compile`` breaks its graph at each, and not at a plain string.
    """
    return (
        re.search(r"_attn_implementation\s*(==|!=|in\b|not in\b)", inspect.getsource(sys.modules[module])) is not None
    )


def with_operators(kernel: str, module: str) -> str:
    """The implementation ``plga_<kernel>`` for models of a module, registered with Transformers.

    Raises:
        ValueError: Transformers knows no such kernel.
    """
    name = PREFIX + kernel
    attend = kernel_function(kernel)

    def bent(module: nn.Module, query: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        operator = getattr(module, OPERATOR, None)
        if operator is not None:
            setattr(module, REACHED, name)
            mask = args[2] if len(args) > 2 else kwargs.get("attention_mask")
            query = operator(query, mask)
        return attend(module, query, *args, **kwargs)

    register(name, kernel, bent)
    return Kernel(name) if asks_for_names(module) else name


def require_reached(attention: nn.Module) -> RemovableHandle:
    """Stop passes in which an attention module leaves its operator out, until the handle is removed.

    An implementation without operators, set past the model, does that; and so does GPT-2 on ``eager`` with
    ``reorder_and_upcast_attn``, which may have been adopted on ``sdpa``.
    """
    return attention.register_forward_hook(_require_reached)


def _require_reached(attention: Any, args: Any, output: Any) -> None:
    # That this very pass has set it cannot be asked: threads that run one model would take it from each other.
    if getattr(attention, REACHED, "") != attention.config._attn_implementation:
        raise ValueError(
            f"{type(attention).__name__} went past its operator, expected a kernel and settings on which the model can "
            "be adopted, and kernels to be chosen by model.set_attn_implementation"
        )


def register(name: str, kernel: str, function: Callable[..., Any]) -> None:
    """Give Transformers the function ``name``, with the mask of ``kernel``."""
    ALL_ATTENTION_FUNCTIONS.register(name, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[kernel])


@contextmanager
def watched(model: nn.Module, look: Callable[..., None]) -> Iterator[None]:
    """Run the plain kernel in each attention layer, no operator before it, and let ``look`` see the calls first.

    Args:
        look: gets what the kernel gets: module, query [B, H, S, d], key, value, and so on.
    """
    configs = [(config, config._attn_implementation) for config in attention_configs(model)]
    names = []
    try:
        for config, kernel in configs:
            plain = kernel.removeprefix(PREFIX)
            attend = kernel_function(plain)

            def both(module: Any, *args: Any, attend: Any = attend, **kwargs: Any) -> Any:
                if hasattr(module, OPERATOR):
                    setattr(module, REACHED, str(module.config._attn_implementation))
                look(module, *args, **kwargs)
                return attend(module, *args, **kwargs)

            watching = Kernel(f"{PREFIX}{id(config)}_{PREFIX}{plain}")
            names.append(str(watching))
            register(names[-1], plain, both)
            config._attn_implementation = watching
        yield
    finally:
        for config, kernel in configs:
            config._attn_implementation = kernel
        for name in names:
            forget(name)


def attention_configs(model: nn.Module) -> list[Any]:
    """Configurations that attention modules may look their kernel up in, each once."""
    found = {id(m.config): m.config for m in model.modules() if getattr(m, "config", None) is not None}
    return [config for config in found.values() if getattr(config, "_attn_implementation", None) is not None]


def forget(name: str) -> None:
    """Take an implementation back."""
    ALL_ATTENTION_FUNCTIONS._global_mapping.pop(name, None)
    ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop(name, None)


def kernel_function(kernel: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function of a kernel; ``eager`` is each model's own, beside its attention module.

    Raises:
        ValueError: Transformers knows no such kernel.
    """
    if kernel == "eager":
        return _eager
    if kernel not in ALL_ATTENTION_FUNCTIONS or kernel not in ALL_MASK_ATTENTION_FUNCTIONS:
        raise ValueError(
            f"attn_implementation is {kernel!r}, which is not registered with Transformers' AttentionInterface and "
            f"AttentionMaskInterface; expected one of eager, {', '.join(plain_kernels())}"
        )
    function: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS[kernel]
    return function


def plain_kernels() -> list[str]:
    """Kernels that Transformers knows, without those of this file."""
    return sorted(k for k in ALL_ATTENTION_FUNCTIONS if not k.startswith(PREFIX) and k in ALL_MASK_ATTENTION_FUNCTIONS)


def _eager(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    home = sys.modules[type(module).__module__]
    return home.eager_attention_forward(module, *args, **kwargs)
