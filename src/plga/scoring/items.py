"""What is scored: candidate tokens after a context, checked before anything is computed from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from plga.model.configuration import PldrConfig


@dataclass(frozen=True)
class Item:
    """Tokens to be scored, after those that are given.

    Attributes:
        context: token ids, at least one.
        candidate: token ids, at least one, at most the context of the model.
        name: what an error message calls it.
    """

    context: tuple[int, ...]
    candidate: tuple[int, ...]
    name: str


class Row(NamedTuple):
    """Tokens of an item that fit the model.

    Attributes:
        ids: the end of its context and its candidate; the model reads all but the last.
        first: index of the first candidate token in ``ids``, at least 1.
        truncated: how many tokens were cut off the beginning of its context.
    """

    ids: tuple[int, ...]
    first: int
    truncated: int


def text_item(ids: Sequence[int], name: str) -> Item:
    """A text as an item: all tokens but the first are scored."""
    if len(ids) < 2:
        raise ValueError(f"{name}: {len(ids)} tokens, expected at least 2: the first has no score")
    return Item(tuple(ids[:1]), tuple(ids[1:]), name)


def batch_items(input_ids: Tensor, attention_mask: Tensor) -> list[Item]:
    """The rows of a padded batch as texts, padded on whichever side.

    Args:
        input_ids: [B, S].
        attention_mask: [B, S], 1 at real tokens.

    Raises:
        ValueError: shapes that differ, a row of padding alone, or one with a single real token.
    """
    if input_ids.dim() != 2 or input_ids.shape != attention_mask.shape:
        raise ValueError(
            f"input_ids is {tuple(input_ids.shape)} and attention_mask {tuple(attention_mask.shape)}, expected [B, S]"
        )
    items = []
    for number, (ids, mask) in enumerate(zip(input_ids, attention_mask.bool(), strict=True)):
        if not bool(mask.any()):
            raise ValueError(f"row {number} of attention_mask is all padding, expected at least 2 real tokens")
        items.append(text_item(ids[mask].tolist(), f"row {number}"))
    return items


def fit(items: Sequence[Item], config: PldrConfig) -> list[Row]:
    """Each item as the model reads it; of a context that is too long, the end.

    The last candidate token is only a target, so a model with a context of W tokens takes W + 1, as in
    lm-evaluation-harness.

    Raises:
        ValueError: no context, no candidate, a candidate longer than the context of the model, or a token outside the
            vocabulary; the item is named.
    """
    return [_fit(item, config.max_position_embeddings, config.vocab_size) for item in items]


def _fit(item: Item, width: int, vocabulary: int) -> Row:
    if not item.candidate:
        raise ValueError(f"{item.name}: the candidate is empty, expected at least one token")
    if not item.context:
        raise ValueError(f"{item.name}: the context is empty, expected at least one token before the candidate")
    if len(item.candidate) > width:
        raise ValueError(
            f"{item.name}: the candidate has {len(item.candidate)} tokens, expected at most the context of {width}"
        )
    for token in (*item.context, *item.candidate):
        if not 0 <= token < vocabulary:
            raise ValueError(f"{item.name}: token id {token} is outside the vocabulary of {vocabulary} pieces")
    ids = (*item.context, *item.candidate)[-(width + 1) :]
    truncated = len(item.context) + len(item.candidate) - len(ids)
    return Row(ids, len(item.context) - truncated, truncated)
