"""What a PLDR-LLM is given, looked at before anything is computed from it."""

from typing import Any

import torch
from torch import Tensor

from plga.model.cache import PldrCache
from plga.model.configuration import PldrConfig, require_mode


def require_tokens(input_ids: Tensor, vocab_size: int) -> None:
    """Raise ValueError on no token or one outside the vocabulary; on the CPU alone."""
    if input_ids.shape[-1] == 0 and input_ids.device.type == "cpu" and not torch.compiler.is_compiling():
        raise ValueError(f"input_ids is {tuple(input_ids.shape)}, expected at least one token")
    require_in_vocabulary(input_ids, vocab_size)


def require_in_vocabulary(ids: Tensor, vocab_size: int) -> None:
    """Raise ValueError on an id below 0 or not below ``vocab_size``, where ``ids`` of any shape are on the CPU.

    On an accelerator a look at the numbers would wait for it, and it stops by itself.
    """
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if not ids.numel():
        return
    # One pass where nothing is wrong, and none over one token.
    least, largest = (int(x) for x in ids.aminmax()) if ids.numel() > 1 else (int(ids),) * 2
    if least < 0 or largest >= vocab_size:
        outside = ids[(ids < 0) | (ids >= vocab_size)]
        raise ValueError(f"token id {int(outside[0])} is outside the vocabulary of {vocab_size} pieces")


def require_fit(config: PldrConfig, cache: Any, attention_mask: Tensor | None) -> None:
    """Raise ValueError on a cache or a mask that the operator of this model cannot work with."""
    learned = config.operator == "learned"
    if learned and cache is not None and not isinstance(cache, PldrCache):
        raise ValueError(
            f"cache is {type(cache).__name__}, expected PldrCache: G_LM of a learned operator depends on the "
            "input and must be rebuilt or kept with the keys and values"
        )
    if isinstance(cache, PldrCache):
        require_mode(config, cache.mode, f"cache is in mode {cache.mode!r}")
    if learned and attention_mask is not None and attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask is {tuple(attention_mask.shape)}, expected [B, S]: a learned operator must know "
            "which tokens are real"
        )


def require_blocks(config: PldrConfig, blocks: int, tokens: int, attention_mask: Tensor | None, past: Any) -> None:
    """Raise ValueError unless every sequence of this pass is whole and long enough for so many blocks."""
    if config.operator != "learned":
        raise ValueError(f"alignment_blocks is {blocks}, but the operator of this model is constant: every G_LM is one")
    if config.gram != "global":
        raise ValueError(f"alignment_blocks is {blocks}, but a chunked Gram gives a sequence no one G_LM")
    if past:
        raise ValueError(f"alignment_blocks is {blocks}, but the cache holds {past} tokens: expected whole sequences")
    if attention_mask is not None and not torch.compiler.is_compiling():
        tokens = int(attention_mask.bool().sum(dim=-1).min())
    if not 2 <= blocks <= tokens:
        raise ValueError(f"alignment_blocks is {blocks}, expected from 2 to the {tokens} tokens of each sequence")


def real_positions(attention_mask: Tensor | None, past: int, new: int, device: torch.device) -> Tensor:
    """Positions [B or 1, S] counted over real tokens, so that padding on either side changes nothing."""
    if attention_mask is None or attention_mask.dim() != 2:
        return (torch.arange(new, device=device) + past).unsqueeze(0)
    positions = attention_mask.bool().cumsum(dim=-1) - 1
    return positions.clamp(min=0)[:, -new:]


def real_tokens(attention_mask: Tensor | None, past: int) -> Tensor | None:
    """True at the real tokens of this pass, [B, S]; None: all are real, as far as that can be told without waiting."""
    if attention_mask is None:
        return None
    mask = attention_mask[:, past:].bool()
    if mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(mask.all()):
        return None  # a pass over the mask once, and not over the queries in every layer
    return mask
