"""SHA-256 of files and of the tensors in them, each byte read once and counted once."""

import hashlib
import json
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_BLOCK = 1 << 20
_LONGEST_HEADER = 100_000_000  # what the safetensors library itself reads at most


def digest_directory(directory: Path, leave_out: str, weights: bool = True) -> dict[str, dict[str, Any]]:
    """What every file of a directory holds, by name.

    Args:
        leave_out: the one name that is not looked at.
        weights: also look into safetensors files; without, they are there with no content.

    Raises:
        ValueError: a folder, a symbolic link or anything else that is no file of this directory, or a safetensors file
            that is none.
        OSError: unreadable.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.iterdir()):
        if path.name == leave_out:
            continue
        require_regular(path)
        if path.suffix != ".safetensors":
            found[path.name] = digest_file(path)
        else:
            found[path.name] = digest_safetensors(path) if weights else {}
    return found


def require_regular(path: Path) -> None:
    """Raise ValueError unless ``path`` is a file itself: what a link points to may change while the link stays."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a special file"
        raise ValueError(f"{path}: {kind}, expected only files in a sealed directory")


def digest_file(path: Path) -> dict[str, Any]:
    """``{"sha256": ...}`` of a whole file."""
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def digest_safetensors(path: Path) -> dict[str, Any]:
    """SHA-256 of the header of a safetensors file, and dtype, shape and SHA-256 of every tensor.

    Together they are all of the file: the tensors have to follow each other without a gap up to its end.

    Raises:
        ValueError: truncated, or not a safetensors file.
        OSError: unreadable.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise ValueError("its header does not fit into it")
            header = file.read(length)
            tensors = _digest_tensors(file, json.loads(header), size - 8 - length)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: truncated, or not a safetensors file ({error})") from error
    return {"header": hashlib.sha256(prefix + header).hexdigest(), "tensors": tensors}


def _digest_tensors(file: BufferedReader, header: dict[str, Any], size: int) -> dict[str, Any]:
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    tensors, position = {}, 0
    for name, entry in sorted(entries, key=lambda pair: pair[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        if start != position or end < start or end > size:
            raise ValueError(f"{name} is at bytes {start} to {end} of {size}, expected from {position} on")
        tensors[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "sha256": _digest_next(file, end - start)}
        position = end
    if position != size:
        raise ValueError(f"{size - position} bytes belong to no tensor")
    return tensors


def _digest_next(file: BufferedReader, count: int) -> str:
    digest, block = hashlib.sha256(), memoryview(bytearray(min(count, _BLOCK)))
    while count:
        read = file.readinto(block[:count])
        if not read:
            raise ValueError("it ended while it was read")
        digest.update(block[:read])
        count -= read
    return digest.hexdigest()


def digest_tensor(tensor: Tensor) -> dict[str, Any]:
    """Dtype, shape and SHA-256 of a tensor in memory, wherever it lies."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(content.data).hexdigest(),
    }


def difference(expected: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> str | None:
    """What differs first between two results of ``digest_directory``, in words; None: nothing."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is not in the seal"
        if expected[name] != found[name]:
            return f"{name} differs" + _inside(expected[name], found[name])
    return None


def _inside(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """In which tensors two safetensors files differ."""
    theirs, ours = expected.get("tensors"), found.get("tensors")
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return ""
    names = [name for name in sorted(theirs.keys() | ours.keys()) if theirs.get(name) != ours.get(name)]
    if not names:
        return " in its header"
    more = f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
    return f" in {names[0]}{more}"
