"""Sources by name."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from plga.training.data.documents import Place, documents
from plga.training.data.files import find
from plga.training.data.lines import JsonLines, TextLines
from plga.training.data.rows import BadRows, RowSource

Kind = Literal["text", "jsonl", "parquet", "hub"]
_SUFFIXES: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}


def open_source(
    kind: Kind, path: str | Sequence[str], column: str, name: str | None = None, split: str = "train"
) -> RowSource:
    """The rows of files, or of a dataset that Datasets streams.

    Raises:
        ValueError, OSError: missing, unreadable, empty, not of this kind, or without the column; one line says which.
    """
    # Datasets takes seconds to import and pyarrow half a second, so they are when they are needed.
    if kind == "hub":
        from plga.training.data.hub import HubRows

        return HubRows(str(path), name, split, column)
    files = find(path)
    if kind == "parquet":
        from plga.training.data.parquet import ParquetRows

        return ParquetRows(files, column)
    return TextLines(files) if kind == "text" else JsonLines(files, column)


def read_texts(paths: Sequence[str], column: str, bad_rows: int) -> Iterator[str]:
    """All documents of files that say by their names what they are.

    Args:
        paths: files or globs; all are checked before the first document is read.
        column: of the documents in JSONL and parquet.
        bad_rows: to be skipped.

    Raises:
        ValueError, OSError: as ``open_source``, an unknown kind of file, more bad rows, or no document at all.
    """
    opened = [open_source(_kind(file), [str(file)], column) for file in find(paths)]
    return _texts(opened, BadRows(bad_rows), ", ".join(paths))


def _texts(sources: Sequence[RowSource], bad: BadRows, name: str) -> Iterator[str]:
    empty = True
    for source in sources:
        for document in documents(source, lambda index: True, Place(0, 0, None, {}), bad):
            empty = False
            yield document.text
    if empty:
        raise ValueError(f"{name}: no document" + (f", and bad rows: {bad}" if bad.counts else ""))


def _kind(file: Path) -> Kind:
    kind = _SUFFIXES.get(file.suffix.lower())
    if kind is None:
        raise ValueError(f"{file}: the name says no kind, expected one that ends in {', '.join(_SUFFIXES)}")
    return kind
