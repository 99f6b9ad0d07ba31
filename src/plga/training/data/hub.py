"""Whatever Datasets can stream: a dataset of the hub, or a local folder of one."""

import hashlib
from collections.abc import Iterator
from typing import Any

from datasets import IterableDataset, load_dataset

from plga.model.files import first
from plga.training.data.rows import Position, Row, text_of_value


class HubRows:
    """Rows of a streamed dataset. Positions: Datasets' own state before the row (None: the beginning), row.

    Args:
        path, name, split: as ``datasets.load_dataset`` takes them.
        column: of the documents.

    Raises:
        ValueError: not a dataset that can be streamed, or without such a column.
    """

    def __init__(self, path: str, name: str | None, split: str, column: str) -> None:
        self.path, self.name, self.split, self.column = path, name, split, column
        columns = self._open().column_names
        if columns is not None and column not in columns:
            raise ValueError(f"{path}: no column {column!r} but {first([*map(repr, columns)])}; set column")

    def digest(self) -> str:
        named = repr((self.path, self.name, self.split))
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    def _open(self) -> IterableDataset:
        try:
            return load_dataset(self.path, self.name, split=self.split, streaming=True)
        except Exception as error:  # each format and file system has its own
            raise ValueError(f"{self.path}: Datasets cannot open it ({_line(error)})") from error

    def rows(self, start: Position | None = None) -> Iterator[Row]:
        # Anew each time, because two iterations of one dataset object share their state.
        dataset = self._open()
        before, number = start or (None, 1)
        if before is not None:
            dataset.load_state_dict(before)
        records = iter(dataset)
        while True:
            try:
                record = next(records, None)
            except Exception as error:
                raise ValueError(f"{self.path}: row {number}: Datasets cannot read it ({_line(error)})") from error
            if record is None:
                return
            yield Row(record, [before, number], self.path, number)
            before, number = dataset.state_dict(), number + 1

    def text(self, raw: dict[str, Any]) -> str:
        return text_of_value(raw, self.column)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
