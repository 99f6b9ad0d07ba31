"""The runtime guard of a collapsed checkpoint: its settings from measurement, and its tensors beside the weights.

What it does while a text is written is told in :mod:`plga.model.guard`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plga.collapse.fidelity import decode
from plga.model.atomic import new_file
from plga.model.checkpoint import load_model
from plga.model.files import read_json
from plga.model.guard_settings import GuardSettings
from plga.model.guard_tensors import GUARD_FILE, attach, operator_tensors, recomputing, save_operators
from plga.model.modeling import PldrForCausalLM

TOLERANCE = 1e-3


@torch.no_grad()
def measure_guard(
    learned: PldrForCausalLM,
    frozen: PldrForCausalLM,
    prompts: Tensor,
    new_tokens: int,
    *,
    every: int = 64,
    margin_factor: float = 2.0,
    tolerance: float = TOLERANCE,
) -> GuardSettings:
    """Settings with the logit deviation of ``frozen`` from ``learned`` on some prompts and their continuations.

    A *measurement* on these texts: on others the deviation may be larger, which is what the guard is for.

    Args:
        learned: recomputes its operator at each step.
        frozen: the same with a constant operator.
        prompts: [N, S], none of it padding.
        new_tokens: greedy tokens of ``learned`` after each prompt, at each of which logits are compared, >= 1.
        every, margin_factor, tolerance: as in GuardSettings.

    Raises:
        ValueError: settings out of bounds.
    """
    decoding = decode(learned, prompts, new_tokens, "recompute")
    # A constant is prefix-consistent: one pass over each text holds its logits of every step.
    text = torch.cat([prompts, decoding.tokens[:, :-1]], dim=1)
    deviation = 0.0
    for row, logits in zip(text.split(1), decoding.logits, strict=True):
        own = frozen(row, use_cache=False, logits_to_keep=new_tokens).logits[0]
        deviation = max(deviation, float((own - logits).abs().max()))
    return GuardSettings(every, margin_factor, deviation, tolerance)


def attach_guard(frozen: PldrForCausalLM, learned: PldrForCausalLM, settings: GuardSettings | dict[str, Any]) -> None:
    """Guard ``frozen`` from here on, in this process and in what ``save_pretrained`` and ``save_model`` write of it.

    Args:
        frozen: with a constant operator.
        learned: the model that it came from; its operators are shared, not copied.
        settings: GuardSettings, or the same as plain data.

    Raises:
        ValueError: wrong settings, or operators that do not fit.
    """
    read = GuardSettings.read(settings)
    attach(frozen, _operators(learned))
    frozen.generation_config.guard = read.to_dict()


def write_guard(learned: PldrForCausalLM, folder: str | Path, settings: GuardSettings | dict[str, Any]) -> None:
    """Add a guard to a collapsed checkpoint: ``guard.safetensors``, and ``guard`` in ``generation_config.json``.

    Each file is written whole or not at all, the tensors first: settings are never there without them.

    Args:
        learned: the model that the checkpoint came from.
        folder: of the checkpoint, in our format and with a constant operator; a guard there is replaced.
        settings: GuardSettings, or the same as plain data.

    Raises:
        ValueError: wrong settings, a checkpoint that is not collapsed, or one that came from another model.
        OSError: a file that cannot be read or written.
    """
    read, folder = GuardSettings.read(settings), Path(folder)
    frozen = load_model(folder, dtype=None)
    recomputing(frozen, _operators(learned), folder)
    own = learned.state_dict()
    for name, tensor in frozen.state_dict().items():
        if ".operator." not in name and not torch.equal(tensor, own[name].to(tensor.device, tensor.dtype)):
            raise ValueError(
                f"{folder}: {name} is not that of the learned model, expected the model it was frozen from"
            )
    file = folder / "generation_config.json"
    generation = read_json(file, "a guard is set there") if file.is_file() else {}
    generation.pop("_from_model_config", None)  # with it, Transformers would leave the guard out on loading
    with new_file(folder / GUARD_FILE, overwrite=True) as tensors:
        save_operators(learned, tensors)
    with new_file(file, overwrite=True) as settings_file:
        text = json.dumps({**generation, "guard": read.to_dict()}, indent=2, sort_keys=True)
        settings_file.write_text(text + "\n", encoding="utf-8")


def require_guardable(learned: PldrForCausalLM) -> None:
    """Raise ValueError unless a guard can rebuild the operators: those of one Gram of the whole prefix."""
    if learned.config.operator != "learned" or learned.config.gram != "global":
        raise ValueError(
            f"the operator of the model to guard with is {learned.config.operator} with a {learned.config.gram} Gram, "
            "expected learned with a global one"
        )


def _operators(learned: PldrForCausalLM) -> dict[str, Tensor]:
    require_guardable(learned)
    return operator_tensors(learned)
