"""From documents to windows of tokens."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from plga.training.data.documents import Document, Place
from plga.training.data.encoding import Encoder, Ids, cut, full


class Piece(NamedTuple):
    """Tokens of a document, as many as were encoded at once.

    Attributes:
        ids: the last piece ends in the end-of-sequence token.
        place: of the document.
        first: index of the first token among those of the document.
        last: whether the document ends here.
    """

    ids: Ids
    place: Place
    first: int
    last: bool


class Window(NamedTuple):
    """Up to ``context + 1`` tokens, and where the next window begins: at which token of which document."""

    ids: Ids
    place: Place
    token: int


def pieces(documents: Iterable[Document], encode: Encoder, end: int) -> Iterator[Piece]:
    """The tokens of the documents. A document without a token of its own has no piece.

    Args:
        documents: encoded many at once.
        encode: the tokenizer.
        end: the end-of-sequence token.
    """
    first = 0
    for batch in _batches(documents):
        for (_, place, last), ids in zip(batch, encode([text for text, _, _ in batch]), strict=True):
            count = first + len(ids)
            if count and (last or len(ids)):
                yield Piece(np.append(ids, np.int32(end)) if last else ids, place, first, last)
            first = 0 if last else count


def _batches(documents: Iterable[Document]) -> Iterator[list[tuple[str, Place, bool]]]:
    batch: list[tuple[str, Place, bool]] = []
    size = 0
    for text, place in documents:
        for part, last in cut(text):
            batch.append((part, place, last))
            size += len(part)
            if full(len(batch), size):
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def windows(pieces: Iterable[Piece], context: int, padded: bool = False, skip: int = 0) -> Iterator[Window]:
    """Windows in the order of the corpus, each beginning with the last token of the one before.

    So every token is an input once, and every token but the first is a target once: the first of all, or where
    windows are padded the first of each document, whose last one is a target only.

    Args:
        pieces: of the documents.
        context: S; windows have S + 1 tokens.
        padded: no window reaches across documents; the last one of each is shorter.
        skip: tokens of the first document to leave out.
    """
    held: deque[Piece] = deque()
    count = 0
    for piece in pieces:
        left_out = min(skip, len(piece.ids))
        skip = 0 if piece.last else skip - left_out
        if left_out < len(piece.ids):
            held.append(piece._replace(ids=piece.ids[left_out:], first=piece.first + left_out))
            count += len(held[-1].ids)
        while count > context:
            ids = _take(held, context)
            count -= context
            yield Window(ids, held[0].place, held[0].first)
        if padded and piece.last:
            if count > 1:
                ids = np.concatenate([part.ids for part in held])
                yield Window(ids, piece.place, piece.first + len(piece.ids) - 1)
            held.clear()
            count = 0


def _take(held: deque[Piece], context: int) -> Ids:
    """The first ``context + 1`` tokens; all but the last of them go."""
    parts = [held[0].ids[: context + 1]]
    missing = context + 1 - len(parts[0])
    while missing > 0:
        held.popleft()
        parts.append(held[0].ids[:missing])
        missing -= len(parts[-1])
    left_out = len(parts[-1]) - 1
    held[0] = held[0]._replace(ids=held[0].ids[left_out:], first=held[0].first + left_out)
    return np.concatenate(parts)
