"""Files of a checkpoint: JSON and safetensors, read strictly."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor


def read_json(file: Path, why: str) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file, but {why}")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: truncated, or not JSON ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file}: holds {type(settings).__name__}, expected a JSON object")
    return settings


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Tensors of ``model.safetensors``, or of the files that its index names."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return read_safetensors_file(path / "model.safetensors")
    weight_map = read_json(index, "the weights are sharded").get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(n, str) and Path(n).name == n for n in weight_map.values()
    ):
        raise ValueError(f"{index}: expected weight_map, from tensor names to files of this directory")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(weight_map.values())):
        shard = read_safetensors_file(path / name)
        promised = {key for key, file in weight_map.items() if file == name}
        if shard.keys() != promised:
            raise ValueError(
                f"{path / name}: differs from {index.name} in {first(sorted(shard.keys() ^ promised))}; expected alike"
            )
        tensors |= shard
    return tensors


def read_safetensors_file(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file, expected the tensors of the checkpoint")
    try:
        with safe_open(file, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"{file}: truncated, or not a safetensors file ({error})") from error


def first(names: list[str], count: int = 3) -> str:
    names = list(dict.fromkeys(names))
    rest = len(names) - count
    return ", ".join(names[:count]) + (f" and {rest} more" if rest > 0 else "")
