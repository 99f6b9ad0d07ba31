"""Arrays of an audit in an .npz whose bytes are those of the arrays alone: no time, no compression library."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

_EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a zip entry


def write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as ``numpy.savez`` does; the same arrays in the same order are the same bytes.

    Raises:
        OSError: a full disk, and whatever else the file system says.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EARLIEST), content.getvalue())


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Arrays by name of an .npz; nothing in it is run.

    Raises:
        ValueError: truncated, or not an .npz of plain arrays.
        OSError: missing or unreadable.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError:
        raise
    except Exception as error:  # a damaged archive can end in any exception
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise ValueError(f"{file}: truncated, or not an archive of arrays ({why})") from error


def pack(letter: str, raw: Any) -> dict[str, np.ndarray]:
    """The arrays of a section's raw dataclass by ``LETTER.field``."""
    return {f"{letter}.{field.name}": np.asarray(getattr(raw, field.name)) for field in fields(raw)}


def unpack(letter: str, kind: type[Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """The raw dataclass of a section from arrays by ``LETTER.field``.

    Raises:
        ValueError: an array is missing, or there is one that the section does not have.
    """
    expected = [f"{letter}.{field.name}" for field in fields(kind)]
    found = [name for name in arrays if name.startswith(f"{letter}.")]
    if different := sorted(set(expected) ^ set(found)):
        where = "missing" if different[0] in expected else "not one of this section"
        raise ValueError(f"section {letter}: the array {different[0]} is {where}")
    return kind(*(arrays[name] for name in expected))
