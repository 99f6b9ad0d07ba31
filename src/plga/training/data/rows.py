"""Rows of a corpus: where each is, how its text is read, and what becomes of bad ones."""

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from plga.model.files import first

logger = logging.getLogger(__name__)
LONGEST = 32 * 2**20  # bytes of a text; whatever is longer is a bad row, so that memory stays bounded
Position = Any  # JSON-able, of which a source alone knows the meaning


class Row(NamedTuple):
    """A row, its text not yet read.

    Attributes:
        raw: what the source's ``text`` takes.
        position: from here the source reads this row again.
        file, number: for people; numbers count from 1 in each file.
    """

    raw: Any
    position: Position
    file: str
    number: int


class RowSource(Protocol):
    """Rows in a fixed order, to be read from the beginning or from any row."""

    def rows(self, start: Position | None = None) -> Iterator[Row]:
        """The row at ``start`` and all after it, once."""

    def text(self, raw: Any) -> str:
        """The text of a row.

        Raises:
            BadRowError: it has none.
        """

    def digest(self) -> str:
        """Tells these rows from others."""


class BadRowError(Exception):
    """A row without text: of which kind it is, and what it has instead."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class BadRows:
    """Counts bad rows by kind, says the first of each kind, and stops at too many.

    Args:
        limit: bad rows to skip.

    Attributes:
        counts: by kind; replaced and never changed, so that it can be kept as of any row.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counts: dict[str, int] = {}

    def add(self, row: Row, error: BadRowError) -> None:
        """Count a row.

        Raises:
            ValueError: more than ``limit``.
        """
        before = self.counts.get(error.kind, 0)
        self.counts = self.counts | {error.kind: before + 1}
        total = sum(self.counts.values())
        if total > self.limit:
            raise ValueError(
                f"{row.file}: row {row.number}: {error}; with it {total} rows are bad ({self}), expected at most "
                f"{self.limit}: mend them or raise bad_rows"
            )
        if before == 0:
            logger.warning("%s: row %d: %s; skipped, as others like it will be", row.file, row.number, error)

    def __str__(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in self.counts.items())


def text_of_bytes(raw: bytes | None) -> str:
    """UTF-8 as text; None stands for something too long to be kept.

    Raises:
        BadRowError: too long, or not UTF-8.
    """
    if raw is None or len(raw) > LONGEST:
        raise BadRowError("too long", f"longer than {LONGEST // 2**20} MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRowError("not UTF-8", f"not UTF-8 ({error.reason} at byte {error.start})") from error


def text_of_value(record: dict[str, Any], column: str) -> str:
    """A value of a record as text.

    Raises:
        BadRowError: absent, null, something else than text, too long, or text that no UTF-8 spells.
    """
    if column not in record:
        raise BadRowError("no such column", f"no column {column!r} but {first([*map(repr, record)]) or 'none'}")
    value = record[column]
    if value is None:
        raise BadRowError("null", f"{column} is null")
    if not isinstance(value, str):
        raise BadRowError("not text", f"{column} is {type(value).__name__}, expected text")
    try:
        length = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise BadRowError("not UTF-8", f"{column} has half of a surrogate pair at character {error.start}") from error
    if length > LONGEST:
        raise BadRowError("too long", f"{column} is longer than {LONGEST // 2**20} MiB")
    return value
