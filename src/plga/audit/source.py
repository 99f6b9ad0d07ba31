"""What is to be audited, read from files, with the hashes that say which files these were."""

import hashlib
import json
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import plga
from plga.audit.record import PromptsRecord, Settings, Source
from plga.audit.subject import Subject
from plga.audit.visits import dtype_name
from plga.collapse.prompts import digest, neutral_prompts
from plga.collapse.source import operator_of_file
from plga.criticality.prompts import read_prompts
from plga.model.checkpoint import load_model
from plga.model.digests import digest_file
from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer, name_special_tokens

_PACKAGES = ("torch", "transformers", "numpy")
_SHORTEST = 2  # tokens: one to read, one to predict


@dataclass(frozen=True)
class Task:
    """A subject, and what ``audit.json`` says of it."""

    subject: Subject
    source: Source
    prompts: PromptsRecord | None
    settings: Settings

    @property
    def identity(self) -> str:
        """SHA-256 of all that the figures depend on: finished sections of another identity are of another audit."""
        parts = (self.source, self.prompts, self.settings)
        everything = [part and part.model_dump() for part in parts] + [versions(), environment()]
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def of_checkpoint(
    checkpoint: Path, prompts: Path | None, tokenizer: Path | None, dtype: torch.dtype, seed: int
) -> Task:
    """A model and its prompts.

    Args:
        checkpoint: of any format that ``load_model`` reads.
        prompts: a text file with a prompt a line; None: eight neutral ones.
        tokenizer: None: the one beside the checkpoint.

    Raises:
        ValueError: another architecture, a weight that is not finite, or a prompt of other than 2 tokens up to the
            context.
        OSError: missing or unreadable.
    """
    files = _digests(checkpoint)  # before it is loaded: a change in between shows in neither half
    model = load_model(checkpoint, dtype)
    _require_finite(checkpoint, model)
    config = model.config
    text = load_tokenizer(tokenizer or checkpoint, config.vocab_size)
    name_special_tokens(model, text)
    rows, origin = _prompts(text, config.max_position_embeddings, prompts)
    shape: dict[str, int | str] = {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "width": config.head_dim,
        "parameters": model.num_parameters(),
        "context": config.max_position_embeddings,
        "operator": config.operator,
    }
    return Task(
        Subject(model, tuple(rows), seed=seed),
        Source(kind="checkpoint", name=checkpoint.resolve().name, files=files, shape=shape),
        PromptsRecord(origin=origin, tokens=[len(row) for row in rows], sha256=digest(rows)),
        _settings(seed, dtype),
    )


def of_operators(file: Path, seed: int) -> Task:
    """Operators without a model, as :func:`plga.collapse.source.operator_of_file` reads them.

    Raises:
        ValueError, OSError: as there.
    """
    files = _digests(file)
    operators = operator_of_file(file)
    layers, heads, width, _ = operators.shape
    wide = operators.to(torch.promote_types(operators.dtype, torch.float32))
    shape: dict[str, int | str] = {"layers": layers, "heads": heads, "width": width}
    source = Source(kind="operators", name=file.name, files=files, shape=shape)
    return Task(Subject(operators=wide, seed=seed), source, None, _settings(seed, wide.dtype))


def of_nothing(seed: int) -> Task:
    """For sections that need no subject."""
    source = Source(kind="nothing", name="no checkpoint", files={}, shape={})
    return Task(Subject(seed=seed), source, None, _settings(seed, torch.float32))


def versions() -> dict[str, str]:
    """Versions that figures may depend on."""
    return {
        "plga": plga.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def environment() -> dict[str, str]:
    """The machine, as far as figures may depend on it."""
    return {"system": platform.system(), "machine": platform.machine(), "cpu": torch.backends.cpu.get_cpu_capability()}


def _require_finite(checkpoint: Path, model: PldrForCausalLM) -> None:
    """Raise ValueError on the first tensor with an entry that is not finite: every figure would be of that entry."""
    for name, tensor in model.state_dict().items():
        if wrong := int((~tensor.isfinite()).sum()):
            raise ValueError(
                f"{checkpoint}: {name} has {wrong} of {tensor.numel()} entries that are not finite in "
                f"{dtype_name(tensor.dtype)}, expected numbers"
            )


def _settings(seed: int, dtype: torch.dtype) -> Settings:
    return Settings(seed=seed, dtype=dtype_name(dtype), threads=torch.get_num_threads())


def _digests(path: Path) -> dict[str, str]:
    """SHA-256 by name of a file, or of weights and configuration in a folder."""
    if path.is_dir():
        files = [path / "config.json", *sorted(path.glob("*.safetensors"))]
    else:
        files = [path, path.with_suffix(".hparams.json")] if path.suffix == ".pth" else [path]
    return {file.name: digest_file(file)["sha256"] for file in files if file.is_file()}


def _prompts(tokenizer: PreTrainedTokenizerFast, context: int, file: Path | None) -> tuple[list[Tensor], str]:
    """Prompts as token ids, [S_i], 2 <= S_i <= context, and where they are from.

    The same prompt counts once: what is measured over prompts would find that it does not depend on them.
    """
    if file is None:
        # Half of the context, so that there is room to continue them; half of the calibrating ones, of either kind.
        neutral = neutral_prompts(tokenizer, max(_SHORTEST, context // 2))
        return neutral.calibration[::2], neutral.origin
    rows: dict[tuple[int, ...], Tensor] = {}
    for number, line in enumerate(read_prompts(file, least=1), start=1):
        ids = tokenizer(line, return_tensors="pt", add_special_tokens=False, verbose=False).input_ids[0].long()
        if not _SHORTEST <= len(ids) <= context:
            raise ValueError(
                f"{file}: the length of prompt {number} is {len(ids)}, expected {_SHORTEST} to {context} tokens, "
                "the context"
            )
        rows.setdefault(tuple(ids.tolist()), ids)
    return list(rows.values()), file.name
