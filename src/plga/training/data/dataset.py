"""Data for a run, opened from settings."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from plga.training.data.documents import Place, Split, documents
from plga.training.data.encoding import Encoder, open_tokenizer
from plga.training.data.packing import pieces, windows
from plga.training.data.rows import BadRows
from plga.training.data.settings import DataSettings
from plga.training.data.sources import open_source
from plga.training.data.standard_library import standard_library
from plga.training.data.stream import DocumentStream, Process, RandomStream, TrainingStream, example
from plga.training.data.tokenizer import train_tokenizer
from plga.training.data.windows import Windows, pack


class Data:
    """What a process trains and validates on.

    Attributes:
        tokenizer: of the texts.
        train: endless windows of ``input_ids`` and ``labels``, already shifted, [S] each; padded ones with an
            ``attention_mask`` and the label -100 at padding.
        identity: tells this data and these settings from others; it does not depend on the number of processes.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        train: TrainingStream,
        held_out: Callable[[int], dict[str, Tensor]],
        bad: BadRows,
    ) -> None:
        self.tokenizer, self.train, self._held_out, self._bad = tokenizer, train, held_out, bad
        self.identity = _digest(*sorted(train.data.items()))

    def validation(self, count: int) -> dict[str, Tensor]:
        """The first ``count`` windows of validation, [count, S] each: the same for every process.

        Raises:
            ValueError: fewer than ``count``, which is at least 1, or too many bad rows among them.
        """
        if count < 1:
            raise ValueError(f"count is {count}, expected >= 1")
        return self._held_out(count)

    @property
    def bad_rows(self) -> dict[str, int]:
        """Rows that training skipped so far, by kind."""
        return dict(self._bad.counts)


def open_data(
    settings: DataSettings,
    vocab_size: int,
    context: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    batch: int = 1,
) -> Data:
    """Open the data of one process. Files are checked, but no document is read before it is needed.

    Args:
        settings: see DataSettings.
        vocab_size: of the model: no token id is larger.
        context: S, tokens of a window.
        seed: of the draw from the standard library; other sources are read in their order.
        process_index, process_count: whose share of training.
        batch: windows a step of this process.

    Raises:
        ValueError: a source or a tokenizer that cannot be used; the file and the remedy are named.
        OSError: missing or unreadable.
    """
    if settings.source == "standard-library":
        return _in_memory(settings, vocab_size, context, seed, Process(process_index, process_count), batch)
    assert settings.path is not None and settings.tokenizer is not None  # validated
    source = open_source(settings.source, settings.path, settings.column, settings.name, settings.split)
    padded = settings.packing == "padded"
    tokenizer = open_tokenizer(settings.tokenizer, vocab_size, padded)
    encode, end, pad = Encoder(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id if padded else None
    split = Split(round(1 / settings.validation), process_index, process_count)
    bad = BadRows(settings.bad_rows)

    def held_out(count: int) -> dict[str, Tensor]:
        read = documents(source, split.validates, Place(0, 0, None, {}), BadRows(settings.bad_rows))
        found = windows(pieces(read, encode, end), context, padded)
        return _stacked((example(window, context, pad) for window in found), count, context)

    data = {
        "corpus": source.digest(),
        "tokenizer": _digest(encode.digest(), end, pad),
        "settings": _digest(settings.source, settings.column, settings.packing, split.period, context),
    }
    train = DocumentStream(source, encode, split, context, end, pad, bad, 8 * batch, data)
    return Data(tokenizer, train, held_out, bad)


def _in_memory(settings: DataSettings, vocab_size: int, context: int, seed: int, process: Process, batch: int) -> Data:
    texts = list(standard_library())
    if settings.tokenizer is None:
        tokenizer = train_tokenizer(texts, vocab_size, context)
    else:
        tokenizer = open_tokenizer(settings.tokenizer, vocab_size, padded=False)
    drawn = Windows(pack(texts, tokenizer), context, settings.validation)

    def held_out(count: int) -> dict[str, Tensor]:
        (tokens,) = drawn.held_out(count)
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}

    data = {
        "corpus": drawn.digest,
        "tokenizer": Encoder(tokenizer).digest(),
        "settings": _digest(settings.source, context, settings.validation, seed),
    }
    return Data(tokenizer, RandomStream(drawn, seed, batch, data, process), held_out, BadRows(settings.bad_rows))


def _stacked(examples: Iterator[dict[str, Tensor]], count: int, context: int) -> dict[str, Tensor]:
    rows = list(islice(examples, count))
    if len(rows) < count:
        raise ValueError(
            f"corpus has {len(rows)} validation windows of {context}, expected >= {count}; ask for fewer, or hold out "
            "more (validation)"
        )
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]
