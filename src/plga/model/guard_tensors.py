"""The learned operators that a collapsed model dropped: kept beside its weights, for the guard alone."""

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils.hub import cached_file

from plga.model.files import first, read_safetensors_file
from plga.model.guard_settings import guarded
from plga.model.operator import ConstantOperator, LearnedOperator

GUARD_FILE = "guard.safetensors"


def operator_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Tensors of the learned operators of ``model``, by their names in it; not copied."""
    operators = [name for name, module in model.named_modules() if isinstance(module, LearnedOperator)]
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if any(name.startswith(f"{operator}.") for operator in operators)
    }


def recomputing(model: Any, tensors: dict[str, Tensor], where: object = "guard") -> Any:
    """The learned model that a collapsed one came from, on the very modules of the collapsed one but the operators.

    Args:
        model: PldrForCausalLM with a constant operator, which is left as it is.
        tensors: of the learned operators, by their names in a learned model; taken as they are, not copied.
        where: what they came from, for an error.

    Returns:
        PldrForCausalLM with a learned operator, in evaluation mode.

    Raises:
        ValueError: the operator of ``model`` is not a constant of our format, or tensors that are not those of its
            operators.
    """
    if model.config.operator != "constant" or model.config.model_type != "pldr":
        raise ValueError(
            f"{where}: the model is {model.config.model_type!r} with a {model.config.operator} operator, expected "
            "'pldr' with a constant one: nothing else has a constant to guard"
        )
    config = copy.deepcopy(model.config)
    config.operator = "learned"
    with no_init_weights(), torch.device("meta"):
        twin = type(model)(config)
    expected = operator_tensors(twin)
    problems = {
        "missing": [name for name in expected if name not in tensors],
        "unexpected": [name for name in tensors if name not in expected],
        "wrong": [
            f"{name} is {list(tensors[name].shape)} {str(tensors[name].dtype).removeprefix('torch.')}, expected "
            f"{list(tensor.shape)} floating point"
            for name, tensor in expected.items()
            if name in tensors and (tensors[name].shape != tensor.shape or not tensors[name].is_floating_point())
        ],
    }
    if any(problems.values()):
        raise ValueError(
            f"{where}: " + "; ".join(f"{kind}: {first(names)}" for kind, names in problems.items() if names)
        )
    _share(model, twin)
    twin.load_state_dict(tensors, strict=False, assign=True)
    for module in twin.modules():
        if isinstance(module, LearnedOperator):
            module.requires_grad_(False)
    return twin.eval()


def _share(source: nn.Module, target: nn.Module) -> None:
    """Put the modules of ``source`` into ``target``, down to the operators, which stay.

    The modules and not their tensors: what is moved, cast or quantized in the one is so in the other.
    """
    for name, module in source.named_children():
        if isinstance(module, ConstantOperator):
            continue
        if any(isinstance(inner, ConstantOperator) for inner in module.modules()):
            _share(module, target.get_submodule(name))
        else:
            setattr(target, name, module)


def attach(model: Any, tensors: dict[str, Tensor], where: object = "guard") -> None:
    """Give ``model`` the learned operators that its guard recomputes with; arguments and errors as ``recomputing``."""
    # In a tuple, so that the learned model is not taken for a part of the collapsed one.
    model.recomputing = (recomputing(model, tensors, where),)


def attach_from(model: PreTrainedModel, path: str | Path, **hub: Any) -> None:
    """``attach`` what lies beside the weights in ``path``, a folder or a name on the Hub, if something does.

    Raises:
        ValueError, OSError: as ``recomputing``, or a file that cannot be read.
    """
    if Path(path).is_dir() or guarded(getattr(model.generation_config, "guard", None)):
        file = cached_file(path, GUARD_FILE, _raise_exceptions_for_missing_entries=False, **hub)
        if file is not None:
            # Copies: tensors of a safetensors file are views of the file itself, which may change later.
            tensors = {name: tensor.clone() for name, tensor in read_safetensors_file(Path(file)).items()}
            attach(model, tensors, file)


def save_operators(model: nn.Module, file: Path) -> None:
    """Write the learned operators of ``model``."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in operator_tensors(model).items()}
    save_file(tensors, file, metadata={"format": "pt"})
