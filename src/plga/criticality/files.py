"""Files of a sweep: JSON and tables that are there whole or not at all, and locks."""

import csv
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plga.model.atomic import new_file


@contextmanager
def locked(file: Path, otherwise: str | None = None) -> Iterator[None]:
    """Hold ``file``, which is made if need be; wait for another holder, or raise where ``otherwise`` says what to say.

    The lock ends with the process that holds it, however it ends.

    Raises:
        ValueError: another process holds it, and ``otherwise`` is given.
        OSError: the file cannot be made.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if otherwise else 0))
        except BlockingIOError:
            raise ValueError(otherwise) from None
        yield
    finally:
        os.close(descriptor)


def write_json(file: Path, content: Any) -> None:
    """Replace what is there.

    Raises:
        ValueError: a NaN or an infinity, which JSON does not know.
        OSError: a full disk, and whatever else the file system says.
    """
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    with new_file(file, overwrite=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A table under the names of its first row, replacing what is there; floats in full.

    Raises:
        OSError: a full disk, and whatever else the file system says.
    """
    with new_file(file, overwrite=True) as temporary, temporary.open("w", encoding="utf-8", newline="") as opened:
        table = csv.DictWriter(opened, fieldnames=list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
