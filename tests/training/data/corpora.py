"""Small corpora of numbers, in every format, and what training should make of them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import torch
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from plga.training.data.dataset import Data, open_data
from plga.training.data.settings import DataSettings

VOCABULARY = 1000
PAD, UNKNOWN, END = 0, 1, 2
FIRST = 3  # the first token of a text
Documents = Sequence[Sequence[int]]


def tokenizer(**special: str | None) -> PreTrainedTokenizerFast:
    """Words that are numbers, each of them its own token."""
    words = {"<pad>": PAD, "<unk>": UNKNOWN, "<eos>": END} | {str(i): i for i in range(FIRST, VOCABULARY)}
    numbers = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    numbers.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<eos>"} | special
    return PreTrainedTokenizerFast(
        tokenizer_object=numbers, **{role: name for role, name in names.items() if name is not None}
    )


def numbered(lengths: Iterable[int]) -> list[list[int]]:
    """Documents of these lengths in which no token is there twice."""
    tokens = iter(range(FIRST, VOCABULARY))
    return [list(islice(tokens, length)) for length in lengths]


def texts(documents: Documents) -> list[str]:
    return [" ".join(map(str, document)) for document in documents]


def write(folder: Path, kind: str, documents: Documents, files: int = 2) -> list[str]:
    """Spread documents over files of a kind; the globs or folder that a source takes."""
    folder.mkdir(exist_ok=True)
    rows = texts(documents)
    share = -(-len(rows) // files)
    for number, begin in enumerate(range(0, len(rows), share)):
        part = rows[begin : begin + share]
        if kind == "text":
            (folder / f"{number}.txt").write_text("".join(f"{row}\n" for row in part))
        elif kind == "jsonl":
            lines = [json.dumps({"id": i, "text": row}) + "\n" for i, row in enumerate(part)]
            (folder / f"{number}.jsonl").write_text("".join(lines))
        else:
            table = pyarrow.table({"id": range(len(part)), "text": part})
            parquet.write_table(table, folder / f"{number}.parquet", row_group_size=3)
    return [str(folder)] if kind == "hub" else [f"{folder}/*"]


def settings(paths: str | list[str], tokenizer: Path, kind: str, **changes: Any) -> DataSettings:
    """Half of the documents, from the first, are validation unless ``changes`` say otherwise."""
    path = paths[0] if kind == "hub" and not isinstance(paths, str) else paths
    values = {"source": kind, "path": path, "tokenizer": str(tokenizer), "validation": 0.5}
    return DataSettings.checked(values | changes, "data")


def opened(
    paths: str | list[str],
    tokenizer: Path,
    kind: str = "text",
    context: int = 4,
    process: tuple[int, int] = (0, 1),
    **changes: Any,
) -> Data:
    return open_data(settings(paths, tokenizer, kind, **changes), VOCABULARY, context, 0, *process)


def take(data: Data, count: int) -> list[dict[str, Tensor]]:
    """The next windows of an iteration."""
    return list(islice(data.train, count))


def same(ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]) -> bool:
    return len(ours) == len(theirs) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(ours, theirs, strict=True)
    )


def stream(documents: Documents, process: tuple[int, int] = (0, 1), period: int = 2) -> Iterator[int]:
    """What a process should read, in one epoch: its documents with the end token after each."""
    training = [document for index, document in enumerate(documents) if index % period]
    for document in training[process[0] :: process[1]]:
        if document:
            yield from (*document, END)
