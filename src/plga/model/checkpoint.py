"""Checkpoints of a PLDR-LLM: read from any format strictly, written atomically."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights
from transformers.utils import logging as transformers_logging

from plga.model.atomic import new_directory, new_file
from plga.model.configuration import PldrConfig
from plga.model.files import first, read_json, read_safetensors
from plga.model.guard_tensors import GUARD_FILE, attach_from
from plga.model.modeling import PldrForCausalLM
from plga.model.names import from_released, to_released
from plga.model.pickles import load_tensors
from plga.model.pth import HPARAMS, PUBLISHED_CONTEXT, PUBLISHED_VOCABULARY, infer
from plga.model.released import VALUES, PldrllmConfig, from_published, to_published
from plga.model.released_models import PldrllmForCausalLM
from plga.model.seal import SealPolicy, check_seal

logger = logging.getLogger(__name__)
AnyModel = TypeVar("AnyModel", PldrForCausalLM, PldrllmForCausalLM)


def load_model(
    path: str | Path,
    dtype: torch.dtype | None = torch.float32,
    max_positions: int | None = None,
    seal: SealPolicy | None = None,
) -> PldrForCausalLM:
    """Load a checkpoint, in evaluation mode on the CPU.

    Beside a constant operator, the learned ones that its guard needs are read too, where there are any, in their dtype.

    Args:
        path: a directory in our format, a directory in the published Transformers format (``model_type: pldrllm``),
            or a published ``.pth``.
        dtype: of all tensors; None keeps the dtype that each has in the file.
        max_positions: context in tokens; None: what the checkpoint says, 1024 for a ``.pth`` that says nothing.
        seal: what a sealed directory is checked against, and whether there has to be a seal; None: as PLGA_TRUST says.

    Raises:
        ValueError: the directory differs from its seal, in what is named; or not a whole checkpoint of a PLDR-LLM: the
            file, and the first missing, unexpected, misshaped or non-floating tensors, are named. Nothing is loaded
            half.
        OSError: missing or unreadable.
    """
    path = _existing(path)
    check_seal(path, seal)
    config, tensors, published = _read_directory(path) if path.is_dir() else _read_pth(path)
    if max_positions is not None:
        if max_positions < 1:
            raise ValueError(f"max_positions is {max_positions}, expected >= 1")
        config.max_position_embeddings = max_positions
    model = _fill(PldrForCausalLM, config, tensors, dtype, path, published)
    if (path / GUARD_FILE).is_file():
        attach_from(model, path)
    return model


def load_released(
    path: str | Path, dtype: torch.dtype | None = torch.float32, seal: SealPolicy | None = None
) -> PldrllmForCausalLM:
    """Load a directory in the published Transformers format with all that it holds, so that saving gives it back.

    As AutoModelForCausalLM does, but strictly. ``load_model`` instead gives the model in our format.

    Args:
        path: directory with ``model_type: pldrllm``.
        dtype, seal: as for ``load_model``.

    Raises:
        ValueError, OSError: as ``load_model``.
    """
    path = _existing(path)
    check_seal(path, seal)
    config = _read_config(path / "config.json")
    if not isinstance(config, PldrllmConfig):
        raise ValueError(f"{path / 'config.json'}: model_type is {config.model_type!r}, expected 'pldrllm'")
    tensors = {from_released(key): tensor for key, tensor in _checked(path, read_safetensors(path)).items()}
    return _fill(PldrllmForCausalLM, config, tensors, dtype, path, published=True)


def load_config(path: str | Path) -> PldrConfig:
    """Configuration of a checkpoint in our or the published Transformers format; no tensor is read.

    Args:
        path: the directory, or its ``config.json``.

    Raises:
        ValueError: not a configuration of a PLDR-LLM.
        OSError: missing or unreadable.
    """
    path = _existing(path)
    config = _read_config(path / "config.json" if path.is_dir() else path)
    return config.to_plga() if isinstance(config, PldrllmConfig) else config


def is_released(path: str | Path) -> bool:
    """Whether ``path`` is a directory in the published Transformers format."""
    return Path(path).is_dir() and isinstance(_read_config(Path(path) / "config.json"), PldrllmConfig)


def save_model(
    model: PreTrainedModel,
    directory: str | Path,
    overwrite: bool = False,
    tokenizer: PreTrainedTokenizerBase | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint directory, whole or not at all: on an error, a previous checkpoint there stays intact.

    Args:
        model: a PldrForCausalLM writes our format, a PldrllmForCausalLM the published one.
        directory: new or empty, or with ``overwrite`` a checkpoint directory, which is replaced as a whole.
        tokenizer: written beside the model.
        texts: further files by name, such as a report; in UTF-8.

    Raises:
        FileExistsError: the directory is neither.
        OSError: a full disk, and whatever else the file system says.
    """
    with new_directory(Path(directory), overwrite) as temporary, no_progress_bar():
        model.save_pretrained(temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        for name, text in (texts or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")


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
    fixed = {"rope_interleaved": True, "rope_theta": 10000.0, "layer_norm_eps": 1e-6, "gram": "global"}
    for name, value in fixed.items():
        if getattr(config, name) != value:
            raise ValueError(f"{name} is {getattr(config, name)}, expected {value}: a .pth cannot say otherwise")
    left_out = () if config.operator == "learned" else ("num_reslayerA", "num_denseA", "A_dff")
    hparams = {name: getattr(config, ours) for name, ours in HPARAMS.items() if name not in left_out}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in to_published(model.state_dict()).items()}
    saved = {"model_state_dict": state, "optimizer_state_dict": None, "loss": 0.0, "accuracy": 0.0}
    # The numbers are put in place first: weights are never there with the numbers of others, or without.
    with new_file(path, overwrite) as weights, new_file(path.with_suffix(".hparams.json"), overwrite) as numbers:
        with weights.open("wb") as file:
            torch.save(saved, file)
        numbers.write_text(json.dumps(hparams, indent=1) + "\n", encoding="utf-8")


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Transformers draws one for every load and save, however small."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


def _fill(
    kind: type[AnyModel],
    config: PldrConfig,
    tensors: dict[str, Tensor],
    dtype: torch.dtype | None,
    path: Path,
    published: bool,
) -> AnyModel:
    """The model with these tensors, once each of them has proved to be what the configuration expects."""
    if config.num_hidden_layers > len(tensors):  # before so many are built, if only to find them missing
        raise ValueError(
            f"{path}: num_hidden_layers is {config.num_hidden_layers}, but there are {len(tensors)} tensors, expected "
            "some of every layer"
        )
    with no_init_weights(), torch.device("meta"):
        model = kind(config)
    expected = model.state_dict()

    def spelled(name: str) -> str:
        if not published:
            return name
        return VALUES if name.endswith(".operator.curvature") else to_released(name)

    both = [(spelled(name), tensor, expected[name]) for name, tensor in tensors.items() if name in expected]
    problems = {
        "missing": [spelled(name) for name in expected if name not in tensors],
        "unexpected": [spelled(name) for name in tensors if name not in expected],
        "wrong": [
            f"{name} is {list(tensor.shape)}, expected {list(model_tensor.shape)}"
            for name, tensor, model_tensor in both
            if tensor.shape != model_tensor.shape
        ]
        + [
            f"{name} is {str(tensor.dtype).removeprefix('torch.')}, expected floating point"
            for name, tensor, model_tensor in both
            if model_tensor.is_floating_point() and not tensor.is_floating_point()
        ],
    }
    if any(problems.values()):
        raise ValueError(
            f"{path}: " + "; ".join(f"{kind}: {first(names)}" for kind, names in problems.items() if names)
        )
    # Copies: tensors of a safetensors file are views of the file itself, which may change while the model lives.
    copies = {
        name: tensor.to(dtype=dtype if tensor.is_floating_point() else None, copy=True)
        for name, tensor in tensors.items()
    }
    model.load_state_dict(copies, assign=True)
    model.config.dtype = model.dtype
    if (path / "generation_config.json").is_file():
        model.generation_config = _read_generation(path / "generation_config.json")
    return model.eval()


def _read_generation(file: Path) -> GenerationConfig:
    settings = read_json(file, "it is there")
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        ids = settings.get(name)
        for token in ids if isinstance(ids, list) else [ids]:
            if token is not None and type(token) is not int:
                raise ValueError(f"{file}: {name} is {json.dumps(ids)[:80]}, expected whole numbers")
    try:
        return GenerationConfig.from_pretrained(file.parent)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        # Transformers compares and calls what it reads before it asks of which kind that is.
        raise ValueError(f"{file}: {' '.join(str(error).split())}; expected settings of generation") from error


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory, expected a checkpoint")
    return path


def _read_directory(path: Path) -> tuple[PldrConfig, dict[str, Tensor], bool]:
    """Configuration, tensors by our name, and whether the directory spells them the published way."""
    config, tensors = _read_config(path / "config.json"), read_safetensors(path)
    if isinstance(config, PldrllmConfig):
        return config.to_plga(), _ours(path, tensors), True
    return config, tensors, False


def _read_config(file: Path) -> PldrConfig:
    settings = read_json(file, "a checkpoint directory has one")
    kinds = {PldrConfig.model_type: PldrConfig, PldrllmConfig.model_type: PldrllmConfig}
    kind = kinds.get(str(settings.get("model_type")))
    if kind is None:
        raise ValueError(f"{file}: model_type is {settings.get('model_type')!r}, expected one of {', '.join(kinds)}")
    return _configure(file, kind, settings)


def _configure(file: Path, kind: type[PldrConfig], settings: dict[str, Any]) -> PldrConfig:
    try:
        return kind.from_dict(settings)
    except (StrictDataclassError, ValueError, TypeError) as error:
        # The first lines of a StrictDataclassError say which validator spoke; the last one says what is wrong.
        raise ValueError(f"{file}: {str(error).splitlines()[-1].strip().removeprefix('ValueError: ')}") from error


def _checked(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, by published names all."""
    unknown = [key for key in tensors if to_released(from_released(key)) != key]
    if unknown:
        raise ValueError(f"{path}: unexpected: {first(unknown)}")
    return tensors


def _ours(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a published checkpoint by our names."""
    try:
        ours, unread = from_published(_checked(path, tensors))
    except ValueError as error:
        raise ValueError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error
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
        said = read_json(hparams, "the checkpoint has one")
        shape["max_seq_len"] = said.get("max_seq_len", PUBLISHED_CONTEXT)
        for name in shape.keys() & said.keys():
            if said[name] != shape[name]:
                raise ValueError(f"{hparams}: {name} is {said[name]}, expected {shape[name]} as in {path.name}")
    fields: dict[str, Any] = {HPARAMS[name]: value for name, value in shape.items()}
    if shape["input_vocab_size"] != PUBLISHED_VOCABULARY:
        # Its tokenizer is not the published one, so which ids are special is not known here.
        fields |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    fields["operator"] = "constant" if VALUES in state else "learned"
    return _configure(path, PldrConfig, fields), _ours(path, state), True
