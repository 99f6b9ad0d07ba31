"""The central phenomenon of arXiv:2608.10288 on a laptop: a small PLDR-LLM trains, its operator stops depending on
the input, is frozen, and writes the same tokens faster. A measurement, made anew by every run."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, TrainerCallback

from plga.collapse.fidelity import compare, decode, join
from plga.collapse.freeze import freeze_on
from plga.criticality.order_parameter import Deductive, deductive_outputs, fluctuation
from plga.model.checkpoint import load_model
from plga.model.modeling import PldrForCausalLM
from plga.ops.spectrum import singular_values
from plga.training import config
from plga.training.monitor import looks_of, steadiest
from plga.training.objective import block_loss
from plga.training.run import train

COLLAPSED = 1e-4  # G fluctuation below which a run is called collapsed
_PROMPT_COUNT, _PROMPT_LENGTH, _NEW_TOKENS = 8, 32, 64


class Outcome(NamedTuple):
    """All that a finished demo leaves: the chosen model, its frozen copy, the tokenizer, and what was measured."""

    model: PldrForCausalLM
    frozen: PldrForCausalLM
    tokenizer: PreTrainedTokenizerFast
    report: dict[str, Any]


def settings(folder: Path, seed: int = 0, **optimizer: float | None) -> config.TrainSettings:
    """The ready configuration ``tiny``, which the documented five seeds ran with.

    Args:
        folder: of the training run.
        seed: of the initialization and of the data order.
        optimizer: other settings of the optimizer; None leaves one as it is.

    Raises:
        ValueError: impossible settings.
    """
    changes = {"seed": seed, **{name: value for name, value in optimizer.items() if value is not None}}
    overrides = [f"optimizer.{name}={value}" for name, value in changes.items()]
    # No tracker: the folder of the training is gone at the end.
    loaded = config.load("tiny", [*overrides, f"logging.output={folder}", "logging.report_to=[]"])
    assert isinstance(loaded, config.TrainSettings)  # of a new PLDR-LLM
    return loaded


def run(
    training: config.TrainSettings,
    on_stage: Callable[[str], None] = lambda stage: None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Outcome:
    """Train, choose the checkpoint with the steadiest operator, freeze it, and measure both.

    Args:
        training: see :func:`settings`; an interrupted run goes on from its folder.
        on_stage: called with a line for people as each stage begins.
        callbacks: of Transformers' Trainer, for progress.

    Raises:
        ValueError: impossible settings, or a folder of another run.
        FloatingPointError: a non-finite loss or operator, with the step.
    """
    clock = _Clock()
    recipe, count = training.optimizer, training.logging.probe_windows
    context = training.model.max_position_embeddings
    on_stage(f"training on the standard library's sources: {recipe.last} steps of {recipe.batch} x {context} tokens")
    trained = train(training, callbacks)
    looks = _with_losses(trained.history)
    chosen = steadiest(looks)
    clock.lap("training")

    on_stage(f"measuring the checkpoint of step {chosen['step']} on other windows")
    model = load_model(trained.output / "steadiest")
    windows = trained.data.validation(2 * count + _PROMPT_COUNT)
    # On the probe the checkpoint is chosen, on the other windows it is measured, so nothing reported was selected.
    probe, measured_on, prompts = windows["input_ids"].split([count, count, _PROMPT_COUNT])
    labels = windows["labels"][count : 2 * count]
    deductive = deductive_outputs(model, measured_on)
    frozen, _ = freeze_on(model, probe)
    with torch.no_grad():
        losses = {
            "learned": float(block_loss(model, measured_on, labels).loss),
            "constant": float(block_loss(frozen, measured_on, labels).loss),
        }
    decoding = _decode(model, frozen, prompts[:, :_PROMPT_LENGTH])
    clock.lap("measuring")

    fluctuations = {name: fluctuation(x) for name, x in _named(deductive)}
    report = {
        "collapsed": fluctuations["G_LM"] < COLLAPSED,
        "settings": training.model_dump(mode="json", exclude={"logging"}),
        "parameters": model.num_parameters(),
        "training": looks,
        "chosen": chosen,
        "windows": {"chosen_on": count, "measured_on": count},
        "fluctuation": fluctuations,
        "fluctuation_per_layer": {
            name: [fluctuation(x[:, i]) for i in range(x.shape[1])] for name, x in _named(deductive)
        },
        "rms_curvature": float(deductive.curvature.double().square().mean().sqrt()),
        "A_s2_over_s1": _spread(singular_values(deductive.generator.double())),
        "validation_loss": losses,
        "decoding": decoding,
        "seconds": clock.laps,
        "machine": {"threads": torch.get_num_threads(), "processor": platform.machine()},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    return Outcome(model, frozen, trained.data.tokenizer, report)


def _with_losses(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The looks of a run, each with the mean training loss since the look before and the last learning rate."""
    looks = looks_of(history)
    lines = [entry for entry in history if "grad_norm" in entry]
    last = 0
    for look in looks:
        total = seen = 0.0
        for before, line in zip([0, *(entry["step"] for entry in lines)], lines, strict=False):
            if last < line["step"] <= look["step"]:
                total += line["loss"] * (line["step"] - before)
                seen += line["step"] - before
                look["learning_rate"] = line["learning_rate"]
        look["loss"] = total / seen
        last = look["step"]
    return looks


def _decode(model: PldrForCausalLM, frozen: PldrForCausalLM, prompts: Tensor) -> dict[str, Any]:
    """Greedy decoding in the three modes, each against recomputing."""
    modes: dict[str, tuple[PldrForCausalLM, str | None]] = {
        "recompute": (model, "recompute"),
        "prompt": (model, "prompt"),
        "constant": (frozen, None),
    }
    for decoder, mode in modes.values():
        decode(decoder, prompts[:1], 2, mode)  # the first call of a mode pays for set-up
    # Prompt by prompt in all modes, so that whatever else the machine does meets them alike.
    by_prompt = [
        {name: decode(decoder, prompt, _NEW_TOKENS, mode) for name, (decoder, mode) in modes.items()}
        for prompt in prompts.split(1)
    ]
    runs = {name: join([decodings[name] for decodings in by_prompt]) for name in modes}
    reference = runs["recompute"]
    return {
        "prompts": len(prompts),
        "prompt_tokens": prompts.shape[1],
        "new_tokens": _NEW_TOKENS,
        "smallest_margin": float(reference.margins.min()),
        "modes": {
            name: {
                **asdict(compare(reference, run)),
                "tokens_per_second": run.tokens_per_second,
                "speedup": run.tokens_per_second / reference.tokens_per_second,
            }
            for name, run in runs.items()
        },
    }


def _named(outputs: Deductive) -> list[tuple[str, Tensor]]:
    return list(zip(("A", "A_LM", "A_P", "G_LM"), outputs, strict=True))


def _spread(singular: Tensor) -> dict[str, float]:
    ratio = singular[..., 1] / singular[..., 0]
    return {"min": float(ratio.min()), "median": float(ratio.median()), "max": float(ratio.max())}


class _Clock:
    """Wall-clock seconds of each stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage], self._last = now - self._last, now
