"""Parquet: a document a row, read a few rows at a time from any row group on."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow
from pyarrow import parquet

from plga.model.files import first
from plga.training.data.files import digest
from plga.training.data.rows import BadRowError, Position, Row, text_of_bytes

_ROWS = 8  # read at once: documents may be long, and more would not be faster than a tokenizer
_BUFFER = 2**20  # bytes; without it a whole column of a row group would be read at once


class ParquetRows:
    """Rows of files that have ``column`` as text. Positions: file, row group, row in it.

    Raises:
        ValueError: truncated or damaged, or without such a column.
        OSError: unreadable.
    """

    def __init__(self, files: Sequence[Path], column: str) -> None:
        self.files, self.column = files, column
        for file in files:
            with _opened(file) as opened:
                _check(file, opened.schema_arrow, column)

    def digest(self) -> str:
        return digest(self.files)

    def rows(self, start: Position | None = None) -> Iterator[Row]:
        file_index, group, skipped = start or (0, 0, 0)
        for index, file in enumerate(self.files[file_index:], file_index):
            with _opened(file) as opened:
                counts = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
                for current in range(group, len(counts)):
                    before = sum(counts[:current])
                    for row, raw in enumerate(self._cells(file, opened, current)):
                        if row >= skipped:
                            yield Row(raw, [index, current, row], str(file), before + row + 1)
                    skipped = 0
            group = 0

    def _cells(self, file: Path, opened: parquet.ParquetFile, group: int) -> Iterator[bytes | None]:
        batches = opened.iter_batches(_ROWS, row_groups=[group], columns=[self.column], use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"{file}: row group {group}: truncated or damaged ({_line(error)})") from error
            if batch is None:
                return
            # As bytes, because one cell that is not UTF-8 would spoil the whole batch.
            for cell in batch.column(0).cast(pyarrow.large_binary()):
                yield cell.as_py()

    def text(self, raw: bytes | None) -> str:
        if raw is None:
            raise BadRowError("null", f"{self.column} is null")
        return text_of_bytes(raw)


def _opened(file: Path) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file}: truncated, or not parquet ({_line(error)})") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:100]


def _check(file: Path, schema: pyarrow.Schema, column: str) -> None:
    if schema.names.count(column) != 1:
        raise ValueError(f"{file}: no column {column!r} but {first([*map(repr, schema.names)])}; set column")
    kind = schema.field(column).type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    if not any(
        check(kind)
        for check in (
            pyarrow.types.is_string,
            pyarrow.types.is_large_string,
            pyarrow.types.is_string_view,
            pyarrow.types.is_binary,
            pyarrow.types.is_large_binary,
        )
    ):
        raise ValueError(f"{file}: column {column!r} is {kind}, expected text")
