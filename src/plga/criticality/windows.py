"""Validation windows of a run, by what has looked at them before, and a model measured on some."""

import torch
from torch import Tensor

from plga.criticality.order_parameter import Deductive, deductive_outputs, fluctuation
from plga.model.loss import IGNORED
from plga.model.modeling import PldrForCausalLM
from plga.training.config import TrainSettings
from plga.training.data.dataset import Data


def probe(data: Data, settings: TrainSettings) -> dict[str, Tensor]:
    """Windows on which the run's own looks take the order parameter, ``input_ids`` [N, S] and ``labels`` among them."""
    return _windows(data, settings, 0)


def unseen(data: Data, settings: TrainSettings) -> dict[str, Tensor]:
    """As many others, which neither the order parameter nor the validation loss of the run's looks has seen.

    Raises:
        ValueError: fewer validation windows than that.
    """
    return _windows(data, settings, 2)


def _windows(data: Data, settings: TrainSettings, skipped: int) -> dict[str, Tensor]:
    count = settings.logging.probe_windows
    windows = data.validation((skipped + 1) * count)
    return {name: tensor[skipped * count :] for name, tensor in windows.items()}


@torch.no_grad()
def measured(model: PldrForCausalLM, windows: dict[str, Tensor]) -> tuple[float, float]:
    """Order parameter of G_LM (RMS-normalized) over windows, and the block loss there, nats a token.

    One window at a time, as many as there are: [N, S] each of ``input_ids``, ``labels``, and ``attention_mask`` where
    some of it is padding.
    """
    outputs, total, count = [], 0.0, 0
    for start in range(len(windows["labels"])):
        part = {name: tensor[start : start + 1].to(model.device) for name, tensor in windows.items()}
        outputs.append(deductive_outputs(model, part["input_ids"], part.get("attention_mask")))
        targets = part.pop("labels")
        real = int((targets != IGNORED).sum())
        total += float(model(**part, next_tokens=targets, use_cache=False).loss) * real
        count += real
    together = Deductive(*(torch.cat(tensors) for tensors in zip(*outputs, strict=True)))
    return fluctuation(together.curvature), total / count
