"""Texts that are longer than the context, in windows that overlap.

Convention: a window is W + 1 tokens, W the context, of which the last is only a target. The first window scores all but
its first token. Each later one ends ``stride`` tokens further, or where the text ends, and scores what no window before
it did, so that every token is scored once and, past the first window, has at least W + 1 - stride tokens before it. A
stride of W is the rolling of lm-evaluation-harness. Block: the operator of a window is built from the whole window.
Sequential: that of a token from the window up to it, whose beginning is as far back as the model sees.
"""

from collections.abc import Sequence

from plga.scoring.items import Item, text_item


def windows(ids: Sequence[int], context: int, stride: int | None, name: str) -> list[Item]:
    """A text as the items of its windows; see the head of this file.

    Args:
        ids: token ids, at least 2.
        context: W, of the model.
        stride: tokens that a window scores past the first one, 1 to W; None: half of W, rounded up.
        name: of the text.

    Raises:
        ValueError: fewer than two tokens, or a stride outside 1 to W.
    """
    stride = (context + 1) // 2 if stride is None else stride
    if not 1 <= stride <= context:
        raise ValueError(f"stride is {stride}, expected from 1 to the context of {context}")
    scored = min(len(ids), context + 1)
    items = [text_item(ids[:scored], name)]
    while scored < len(ids):
        end = min(scored + stride, len(ids))
        items.append(
            Item(tuple(ids[end - context - 1 : scored]), tuple(ids[scored:end]), f"{name} from token {scored}")
        )
        scored = end
    return items
