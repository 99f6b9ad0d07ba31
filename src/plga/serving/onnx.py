"""A constant-mode model as an ONNX graph with its KV-cache as inputs and outputs."""

import contextlib
import importlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from plga.model.atomic import new_file
from plga.model.cache import PldrCache, PldrCacheLayer
from plga.model.modeling import PldrForCausalLM

_LARGEST = 2**31 - 2**24  # bytes of tensors: a protobuf, and so an ONNX file, ends at 2 GiB, and the graph needs some


class _Step(nn.Module):
    """The model as a function of tensors alone."""

    def __init__(self, model: PldrForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """[B, S], [B, P + S] and keys and values [B, H, P, d] of every layer → logits and keys and values, P + S."""
        cache = PldrCache(self.model.config)
        for layer, (keys, values) in zip(cache.layers, past, strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        known, new = past[0][0].shape[2], input_ids.shape[1]
        positions = (attention_mask.cumsum(dim=-1) - 1).clamp(min=0)[:, -new:]
        causal = torch.arange(known + new)[None, :] <= torch.arange(new)[:, None] + known
        seen = causal[None] & attention_mask.bool()[:, None, :]
        # The smallest number, not -inf: a row of left padding sees nothing, and its NaN would reach the rows after it.
        mask = torch.where(seen, 0.0, torch.finfo(self.model.dtype).min)[:, None].to(self.model.dtype)
        outputs = self.model(input_ids, attention_mask=mask, position_ids=positions, cache=cache)
        present: list[Tensor] = [outputs.logits]
        for layer in cache.layers:
            assert isinstance(layer, PldrCacheLayer) and layer.keys is not None and layer.values is not None
            present += [layer.keys, layer.values]
        return present


def export_onnx(model: PldrForCausalLM, file: str | Path, overwrite: bool = False) -> list[Path]:
    """Write an ONNX graph of one step of generation.

    Inputs ``input_ids`` [B, S], ``attention_mask`` [B, P + S] (int64; 1 at real tokens, padding on the left) and
    ``past.L.key``, ``past.L.value`` [B, H, P, d] of every layer L; outputs ``logits`` [B, S, V] and ``present.L.key``,
    ``present.L.value`` [B, H, P + S, d]. B and S are at least 1, P may be 0: the prompt is the first step.

    Args:
        model: with a constant operator, on the CPU; the graph computes in its dtype.
        file: NAME.onnx. Weights are inside; from 2 GB on, which no ONNX file holds, in NAME.onnx.data beside it.
        overwrite: replace files that are there.

    Returns:
        The files written.

    Raises:
        ValueError: a learned operator, or a tensor that is not finite.
        ModuleNotFoundError: without the packages of the extra ``export``.
        FileExistsError: a file is there and ``overwrite`` is False.
        OSError: a full disk, and whatever else the file system says.
    """
    if model.config.operator == "learned":
        raise ValueError("the operator of this model is learned, expected constant: plga collapse freezes it")
    for name, tensor in model.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} is not finite, expected finite tensors: a graph would not notice")
    _require_packages()
    file, config = Path(file), model.config
    inside = sum(t.numel() * t.element_size() for t in model.state_dict().values()) <= _LARGEST
    names = [f"{layer}.{kind}" for layer in range(config.num_hidden_layers) for kind in ("key", "value")]
    # Sizes that differ from each other and from 0 and 1, which would be taken for fixed.
    batch, past, new = 2, 3, 4
    shape = (batch, config.num_attention_heads, past, config.head_dim)
    # Each a tensor of its own: one object in two places would be one input of the graph.
    pairs = [
        (torch.zeros(shape, dtype=model.dtype), torch.zeros(shape, dtype=model.dtype))
        for _ in range(config.num_hidden_layers)
    ]
    ones = torch.ones(batch, past + new, dtype=torch.int64)
    b, s, p = Dim("batch"), Dim("new"), Dim("past")
    axes = {0: b, 2: p}
    with contextlib.ExitStack() as stack:
        # First of all: a name that is taken is known before the work is done.
        target = stack.enter_context(new_file(file, overwrite))
        data = None if inside else stack.enter_context(new_file(_data(file), overwrite))
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                _Step(model).eval(),
                (torch.ones(batch, new, dtype=torch.int64), ones, pairs),
                dynamo=True,
                verbose=False,
                input_names=["input_ids", "attention_mask", *(f"past.{name}" for name in names)],
                output_names=["logits", *(f"present.{name}" for name in names)],
                dynamic_shapes={
                    "input_ids": {0: b, 1: s},
                    "attention_mask": {0: b, 1: Dim("known")},
                    "past": [(axes, axes)] * len(pairs),
                },
            )
        assert program is not None  # dynamo=True
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{file.name}.") as folder:
            written = Path(folder, file.name)  # under its own name: a graph names the file of its weights
            program.save(written, external_data=data is not None)
            os.replace(written, target)
            if data is not None:
                os.replace(_data(written), data)
    return [file] if inside else [file, _data(file)]


def _data(file: Path) -> Path:
    return file.with_name(f"{file.name}.data")


def _require_packages() -> None:
    for name in ("onnx", "onnxscript"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise OSError(f"the package {name} is missing: pip install 'plga[export]'") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of packages that it does not need, and of deprecations inside torch."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)
