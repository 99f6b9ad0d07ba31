"""Any Transformers tokenizer, as training needs it: texts in, arrays of token ids out."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from plga.model.tokenizer import NoTokenizerError, load_tokenizer

Ids = NDArray[np.int32]
# What is encoded at once: enough for many cores, and little enough that its encodings (over 100 bytes a token, for they
# hold the pieces' text too) are small even where each character is several tokens.
TEXTS, CHARACTERS = 256, 2**18
_NEAR = 1000  # characters before the end of a part, among which a space is looked for


def open_tokenizer(name: str, vocab_size: int, padded: bool) -> Any:
    """The tokenizer of a folder, a file (see ``load_tokenizer``), or of that name on the hub.

    Args:
        name: path or name.
        vocab_size: of the model.
        padded: whether windows are to be padded.

    Raises:
        ValueError: not a tokenizer; an id that the model has no embedding for; no token to end or to pad with.
        OSError: unreadable, or neither here nor on the hub.
    """
    path = Path(name)
    # A tokenizer that is not a fast one has no tokenizer.json, and Transformers alone can read it.
    slow = (path / "tokenizer_config.json").is_file() and not (path / "tokenizer.json").is_file()
    try:
        tokenizer = _transformers(name) if slow or not path.exists() else load_tokenizer(path)
    except NoTokenizerError as error:  # its remedy is an option of other commands
        reason = str(error).partition("; pass --tokenizer")[0]
        raise NoTokenizerError(f"{reason}; set data.tokenizer to a tokenizer's folder, file or name") from error
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= vocab_size:
        raise ValueError(
            f"tokenizer {name}: its largest id is {largest}, expected < {vocab_size}, the model's vocab_size"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"tokenizer {name}: no eos token, expected one to end each document with")
    if padded and tokenizer.pad_token_id is None:
        raise ValueError(f"tokenizer {name}: no pad token, expected one with packing 'padded'; 'packed' needs none")
    return tokenizer


def _transformers(name: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # each format has its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise OSError(f"tokenizer {name}: no file or folder that holds one, nor one of the hub ({reason})") from error


class Encoder:
    """Encodes texts without special tokens: the name of one inside a text is text.

    Nothing is padded or truncated, whatever the tokenizer itself was saved to do.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._slow, self._fast = tokenizer, None
        if tokenizer.is_fast:
            # A copy, because whoever calls the tokenizer may set padding and truncation in the original.
            self._fast = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
            self._fast.no_padding()
            self._fast.no_truncation()
            self._fast.encode_special_tokens = True

    def __call__(self, texts: list[str]) -> list[Ids]:
        """The ids of each text."""
        if self._fast is not None:
            encodings = self._fast.encode_batch_fast(texts, add_special_tokens=False)
            return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        rows = self._slow(texts, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids
        return [np.array(row, dtype=np.int32) for row in rows]

    def digest(self) -> str:
        """Tells this tokenizer from those that encode otherwise."""
        if self._fast is not None:
            content = self._fast.to_str()
        else:
            content = repr((type(self._slow).__name__, sorted(self._slow.get_vocab().items())))
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def each(self, texts: Iterable[str]) -> Iterator[Ids]:
        """The ids of one text after the other, encoded many at once."""
        batch: list[str] = []
        size = 0
        for text in texts:
            batch.append(text)
            size += len(text)
            if full(len(batch), size):
                yield from self(batch)
                batch, size = [], 0
        if batch:
            yield from self(batch)


def full(texts: int, characters: int) -> bool:
    """Whether so much is enough to be encoded at once."""
    return texts >= TEXTS or characters >= CHARACTERS


def cut(text: str) -> Iterator[tuple[str, bool]]:
    """Parts of a text and whether each is the last: a long one is not handled at once, so that memory stays bounded.

    The tokens are those of the whole text unless a merge crosses a cut. Cuts are made before a word with its space,
    into which no merge of a byte-level tokenizer reaches, where there is one near.
    """
    start = 0
    while len(text) - start > CHARACTERS:
        end = start + CHARACTERS
        nearest = max(start, end - _NEAR) + 1
        space = text.rfind(" ", nearest, end)
        while space >= 0 and text[space + 1].isspace():  # within a run of spaces, which is a word too
            space = text.rfind(" ", nearest, space)
        end = end if space < 0 else space
        yield text[start:end], False
        start = end
    yield text[start:], True
