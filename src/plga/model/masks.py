"""The causal mask of some tokens behind others, without an entry for each pair of them.

Row i of n new tokens behind p others sees the columns up to p + i. With the rows in reverse order that is a question of
row + column alone, so a vector of p + 2n - 1 entries, read with a stride of one along both axes, is the whole mask. The
one that Transformers makes has n (p + n) entries, more than the keys and values where n is large.
"""

from typing import Any

import torch
from torch import Tensor

from plga.model.cache import PldrCache
from plga.model.configuration import PldrConfig


def runs_reversed(
    config: PldrConfig, cache: Any, attention_mask: Tensor | None, past: Any, inputs_embeds: Tensor
) -> bool:
    """Whether a pass may put its queries in reverse order and use :func:`reversed_causal_mask`.

    Not on accelerators, whose kernels want masks laid out in their own way; a look at the mask would wait for them too.
    """
    return (
        inputs_embeds.shape[1] > 1  # asked for first: a generated token ends it here
        and config.operator == "constant"
        and config._attn_implementation == "sdpa"
        and isinstance(cache, PldrCache)
        and past > 0
        and inputs_embeds.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and (attention_mask is None or (attention_mask.dim() == 2 and bool(attention_mask.all())))
    )


def reversed_causal_mask(new: int, past: int, like: Tensor) -> Tensor:
    """[1, 1, n, p + n], a view of p + 2n - 1 numbers: 0 where row n - 1 - i sees a column, minus infinity elsewhere.

    Args:
        new, past: n and p.
        like: gives dtype and device.
    """
    total = past + new
    line = like.new_zeros(total + new - 1)
    line[total:] = -torch.inf
    return line.as_strided((1, 1, new, total), (0, 0, 1, 1))
