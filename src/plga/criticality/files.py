"""Files of a sweep: JSON and tables that are there whole or not at all."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plga.model.atomic import new_file


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
