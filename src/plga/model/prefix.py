"""A cache on disk: the prefix of a prompt, computed once, for the model, tokenizer and tokens that it was made from."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plga.model.atomic import new_file
from plga.model.cache import ChunkState, PldrCache, PldrCacheLayer
from plga.model.configuration import MODES, PldrConfig
from plga.model.digests import digest_tensor
from plga.model.seal import SealPolicy, default_policy
from plga.model.signing import SIGNATURE, check_signature, parse, read_private_key, render, sign

FORMAT = "plga prefix 1"
# Numbers that change what is computed and that no tensor shows.
_SETTINGS = (
    "num_attention_heads",
    "operator",
    "gram",
    "gram_chunk",
    "layer_norm_eps",
    "rope_theta",
    "rope_interleaved",
)


def save_prefix(
    cache: PldrCache,
    path: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Tensor,
    key: str | Path | None = None,
    overwrite: bool = False,
) -> None:
    """See PldrCache.save."""
    binding, tensors = _binding(model, tokenizer, input_ids), _tensors(cache)
    _require_shapes(str(path), tensors, _shapes(model.config, cache.mode, *input_ids.shape))
    _require_numbers(str(path), tensors, cache.mode, model.dtype)
    signer = None if key is None else read_private_key(Path(key))
    statement = {
        "format": FORMAT,
        **binding,
        "mode": cache.mode,
        "tensors": {name: digest_tensor(tensor) for name, tensor in tensors.items()},
    }
    if signer is not None:
        statement = sign(statement, signer)
    # Clones: what shares its memory, as expanded sequences do, is not for safetensors.
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    with new_file(Path(path), overwrite) as temporary:
        save_file(copies, temporary, {"plga": render(statement)})


def load_prefix(
    path: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Tensor,
    mode: str | None = None,
    seal: SealPolicy | None = None,
) -> PldrCache:
    """See PldrCache.load."""
    path, policy = Path(path), default_policy() if seal is None else seal
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, expected a saved cache")
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            metadata = opened.metadata() or {}
            # Copies: tensors of a safetensors file are views of the file itself, which may change.
            names = opened.keys()
            tensors = {name: opened.get_tensor(name).clone() for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a safetensors file ({error})") from error
    if metadata.keys() != {"plga"}:
        raise ValueError(f"{path}: not a cache that PldrCache.save wrote: it does not say what it belongs to")
    statement = parse(metadata["plga"], str(path))
    _require_trusted(path, statement, policy)
    if statement.get("mode") not in MODES:
        raise ValueError(f"{path}: mode is {_short(statement.get('mode'))}, expected one of {', '.join(MODES)}")
    wanted_mode = statement["mode"] if mode is None else mode
    expected = {"format": FORMAT, **_binding(model, tokenizer, input_ids), "mode": wanted_mode}
    for name, value in expected.items():
        if statement.get(name) != value:
            saved_for, wanted = _short(statement.get(name)), _short(value)
            raise ValueError(f"{path}: saved for another {name}: {saved_for}, expected {wanted}")
    cache = PldrCache(model.config, statement["mode"])
    saved, found = statement.get("tensors"), {name: digest_tensor(tensor) for name, tensor in tensors.items()}
    if not isinstance(saved, dict):
        raise ValueError(f"{path}: it does not say what its tensors are")
    for name in sorted(found.keys() | saved.keys()):
        if saved.get(name) != found.get(name):
            raise ValueError(f"{path}: {name} differs: not what was saved")
    _require_shapes(str(path), tensors, _shapes(model.config, cache.mode, *input_ids.shape))
    _require_numbers(str(path), tensors, cache.mode, model.dtype)
    _fill(cache, {name: tensor.to(model.device) for name, tensor in tensors.items()})
    return cache


def _require_trusted(path: Path, statement: dict[str, Any], policy: SealPolicy) -> None:
    if SIGNATURE in statement:
        check_signature(statement, policy.public_keys, str(path))
    elif policy.demands:
        raise ValueError(f"{path}: not signed, but a signature is required; expected a cache saved with key=...")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 20 else f"{text[:17]}..."


def _binding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, input_ids: Tensor) -> dict[str, Any]:
    """What a cache is of: the dtype and, as SHA-256, the model, the tokenizer and the tokens."""
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids is {tuple(input_ids.shape)}, expected [B, S]")
    if input_ids.is_floating_point() or input_ids.is_complex() or input_ids.dtype == torch.bool:
        raise ValueError(f"input_ids is {str(input_ids.dtype).removeprefix('torch.')}, expected integers")
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "model": model_digest(model),
        "tokenizer": tokenizer_digest(tokenizer),
        "prompt": _digest(digest_tensor(input_ids.long())),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def model_digest(model: PreTrainedModel) -> str:
    """Of the weights, by name, and of the settings that no weight shows."""
    settings = {name: getattr(model.config, name) for name in _SETTINGS}
    return _digest([settings, {name: digest_tensor(tensor) for name, tensor in model.state_dict().items()}])


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Of what turns texts into tokens; how the last call padded is not part of it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"tokenizer is {type(tokenizer).__name__}, expected a fast one")
    return _digest({**json.loads(backend.to_str()), "padding": None, "truncation": None})


def _tensors(cache: PldrCache) -> dict[str, Tensor]:
    """All that a cache holds, by name."""
    named: dict[str, Tensor | None] = {}
    for index, layer in enumerate(cache.layers):
        assert isinstance(layer, PldrCacheLayer)
        named |= {f"layers.{index}.keys": layer.keys, f"layers.{index}.values": layer.values}
        named[f"layers.{index}.curvature"] = layer.curvature
        if layer.chunks is not None:
            named |= {f"layers.{index}.chunks.{name}": t for name, t in layer.chunks._asdict().items()}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _shapes(config: PldrConfig, mode: str, batch: int, length: int) -> dict[str, tuple[int, ...]]:
    """What ``_tensors`` gives for a cache of so many tokens."""
    heads, width = config.num_attention_heads, config.head_dim
    if mode == "recompute":
        return {
            "layers.0.keys": (batch, 1, length, config.hidden_size),
            "layers.0.values": (batch, 1, length, 1),
        }
    operators = {"prompt": ["curvature"], "chunked": [f"chunks.{name}" for name in ChunkState._fields], "constant": []}
    shapes: dict[str, tuple[int, ...]] = {}
    for index in range(config.num_hidden_layers):
        shapes |= {f"layers.{index}.{name}": (batch, heads, length, width) for name in ("keys", "values")}
        shapes |= {f"layers.{index}.{name}": (batch, heads, width, width) for name in operators[mode]}
    return shapes


def _require_shapes(what: str, tensors: dict[str, Tensor], expected: dict[str, tuple[int, ...]]) -> None:
    for name in sorted(tensors.keys() | expected.keys()):
        shape = list(tensors[name].shape) if name in tensors else None
        if name not in expected or shape != list(expected[name]):
            wanted = list(expected[name]) if name in expected else None
            raise ValueError(f"{what}: {name} is {shape or 'missing'}, expected {wanted or 'no such tensor'}")


def _require_numbers(what: str, tensors: dict[str, Tensor], mode: str, dtype: torch.dtype) -> None:
    """What nobody has signed may hold any numbers: these are of the kinds that a model computes, and finite."""
    for name, tensor in tensors.items():
        kinds = [dtype]
        if mode == "recompute" and name.endswith(".values"):
            kinds = [torch.int64]  # positions
        elif ".chunks." in name or name.endswith(".curvature"):
            kinds = [dtype, torch.promote_types(dtype, torch.float32)]  # Grams are summed in float32 or wider
        if tensor.dtype not in kinds:
            said, wanted = (str(kind).removeprefix("torch.") for kind in (tensor.dtype, kinds[-1]))
            raise ValueError(f"{what}: {name} is {said}, expected {wanted}")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{what}: {name} is not finite, expected finite numbers")


def _fill(cache: PldrCache, tensors: dict[str, Tensor]) -> None:
    for index, layer in enumerate(cache.layers):
        assert isinstance(layer, PldrCacheLayer)
        keys, values = tensors[f"layers.{index}.keys"], tensors[f"layers.{index}.values"]
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        layer.curvature = tensors.get(f"layers.{index}.curvature")
        chunks = [f"layers.{index}.chunks.{name}" for name in ChunkState._fields]
        if tensors.keys() >= set(chunks):
            layer.chunks = ChunkState(*(tensors[name] for name in chunks))
