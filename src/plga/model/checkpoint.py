"""Checkpoints of a PLDR-LLM: read from any format strictly, written atomically."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights
from transformers.utils import logging

from plga.model.atomic import new_directory, new_file
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.names import to_released
from plga.model.pickles import load_tensors
from plga.model.pth import HPARAMS, PUBLISHED_CONTEXT, PUBLISHED_VOCABULARY, infer
from plga.model.released import UNKNOWN, VALUES, PldrllmConfig, from_published, to_published

logger = logging.get_logger(__name__)


def load_model(
    path: str | Path, dtype: torch.dtype | None = torch.float32, max_positions: int | None = None
) -> PldrForCausalLM:
    """Load a checkpoint, in evaluation mode on the CPU.

    Args:
        path: a directory in our format, a directory in the published Transformers format (``model_type: pldrllm``),
            or a published ``.pth``.
        dtype: of all tensors; None keeps the dtype that each has in the file.
        max_positions: context in tokens; None: what the checkpoint says, 1024 for a ``.pth`` that says nothing.

    Raises:
        ValueError: not a whole checkpoint of a PLDR-LLM: the file, and the first missing, unexpected, misshaped or
            non-floating tensors, are named. Nothing is loaded half.
        OSError: missing or unreadable.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory, expected a checkpoint")
    config, tensors, published = _read_directory(path) if path.is_dir() else _read_pth(path)
    if max_positions is not None:
        if max_positions < 1:
            raise ValueError(f"max_positions is {max_positions}, expected >= 1")
        config.max_position_embeddings = max_positions
    model = _fill(config, tensors, dtype, path, published)
    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path)
    return model


