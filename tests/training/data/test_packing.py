"""Packing by hand, and what it keeps whatever the documents are."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plga.training.data import encoding
from plga.training.data.documents import Document, Place
from plga.training.data.encoding import Encoder, cut
from plga.training.data.packing import Piece, pieces, windows
from plga.training.data.tokenizer import train_tokenizer
from tests.training.data import corpora
from tests.training.data.corpora import END

ENCODE = Encoder(corpora.tokenizer())


def documents(rows: list[list[int]]) -> list[Document]:
    return [Document(text, Place(0, i, [i], {})) for i, text in enumerate(corpora.texts(rows)) if text]


def packed(rows: list[list[int]], context: int, padded: bool = False) -> list[tuple[list[int], int, int]]:
    """Windows, and where the next one begins: document and token."""
    found = windows(pieces(documents(rows), ENCODE, END), context, padded)
    return [(window.ids.tolist(), window.place.document, window.token) for window in found]


def test_packed_by_hand() -> None:
    # 3 4 5 E | 6 E | 7 8 9 10 11 E: windows of four tokens, each with the token that follows.
    assert packed([[3, 4, 5], [6], [7, 8, 9, 10, 11]], context=4) == [
        ([3, 4, 5, END, 6], 1, 0),
        ([6, END, 7, 8, 9], 2, 2),
    ]  # three tokens after the 9 wait for more


def test_padded_by_hand() -> None:
    assert packed([[3, 4, 5], [6], [7, 8, 9, 10, 11], [12, 13, 14, 15]], context=4, padded=True) == [
        ([3, 4, 5, END], 0, 3),
        ([6, END], 1, 1),
        ([7, 8, 9, 10, 11], 2, 4),
        ([11, END], 2, 5),
        ([12, 13, 14, 15, END], 3, 4),  # full, and nothing is left for a window of its own
    ]


def test_a_document_without_a_token_of_its_own_is_none() -> None:
    blank = [Document(text, Place(0, i, [i], {})) for i, text in enumerate(["", "  ", "3", " "])]
    assert [piece.ids.tolist() for piece in pieces(blank, ENCODE, END)] == [[3, END]]


def test_nothing_gives_nothing() -> None:
    assert packed([], 4) == packed([], 4, padded=True) == []


@pytest.fixture
def in_small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode few texts and characters at once, so that documents come in many pieces."""
    monkeypatch.setattr(encoding, "TEXTS", 3)
    monkeypatch.setattr(encoding, "CHARACTERS", 12)


@pytest.mark.usefixtures("in_small_portions")
@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 20))
def test_every_token_once_and_in_order(lengths: list[int], context: int) -> None:
    rows = corpora.numbered(lengths)
    tokens = [token for row in rows if row for token in (*row, END)]
    found = packed(rows, context)
    count = max(0, (len(tokens) - 1) // context)
    assert len(found) == count
    assert [token for ids, _, _ in found for token in ids[:-1]] == tokens[: count * context]  # inputs
    assert [token for ids, _, _ in found for token in ids[1:]] == tokens[1 : count * context + 1]  # labels
    for number, (_, document, token) in enumerate(found, 1):
        before = sum(len(row) + 1 for row in rows[:document] if row)
        assert before + token == number * context  # where the next one begins


@pytest.mark.usefixtures("in_small_portions")
@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 20))
def test_padded_windows_stay_in_their_document(lengths: list[int], context: int) -> None:
    rows = corpora.numbered(lengths)
    expected = []
    for row in rows:
        tokens = [*row, END]
        expected += [tokens[i : i + context + 1] for i in range(0, len(row), context)]
    found = packed(rows, context, padded=True)
    assert [ids for ids, _, _ in found] == expected


@pytest.mark.usefixtures("in_small_portions")
@pytest.mark.parametrize("padded", [False, True])
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 9))
def test_the_windows_after_any_window_begin_where_it_says(padded: bool, lengths: list[int], context: int) -> None:
    rows = corpora.numbered(lengths)
    whole = packed(rows, context, padded)
    for number, (_, document, token) in enumerate(whole, 1):
        rest = windows(pieces(documents(rows)[document:], ENCODE, END), context, padded, skip=token)
        assert [window.ids.tolist() for window in rest] == [ids for ids, _, _ in whole[number:]]


def test_windows_are_not_kept_from_a_piece_of_any_size() -> None:
    ids = np.arange(100_000, dtype=np.int32)
    found = list(windows([Piece(ids, Place(0, 0, None, {}), 0, True)], 1000))
    assert len(found) == 99
    assert all(window.ids[0] == 1000 * i and len(window.ids) == 1001 for i, window in enumerate(found))


@given(st.text(alphabet="ab ", max_size=100))
def test_the_parts_of_a_text_are_the_text(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "CHARACTERS", 10)
        parts = list(cut(text))
    assert "".join(part for part, _ in parts) == text
    assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
    assert all(1 <= len(part) <= 10 for part, _ in parts[:-1])
    for (before, _), (after, _) in pairwise(parts):
        assert (after[0] == " " and after[1:2].strip()) or not re.search(r" \S", before[1:] + after[0])


def test_a_cut_before_a_space_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(self, x):\n    return x if x else None\n" * 50
    encode = Encoder(train_tokenizer([text], 300, 64))

    def tokens() -> list[Any]:
        found = pieces([Document(text, Place(0, 0, None, {}))], encode, END)
        return np.concatenate([piece.ids for piece in found]).tolist()

    whole = tokens()
    monkeypatch.setattr(encoding, "CHARACTERS", 37)
    assert tokens() == whole
