"""Text and JSONL: a document a line, read from any byte on."""

import codecs
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from plga.training.data.files import digest
from plga.training.data.rows import LONGEST, BadRowError, Position, Row, text_of_bytes, text_of_value


class TextLines:
    """Each line that is not blank is a document, as in Datasets' ``text``; it ends in LF or CRLF, which are no part
    of it. Positions: file, byte, line.

    Args:
        files: UTF-8, with or without a byte order mark.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def digest(self) -> str:
        return digest(self.files)

    def rows(self, start: Position | None = None) -> Iterator[Row]:
        file_index, byte, number = start or (0, 0, 1)
        for index, file in enumerate(self.files[file_index:], file_index):
            with file.open("rb") as opened:
                opened.seek(byte)
                for raw, length in _lines(opened):
                    if byte == 0 and raw is not None:
                        raw = raw.removeprefix(codecs.BOM_UTF8)
                    if raw is None or raw.strip():
                        yield Row(raw, [index, byte, number], str(file), number)
                    byte += length
                    number += 1
            byte, number = 0, 1

    def text(self, raw: bytes | None) -> str:
        return text_of_bytes(raw)


def _lines(opened: BinaryIO) -> Iterator[tuple[bytes | None, int]]:
    """Lines without their ends, None for one that is too long to be held, and their lengths in the file."""
    while line := opened.readline(LONGEST + 2):
        length = len(line)
        if length == LONGEST + 2 and not line.endswith(b"\n"):
            while not line.endswith(b"\n") and (line := opened.readline(LONGEST)):
                length += len(line)
            yield None, length
        else:
            yield line.removesuffix(b"\n").removesuffix(b"\r"), length


class JsonLines(TextLines):
    """Each line is a JSON object, whose ``column`` is a document."""

    def __init__(self, files: Sequence[Path], column: str) -> None:
        super().__init__(files)
        self.column = column

    def text(self, raw: bytes | None) -> str:
        line = text_of_bytes(raw)
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadRowError("not JSON", f"not JSON ({error})") from error
        if not isinstance(record, dict):
            raise BadRowError("not an object", f"{type(record).__name__}, expected a JSON object on each line")
        return text_of_value(record, self.column)
