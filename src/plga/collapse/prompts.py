"""Texts to measure a collapse on: some calibrate, the others, which no calibration has seen, are held out."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from plga.criticality.prompts import read_prompts
from plga.training.data.sources import read_texts
from plga.training.data.standard_library import standard_library

STANDARD_LIBRARY = "standard-library"
_LEAST = 4  # two to calibrate on, without which nothing fluctuates, and two to hold out
_SHORTEST = 2  # tokens: one to read, one to predict
_DOCUMENTS, _LENGTH = 32, 64  # of a corpus: how many, and tokens from the beginning of each


class Prompts(NamedTuple):
    """Token ids, each row [S_i] of its own length S_i >= 2, none of it padding; no text is in both sets.

    Attributes:
        calibration, held_out: at least two rows each.
        origin: where they are from, in words.
    """

    calibration: list[Tensor]
    held_out: list[Tensor]
    origin: str


def neutral_prompts(tokenizer: PreTrainedTokenizerFast, room: int) -> Prompts:
    """Sentences and beginnings of programs that come with this package, each cut to ``room`` tokens."""
    content = resources.files("plga.collapse").joinpath("neutral.txt").read_text(encoding="utf-8")
    texts = [line.replace("\\n", "\n") for line in content.splitlines()]
    return _split([_encoded(tokenizer, text)[:room] for text in texts], "the neutral prompts of plga")


def prompts_of_file(file: Path, tokenizer: PreTrainedTokenizerFast, room: int) -> Prompts:
    """The prompts of a text file, one a line; the same line counts once.

    Raises:
        ValueError: fewer than four, or one that has other than 2 to ``room`` tokens.
        OSError: missing or unreadable.
    """
    ids = [_encoded(tokenizer, line) for line in dict.fromkeys(read_prompts(file, _LEAST))]
    for number, row in enumerate(ids, start=1):
        if not _SHORTEST <= len(row) <= room:
            raise ValueError(
                f"{file}: prompt {number} has {len(row)} tokens, expected {_SHORTEST} to {room}, the context less the "
                "new tokens"
            )
    return _split(ids, str(file))


def prompts_of_data(paths: Sequence[str], tokenizer: PreTrainedTokenizerFast, room: int) -> Prompts:
    """The first tokens, 64 or ``room``, of each of the first 32 documents; the same beginning counts once.

    Args:
        paths: ``standard-library``, or files and globs of text (a document a line), JSONL or parquet (column ``text``).

    Raises:
        ValueError, OSError: as :func:`plga.training.data.sources.read_texts`, or fewer than four documents.
    """
    texts = standard_library() if list(paths) == [STANDARD_LIBRARY] else read_texts(paths, "text", bad_rows=0)
    beginnings = _beginnings(texts, tokenizer, min(room, _LENGTH))
    return _split(list(itertools.islice(beginnings, _DOCUMENTS)), ", ".join(paths))


def digest(rows: Sequence[Tensor]) -> str:
    """SHA-256 of the token ids as JSON, [[...], ...], without spaces."""
    ids = json.dumps([row.tolist() for row in rows], separators=(",", ":"))
    return hashlib.sha256(ids.encode()).hexdigest()


def _beginnings(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast, length: int) -> Iterator[Tensor]:
    seen: set[tuple[int, ...]] = set()
    for text in texts:
        # A document may be a book, of which the beginning is all that is encoded.
        ids = _encoded(tokenizer, text[: 64 * length])[:length]
        key = tuple(ids.tolist())
        if len(key) >= _SHORTEST and key not in seen:
            seen.add(key)
            yield ids


def _split(ids: list[Tensor], origin: str) -> Prompts:
    """Every other row calibrates, so that both sets are of the same kinds of text."""
    if len(ids) < _LEAST:
        raise ValueError(f"{origin}: {len(ids)} different texts, expected at least {_LEAST}")
    return Prompts(ids[::2], ids[1::2], origin)


def _encoded(tokenizer: PreTrainedTokenizerFast, text: str) -> Tensor:
    return tokenizer(text, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids[0].long()
