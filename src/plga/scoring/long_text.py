"""Scores of a text that is too long for one pass: block after block over a cache of keys and values."""

import torch
from torch import Tensor, nn

from plga.model.cache import PldrCache
from plga.model.modeling import PldrForCausalLM


@torch.no_grad()
def log_probabilities(model: PldrForCausalLM, input_ids: Tensor, block: int = 512) -> Tensor:
    """Log-probability of every token but the first, given all before it, in nats.

    With a constant operator a model is prefix-consistent, so reading block after block is one pass over the whole text,
    for any size of a block. Beside keys, values and the scores memory depends on the block and not on the text (on a
    CPU; elsewhere a block has a mask of [block, text]).

    Args:
        model: with a constant operator; run as it is, so in evaluation mode to be a function of the text.
        input_ids: [B, S], S >= 2, none of it padding.
        block: tokens a pass, >= 1.

    Returns:
        [B, S - 1], float32 or wider: entry t is that of token t + 1.

    Raises:
        ValueError: a learned operator, a text of another shape, too short or beyond the context, a block below 1.
    """
    context = model.config.max_position_embeddings
    if model.config.operator != "constant":
        raise ValueError(
            "the operator of this model is learned, expected a constant one: each new token changes every row before "
            "it, so no block can be kept; collapse it first (plga collapse, or plga.collapse.freeze.freeze_on)"
        )
    if input_ids.dim() != 2 or not 2 <= input_ids.shape[1] <= context:
        raise ValueError(
            f"input_ids is {tuple(input_ids.shape)}, expected [B, S] with S from 2 to the context of {context}"
        )
    if block < 1:
        raise ValueError(f"block is {block}, expected >= 1 tokens")
    cache = PldrCache(model.config, room=input_ids.shape[1] - 1)
    scores = torch.empty(
        input_ids.shape[0],
        input_ids.shape[1] - 1,
        dtype=torch.promote_types(model.dtype, torch.float32),
        device=input_ids.device,
    )
    parts = (tensor.split(block, dim=1) for tensor in (input_ids[:, :-1], input_ids[:, 1:], scores))
    for ids, targets, part in zip(*parts, strict=True):
        logits = model(ids, cache=cache, use_cache=True).logits
        part.copy_(-nn.functional.cross_entropy(logits.to(scores.dtype).mT, targets, reduction="none"))
    return scores