def save_model(
    model: PreTrainedModel,
    directory: str | Path,
    overwrite: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Write a checkpoint directory, whole or not at all: on an error, a previous checkpoint there stays intact.

    Args:
        model: a PldrForCausalLM writes our format, a PldrllmForCausalLM the published one.
        directory: new or empty, or with ``overwrite`` a checkpoint directory, which is replaced as a whole.
        tokenizer: written beside the model.

    Raises:
        FileExistsError: the directory is neither.
        OSError: a full disk, and whatever else the file system says.
    """
    with new_directory(Path(directory), overwrite) as temporary, _no_progress_bar():
        model.save_pretrained(temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)


def save_pth(model: PldrForCausalLM, path: str | Path, overwrite: bool = False) -> None:
    """Write a published ``.pth`` and its ``.hparams.json``, each whole or not at all.

    A constant operator, which the published scripts keep in a file of its own, is written as in the published
    Transformers format: ``decoder.past_G_values``.

    Args:
        model: whose tensors are written as they are, in their dtype.
        path: ``NAME.pth``.

    Raises:
        ValueError: a model that the format cannot express; it holds no number but shapes.
        FileExistsError: one of the files exists and ``overwrite`` is False.
        OSError: a full disk, and whatever else the file system says.
    """
    path, config = Path(path), model.config
    if path.suffix != ".pth":
        raise ValueError(f"{path}: expected a name that ends in .pth")
    for name, value in {"rope_interleaved": True, "rope_theta": 10000.0, "layer_norm_eps": 1e-6}.items():
        if getattr(config, name) != value:
            raise ValueError(f"{name} is {getattr(config, name)}, expected {value}: a .pth cannot say otherwise")
    left_out = () if config.operator == "learned" else ("num_reslayerA", "num_denseA", "A_dff")
    hparams = {name: getattr(config, ours) for name, ours in HPARAMS.items() if name not in left_out}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in to_published(model.state_dict()).items()}
    saved = {"model_state_dict": state, "optimizer_state_dict": None, "loss": 0.0, "accuracy": 0.0}
    with new_file(path.with_suffix(".hparams.json"), overwrite) as numbers, new_file(path, overwrite) as weights:
        with weights.open("wb") as file:
            torch.save(saved, file)
        numbers.write_text(json.dumps(hparams, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Transformers draws one for every save, however small."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _fill(
    config: PldrConfig, tensors: dict[str, Tensor], dtype: torch.dtype | None, path: Path, published: bool
) -> PldrForCausalLM:
    """The model with these tensors, once each of them has proved to be what the configuration expects."""
    with no_init_weights(), torch.device("meta"):
        model = PldrForCausalLM(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}

    def spelled(name: str) -> str:
        if name.startswith(UNKNOWN):
            return name.removeprefix(UNKNOWN)
        if not published:
            return name
        return VALUES if name.endswith(".operator.curvature") else to_released(name)

    wrong = [
        f"{spelled(name)} is {list(tensor.shape)}, expected {list(expected[name])}"
        for name, tensor in tensors.items()
        if name in expected and tensor.shape != expected[name]
    ]
    wrong += [
        f"{spelled(name)} is {str(tensor.dtype).removeprefix('torch.')}, expected floating point"
        for name, tensor in tensors.items()
        if not tensor.is_floating_point()
    ]
    problems = {
        "missing": list(dict.fromkeys(spelled(name) for name in expected if name not in tensors)),
        "unexpected": list(dict.fromkeys(spelled(name) for name in tensors if name not in expected)),
        "wrong": wrong,
    }
    if any(problems.values()):
        raise ValueError(
            f"{path}: " + "; ".join(f"{kind}: {_first(names)}" for kind, names in problems.items() if names)
        )
    # Copies: tensors of a safetensors file are views of the file itself, which may change while the model lives.
    model.load_state_dict({name: tensor.to(dtype=dtype, copy=True) for name, tensor in tensors.items()}, assign=True)
    model.config.dtype = model.dtype
    return model.eval()


def _first(names: list[str], count: int = 3) -> str:
    rest = len(names) - count
    return ", ".join(names[:count]) + (f" and {rest} more" if rest > 0 else "")


def _read_directory(path: Path) -> tuple[PldrConfig, dict[str, Tensor], bool]:
    """Configuration, tensors by our name, and whether the directory spells them the published way."""
    file = path / "config.json"
    settings = _read_json(file, "a checkpoint directory has one")
    kinds = {PldrConfig.model_type: PldrConfig, PldrllmConfig.model_type: PldrllmConfig}
    kind = kinds.get(str(settings.get("model_type")))
    if kind is None:
        raise ValueError(f"{file}: model_type is {settings.get('model_type')!r}, expected one of {', '.join(kinds)}")
    config = _configure(file, kind, settings)
    tensors = _read_safetensors(path)
    if not isinstance(config, PldrllmConfig):
        return config, tensors, False
    return config.to_plga(), _rename(path, tensors), True


def _configure(file: Path, kind: type[PldrConfig], settings: dict[str, Any]) -> PldrConfig:
    try:
        return kind.from_dict(settings)
    except (StrictDataclassError, ValueError, TypeError) as error:
        # The first lines of a StrictDataclassError say which validator spoke; the last one says what is wrong.
        raise ValueError(f"{file}: {str(error).splitlines()[-1].strip().removeprefix('ValueError: ')}") from error


def _read_json(file: Path, why: str) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file, but {why}")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: truncated, or not JSON ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file}: holds {type(settings).__name__}, expected a JSON object")
    return settings


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Tensors of ``model.safetensors``, or of the files that its index names."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return _read_safetensors_file(path / "model.safetensors")
    weight_map = _read_json(index, "the weights are sharded").get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(n, str) and Path(n).name == n for n in weight_map.values()
    ):
        raise ValueError(f"{index}: expected weight_map, from tensor names to files of this directory")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(weight_map.values())):
        shard = _read_safetensors_file(path / name)
        promised = {key for key, file in weight_map.items() if file == name}
        if shard.keys() != promised:
            raise ValueError(
                f"{path / name}: differs from {index.name} in {_first(sorted(shard.keys() ^ promised))}; expected alike"
            )
        tensors |= shard
    return tensors


def _read_safetensors_file(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file, expected the tensors of the checkpoint")
    try:
        with safe_open(file, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"{file}: truncated, or not a safetensors file ({error})") from error


def _rename(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    try:
        ours, unread = from_published(tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if unread:
        logger.warning("%s: left out the two slots of %s beside G_LM, which no computation reads", path, VALUES)
    return ours


def _read_pth(path: Path) -> tuple[PldrConfig, dict[str, Tensor], bool]:
    """Configuration, inferred from the tensors, and tensors by our name."""
    saved = load_tensors(path)
    state = saved.get("model_state_dict") if isinstance(saved, dict) else None
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in state.items()):
        raise ValueError(f"{path}: expected a dictionary whose model_state_dict holds tensors by name")
    shape = infer(path, state)
    hparams = path.with_suffix(".hparams.json")
    if hparams.is_file():
        said = _read_json(hparams, "the checkpoint has one")
        shape["max_seq_len"] = said.get("max_seq_len", PUBLISHED_CONTEXT)
        for name in shape.keys() & said.keys():
            if said[name] != shape[name]:
                raise ValueError(f"{hparams}: {name} is {said[name]}, expected {shape[name]} as in {path.name}")
    fields: dict[str, Any] = {HPARAMS[name]: value for name, value in shape.items()}
    if shape["input_vocab_size"] != PUBLISHED_VOCABULARY:
        # Its tokenizer is not the published one, so which ids are special is not known here.
        fields |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    fields["operator"] = "constant" if VALUES in state else "learned"
    return _configure(path, PldrConfig, fields), _rename(path, state), True
