"""Directories of base models and of adopted ones: read as Transformers reads them, written whole or not at all."""

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from plga.adopt.classes import is_adopted
from plga.model.atomic import check_new_directory, new_directory
from plga.model.checkpoint import no_progress_bar
from plga.model.files import first

KIND = "a causal LM"


def load(source: str) -> PreTrainedModel:
    """A causal LM as it was saved, in its own dtype and in evaluation.

    Args:
        source: a directory, or an id on the hub.

    Raises:
        ValueError, OSError: nothing there that Transformers can read as a causal LM, in one line; or weights that are
            missing from it or of another shape, which Transformers would draw at random.
    """
    model, _ = _read(source, "auto")
    return model


def load_adopted(source: str, dtype: torch.dtype | Literal["auto"] = "auto") -> PreTrainedModel:
    """An adopted model, in evaluation.

    Args:
        source: a directory, or an id on the hub.
        dtype: of its weights; ``auto``: as they were saved.

    Raises:
        ValueError, OSError: as for :func:`load`; a model that is not adopted, or tensors that it has no place for.
    """
    model, unexpected = _read(source, dtype)
    if not is_adopted(model):
        raise ValueError(f"{source}: {type(model).__name__} is not adopted, expected what plga adopt wrote")
    if unexpected:
        raise ValueError(f"{source}: {type(model).__name__} has no place for {first(unexpected)}")
    return model


def _read(source: str, dtype: torch.dtype | Literal["auto"]) -> tuple[PreTrainedModel, list[str]]:
    """A model in evaluation, and tensors of its files that it has no place for."""
    if source.startswith((".", "/")) and not Path(source).is_dir():
        raise FileNotFoundError(f"{source}: no such directory")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # what is amiss is said below, in one line
    try:
        with no_progress_bar():
            model, report = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # to be told of them, below
                trust_remote_code=False,
            )
    except Exception as error:  # configurations, pickles and safetensors each have errors of their own
        raise ValueError(f"{source}: {_first_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{source}: {type(model).__name__} lacks {first(missing)}")
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise ValueError(f"{source}: {name} has shape {list(found)}, expected {list(expected)}")
    return model.eval(), sorted(report["unexpected_keys"])


def save(model: PreTrainedModel, out: Path, tokenizer: Any, overwrite: bool) -> None:
    """Write a model, and its tokenizer if there is one, as a new directory.

    Raises:
        FileExistsError: ``out`` exists, and ``overwrite`` is False or it is no model.
        OSError: a full disk, and whatever else the file system says.
    """
    with new_directory(out, overwrite, KIND) as temporary, no_progress_bar():
        model.save_pretrained(temporary)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)


def require_new(out: Path, source: str, overwrite: bool) -> None:
    """Raise FileExistsError or ValueError unless ``out`` can be written, before anything long begins."""
    if not source:
        raise ValueError("the model is '', expected a directory or an id on the hub")
    check_new_directory(out, overwrite, KIND)
    if Path(source).is_dir() and out.resolve().is_relative_to(Path(source).resolve()):
        raise ValueError(f"--out is {out}, which is {source} or inside of it; expected another directory")


def load_tokenizer(source: str) -> Any:
    """The tokenizer beside a model, or None."""
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception:  # there may be none, and what it is does not matter to the model
        return None


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
