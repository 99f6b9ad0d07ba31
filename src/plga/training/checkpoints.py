"""Checkpoints of a training run: each there whole or not at all, and alike however many processes wrote it.

``checkpoint-N`` is a checkpoint of the model that anything here loads, and beside it what the next step depends on:
the optimizer's state, the random numbers of each process, the position in the data, the guards.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plga.model.atomic import new_directory
from plga.model.files import first, read_json, read_safetensors, read_safetensors_file

TRAINER_STATE = "trainer_state.json"
_RUN = "run.json"
_SEAL, _TRAINER = "seal", "trainer_state"  # digests in it: of itself, and of the file beside it
_REMEDY = "; delete the checkpoint to go on from the one before"
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}  # of AdamW
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Hold the folder of a run, and clear away what a killed run left unfinished in it.

    Raises:
        ValueError: another process holds it.
        OSError: the folder cannot be made.
    """
    output.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(output / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{output}: another run is writing there; choose another logging.output") from None
        for leftover in output.glob(".*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def newest(output: Path) -> Path | None:
    """The checkpoint of the latest step in a run's folder; None where there is none."""
    found = _all(output)
    return found[-1] if found else None


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Whole tensors of a model by their names, on the CPU of process 0; sharded ones are gathered by all processes.

    One that is tied to another is left out: it is the same.
    """
    tensors: dict[str, Any] = get_model_state_dict(model, options=_FULL)
    return {name: tensor for name, tensor in tensors.items() if name not in _tied(model)}


def write_model(
    directory: Path, model: PreTrainedModel, tensors: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write ``tensors`` as a checkpoint of ``model``, which lends its configuration."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    save_file({k: v.contiguous() for k, v in tensors.items()}, directory / "model.safetensors", {"format": "pt"})
    tokenizer.save_pretrained(directory)


def save(
    output: Path,
    step: int,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    tokenizer: PreTrainedTokenizerBase,
    own: dict[str, Any],
    shared: dict[str, Any],
    trainer_state: str,
    keep: int,
) -> None:
    """Write ``checkpoint-<step>`` and let go of the oldest ones beyond ``keep``; called by all processes together.

    Args:
        own: of this process, JSON-able: its position in the data.
        shared: of the run, JSON-able.
        trainer_state: JSON of Transformers' TrainerState.

    Raises:
        OSError: a full disk, and whatever else the file system says; the checkpoints before stay.
    """
    tensors = weights(model)
    states: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=_FULL)
    moments = {
        f"{name}.{key}": value for name, state in states.get("state", {}).items() for key, value in state.items()
    }
    of_all = gathered((own, _random_state()))
    error: OSError | None = None
    if _rank() == 0 and not (target := output / f"checkpoint-{step}").is_dir():
        try:
            with new_directory(target, overwrite=False) as directory:
                write_model(directory, model, tensors, tokenizer)
                save_file({k: v.contiguous() for k, v in moments.items()}, directory / "optimizer.safetensors")
                random = {f"{r}.{name}": t for r, (_, states) in enumerate(of_all) for name, t in states.items()}
                save_file(random, directory / "random.safetensors")
                (directory / TRAINER_STATE).write_text(trainer_state, encoding="utf-8")
                run = {**shared, "processes": [o for o, _ in of_all], _TRAINER: _digest(trainer_state)}
                run = json.loads(json.dumps(run))  # as it will be read
                written = json.dumps({**run, _SEAL: _seal(run)}, indent=1)
                (directory / _RUN).write_text(written + "\n", encoding="utf-8")
            for old in _all(output)[:-keep]:
                remove(old)
        except OSError as failed:
            error = failed
    # Process 0 writes; the others must not train on as if it had.
    if (failed_on_0 := gathered(error)[0]) is not None:
        raise failed_on_0


def step_of(checkpoint: Path) -> int:
    """Steps that the run had taken."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def history(checkpoint: Path) -> list[dict[str, Any]]:
    """The log lines, looks and events up to a checkpoint, each with its ``step``.

    Raises:
        FileNotFoundError, ValueError: not a whole checkpoint of a training run.
    """
    entries: list[dict[str, Any]] = read_json(checkpoint / TRAINER_STATE, "a checkpoint of a training run has one")[
        "log_history"
    ]
    return entries


def remove(directory: Path) -> None:
    """Delete a directory of ours so that nobody ever finds half of it."""
    hidden = directory.with_name(f".{directory.name}.old.tmp")
    directory.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def read_run(path: Path) -> dict[str, Any]:
    """What ``shared`` and ``own`` were when the checkpoint was saved; ``own`` of all, under ``processes``.

    Raises:
        FileNotFoundError, ValueError: not a whole checkpoint of a training run, or one that was edited since.
    """
    run = read_json(path / _RUN, "a checkpoint of a training run has one")
    if run.pop(_SEAL, None) != _seal(run):
        raise ValueError(f"{path / _RUN}: changed since it was written{_REMEDY}")
    state = path / TRAINER_STATE
    read_json(state, "a checkpoint of a training run has one")
    if _digest(state.read_text(encoding="utf-8")) != run.pop(_TRAINER, None):
        raise ValueError(f"{state}: changed since it was written{_REMEDY}")
    return run


def restore_model(path: Path, model: nn.Module) -> None:
    """Put a checkpoint's tensors into a model, sharded or not.

    Raises:
        FileNotFoundError, ValueError: a missing or damaged file, or tensors of another model.
    """
    tensors: dict[str, Any] = dict(read_safetensors(path))
    expected = {name: tensor for name, tensor in model.state_dict().items() if name not in _tied(model)}
    if differing := sorted(expected.keys() ^ tensors.keys()):  # what is missing would stay as it was initialized
        raise ValueError(f"{path}: tensors of another model, which differ in {first(differing)}{_REMEDY}")
    for name, tensor in expected.items():
        if tensors[name].dtype != tensor.dtype:
            raise ValueError(f"{path}: {name} is {tensors[name].dtype}, expected {tensor.dtype}{_REMEDY}")
    try:
        # Not strict about the names: they are right, but for those that are tied to others.
        set_model_state_dict(model, tensors, options=StateDictOptions(full_state_dict=True, strict=False))
    except RuntimeError as error:
        raise ValueError(f"{path}: tensors of another model ({' '.join(str(error).split())})") from error


def restore_optimizer(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's moments into an optimizer over ``model``; its settings stay those it was made with.

    Raises:
        FileNotFoundError, ValueError: a missing or damaged file, or moments of another model.
    """
    file = path / "optimizer.safetensors"
    state: dict[str, Any] = {}
    for name, tensor in read_safetensors_file(file).items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(parameter, {})[key] = tensor
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    differing = sorted(state.keys() ^ trained.keys()) or [
        name
        for name, parameter in trained.items()
        if state[name].keys() != _MOMENTS or any(state[name][k].shape != parameter.shape for k in _MOMENTS - {"step"})
    ]
    if differing:  # the optimizer would begin anew there, and say nothing
        raise ValueError(f"{file}: differs from the model in {first(differing)}, expected its moments{_REMEDY}")
    groups = get_optimizer_state_dict(model, optimizer)["param_groups"]
    set_optimizer_state_dict(
        model,
        optimizer,
        {"state": state, "param_groups": groups},
        options=StateDictOptions(full_state_dict=True),
    )


def restore_random(path: Path) -> None:
    """Go on with this process's random numbers; a process that the checkpoint does not know keeps its own.

    Raises:
        FileNotFoundError, ValueError: a missing or damaged file.
    """
    file = path / "random.safetensors"
    states = read_safetensors_file(file)
    now = torch.get_rng_state()
    if "0.cpu" not in states or any(
        name.endswith(".cpu") and (state.shape, state.dtype) != (now.shape, now.dtype) for name, state in states.items()
    ):
        raise ValueError(f"{file}: no states of random numbers{_REMEDY}")
    if (cpu := states.get(f"{_rank()}.cpu")) is not None:
        torch.set_rng_state(cpu)
    if torch.cuda.is_available() and (cuda := states.get(f"{_rank()}.cuda")) is not None:
        torch.cuda.set_rng_state(cuda)


def whole(tensor: Tensor) -> Tensor:
    """A tensor as it is, or gathered where it is sharded; called by all processes together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gathered(value: Any) -> list[Any]:
    """``value`` of each process, in all of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _tied(model: Any) -> set[str]:
    """Names of tensors that are others by another name."""
    return set(model.all_tied_weights_keys)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _seal(run: dict[str, Any]) -> str:
    return _digest(json.dumps(run, sort_keys=True))


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _random_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _all(output: Path) -> list[Path]:
    """Checkpoints in a folder, oldest first."""
    matches = {path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in output.glob("checkpoint-*")}
    return sorted((p for p, m in matches.items() if m and p.is_dir()), key=step_of)
