"""Files of a corpus: found, checked before anything is read, and told from others."""

import glob
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

_ENDS = 2**16  # bytes at the beginning and at the end that enter the digest
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}


def find(paths: str | Sequence[str]) -> list[Path]:
    """The files that paths and globs name: in the order given, and those of a glob in the order of their names.

    Raises:
        FileNotFoundError: a path or glob without a file.
        ValueError: a folder, a pipe, an empty or compressed file, or one that is named twice (its documents would then
            be in training and in validation).
        OSError: unreadable.
    """
    files: list[Path] = []
    for path in [paths] if isinstance(paths, str) else paths:
        found = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not found:
            raise FileNotFoundError(f"{path}: no such file, and no file matches it")
        files += map(Path, found)
    named: set[Path] = set()
    for file in files:
        _check(file)
        if file.resolve() in named:
            raise ValueError(f"{file}: named twice, expected each file once")
        named.add(file.resolve())
    return files


def _check(file: Path) -> None:
    if file.is_dir():
        raise ValueError(f"{file}: a folder, expected a file or a glob such as {file}/*")
    if not file.is_file():
        raise ValueError(f"{file}: a pipe or device, expected a file: a run resumes by seeking in it")
    with file.open("rb") as opened:
        start = opened.read(8)
    if not start:
        raise ValueError(f"{file}: empty, leave it out")
    for magic, kind in _COMPRESSED.items():
        if start.startswith(magic):
            raise ValueError(f"{file}: compressed ({kind}), decompress it: a run resumes by seeking in it")


def digest(files: Sequence[Path]) -> str:
    """Tells files from others by names, sizes, beginnings and ends; the rest of their content isn't read."""
    result = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            result.update(repr((file.name, size)).encode())
            result.update(opened.read(_ENDS))
            opened.seek(max(0, size - _ENDS))
            result.update(opened.read(_ENDS))
    return result.hexdigest()[:16]
