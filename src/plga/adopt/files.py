"""Operators of an adopted model as a file of their own, as an adapter is: the base model is not in it."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from plga.adopt.adoption import adopt_with
from plga.adopt.classes import is_adopted, operators
from plga.adopt.configuration import base_digest
from plga.adopt.settings import OperatorSettings
from plga.model.atomic import new_file
from plga.model.files import first, read_safetensors_file

FORMAT = "plga operators 1"


def save_operators(model: PreTrainedModel, file: str | Path, overwrite: bool = False) -> None:
    """Write the operators of an adopted model, and what they belong to, as one safetensors file.

    Args:
        model: adopted.
        file: to be written, whole or not at all.
        overwrite: replace a file that is there.

    Raises:
        ValueError: ``model`` is not adopted, or is wrapped, as PEFT does.
        FileExistsError: the file exists and ``overwrite`` is False.
        OSError: a full disk, and whatever else the file system says.
    """
    if not is_adopted(model):
        raise ValueError(f"{type(model).__name__} is not adopted, so it has no operators; call plga.adopt first")
    config: Any = model.config
    if differing := sorted(operators(model).keys() ^ config.plga_layers.keys()):
        raise ValueError(
            f"{type(model).__name__}: operators are wrapped ({first(differing, 1)}), expected the adopted model, as "
            "PEFT gives it by get_base_model(), or by merge_and_unload() where modules_to_save has the operators"
        )
    metadata = {
        "format": FORMAT,
        "operator": json.dumps(config.plga_operator),
        "layers": json.dumps(config.plga_layers),
        "base_model_type": config.base_model_type,
        "base_config_sha256": base_digest(config),
    }
    with new_file(Path(file), overwrite) as temporary:
        save_file(_tensors(model), temporary, metadata=metadata)


def load_operators(model: PreTrainedModel, file: str | Path) -> PreTrainedModel:
    """Adopt ``model`` with the operators of a file.

    Args:
        model: the base model that they were trained on, not adopted.
        file: that :func:`save_operators` wrote.

    Returns:
        ``model``, adopted.

    Raises:
        ValueError: the file is none of ours, or belongs to another model (layers, heads, width, configuration): what
            differs is named, and ``model`` is as it was. And the errors of :func:`plga.adopt`.
        OSError: missing or unreadable.
    """
    file = Path(file)
    tensors = read_safetensors_file(file)
    metadata = _metadata(file)
    try:
        settings = OperatorSettings.from_dict(metadata["operator"])
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None

    def fill(adopted: PreTrainedModel) -> None:
        _require_same_model(adopted, metadata, file)
        wanted = _tensors(adopted)
        if tensors.keys() != wanted.keys():
            raise ValueError(
                f"{file}: tensors differ in {first(sorted(tensors.keys() ^ wanted.keys()))}; expected alike"
            )
        for name, tensor in wanted.items():
            if tensors[name].shape != tensor.shape:
                raise ValueError(f"{file}: {name} is {tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}")
            if not tensors[name].is_floating_point():
                raise ValueError(f"{file}: {name} is {tensors[name].dtype}, expected floating point")
            if not bool(tensors[name].isfinite().all()):
                raise ValueError(f"{file}: {name} has entries that are not finite")
        with torch.no_grad():
            for name, tensor in wanted.items():
                tensor.copy_(tensors[name])

    return adopt_with(model, settings, seed=0, fill=fill)


def _tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    return {
        f"{layer}.{name}": tensor.detach().contiguous()
        for layer, operator in operators(model).items()
        for name, tensor in operator.state_dict().items()
    }


def _metadata(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="pt") as opened:
        found = opened.metadata() or {}
    if found.get("format") != FORMAT:
        raise ValueError(f"{file}: format is {found.get('format')!r}, expected {FORMAT!r}, which plga.adopt writes")
    try:
        return {
            "base_model_type": found["base_model_type"],
            "base_config_sha256": found["base_config_sha256"],
            "operator": dict(json.loads(found["operator"])),
            "layers": {str(name): [int(n) for n in shape] for name, shape in json.loads(found["layers"]).items()},
        }
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: its metadata is damaged ({error!r}); write it again with plga.adopt") from None


def _require_same_model(adopted: PreTrainedModel, metadata: dict[str, Any], file: Path) -> None:
    """Raise ValueError unless the operators of ``file`` belong to a model like ``adopted``, saying what differs."""
    config: Any = adopted.config
    if metadata["base_model_type"] != config.base_model_type:
        raise ValueError(
            f"{file}: is for a model of type {metadata['base_model_type']!r}, but this is {config.base_model_type!r}"
        )
    theirs, ours = metadata["layers"], config.plga_layers
    if len(theirs) != len(ours):
        raise ValueError(f"{file}: is for a model of {len(theirs)} attention layers, but this one has {len(ours)}")
    if theirs.keys() != ours.keys():
        raise ValueError(f"{file}: attention layers differ in {first(sorted(theirs.keys() ^ ours.keys()))}")
    for name, (heads, width) in ours.items():
        if theirs[name] != [heads, width]:
            raise ValueError(
                f"{file}: {name} has {theirs[name][0]} heads of width {theirs[name][1]}, but in this model {heads} of "
                f"width {width}"
            )
    if metadata["base_config_sha256"] != base_digest(config):
        raise ValueError(
            f"{file}: is for a {config.base_model_type} of another configuration (SHA-256 "
            f"{metadata['base_config_sha256'][:12]}..., this model's is {base_digest(config)[:12]}...)"
        )
