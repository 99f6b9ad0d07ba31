"""The central phenomenon of arXiv:2608.10288 on a laptop: a small PLDR-LLM trains, its operator stops depending on
the input, is frozen, and writes the same tokens faster. A measurement, made anew by every run."""

import copy
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from plga.collapse.fidelity import compare, decode, join
from plga.collapse.freeze import freeze_on
from plga.criticality.order_parameter import Deductive, deductive_outputs, fluctuation
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.ops.spectrum import singular_values
from plga.training.data.standard_library import standard_library
from plga.training.data.tokenizer import SPECIAL_TOKENS, train_tokenizer
from plga.training.data.windows import Windows, pack
from plga.training.loop import Trainer
from plga.training.objective import next_token_loss
from plga.training.recipe import Recipe

COLLAPSED = 1e-4  # G fluctuation below which a run is called collapsed
_EVALUATE_EVERY = 25
# Below the resolution of float32 a fluctuation is rounding, and a smaller one is not a steadier operator.
_RESOLUTION = torch.finfo(torch.float32).eps
_SAVE_EVERY = 100
_WINDOWS, _PROMPT_COUNT, _PROMPT_LENGTH, _NEW_TOKENS = 16, 8, 32, 64

RECIPE = Recipe(learning_rate=1.2e-2, warmup=150, steps=300, stop=300, batch=8)


@dataclass(frozen=True)
class Settings:
    """What the demo trains and how; the defaults are the documented five-seed setting."""

    seed: int = 0
    recipe: Recipe = RECIPE
    vocab_size: int = 2048
    hidden_size: int = 128
    num_attention_heads: int = 4
    num_hidden_layers: int = 2
    metric_intermediate_size: int = 85
    num_metric_units: int = 24
    context: int = 256

    def config(self) -> PldrConfig:
        """The model of these settings."""
        return PldrConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            num_hidden_layers=self.num_hidden_layers,
            metric_intermediate_size=self.metric_intermediate_size,
            num_metric_units=self.num_metric_units,
            max_position_embeddings=self.context,
            pad_token_id=SPECIAL_TOKENS.index("<pad>"),
            bos_token_id=SPECIAL_TOKENS.index("<bos>"),
            eos_token_id=SPECIAL_TOKENS.index("<eos>"),
        )


class Evaluation(NamedTuple):
    """One look at a run: after ``step`` steps, the mean loss since the last look, G's fluctuation on the probe."""

    step: int
    loss: float
    learning_rate: float
    order_parameter: float


class Outcome(NamedTuple):
    """All that a finished demo leaves: the chosen model, its frozen copy, the tokenizer, and what was measured."""

    model: PldrForCausalLM
    frozen: PldrForCausalLM
    tokenizer: PreTrainedTokenizerFast
    report: dict[str, Any]


def run(
    settings: Settings,
    state_file: Path,
    on_stage: Callable[[str], None] = lambda stage: None,
    on_step: Callable[[Trainer, Evaluation | None], None] = lambda trainer, last: None,
    on_evaluation: Callable[[Evaluation], None] = lambda evaluation: None,
) -> Outcome:
    """Train, choose the checkpoint with the steadiest operator, freeze it, and measure both.

    Args:
        settings: see Settings.
        state_file: the training state is kept here while it runs, and an interrupted run resumes from it.
        on_stage: called with a line for people as each stage begins.
        on_step: called after each training step with the trainer and the last evaluation.
        on_evaluation: called with each evaluation.

    Raises:
        ValueError: impossible settings, or a state file of another run.
        FloatingPointError: a non-finite loss or operator, with the step.
    """
    clock = _Clock()
    on_stage("reading the standard library's sources, training a tokenizer")
    texts = list(standard_library())
    tokenizer = train_tokenizer(texts, settings.vocab_size, settings.context)
    windows = Windows(pack(texts, tokenizer), settings.context)
    clock.lap("data")

    on_stage(f"training: {settings.recipe.stop} steps of {settings.recipe.batch} x {settings.context} tokens")
    torch.manual_seed(settings.seed)
    model = PldrForCausalLM(settings.config())
    # On the probe the checkpoint is chosen, on the other windows it is measured, so nothing reported was selected.
    probe, measured_on, prompts = windows.held_out(_WINDOWS, _WINDOWS, _PROMPT_COUNT)
    trainer = Trainer(model, windows, settings.recipe, settings.seed, state_file)
    history, chosen = _train(trainer, probe[:, :-1], on_step, on_evaluation)
    clock.lap("training")

    on_stage(f"measuring the checkpoint of step {chosen.step} on other windows")
    model.eval()
    deductive = deductive_outputs(model, measured_on[:, :-1])
    frozen, _ = freeze_on(model, probe[:, :-1])
    with torch.no_grad():
        losses = {
            "learned": float(next_token_loss(model, measured_on)),
            "constant": float(next_token_loss(frozen, measured_on)),
        }
    decoding = _decode(model, frozen, prompts[:, :_PROMPT_LENGTH])
    clock.lap("measuring")

    fluctuations = {name: fluctuation(x) for name, x in _named(deductive)}
    report = {
        "collapsed": fluctuations["G_LM"] < COLLAPSED,
        "settings": asdict(settings),
        "parameters": model.num_parameters(),
        "training": [evaluation._asdict() for evaluation in history],
        "chosen": chosen._asdict(),
        "windows": {"chosen_on": _WINDOWS, "measured_on": _WINDOWS},
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
    return Outcome(model, frozen, tokenizer, report)


def _train(
    trainer: Trainer,
    probe: Tensor,
    on_step: Callable[[Trainer, Evaluation | None], None],
    on_evaluation: Callable[[Evaluation], None],
) -> tuple[list[Evaluation], Evaluation]:
    """Train to the end, look every few steps, and leave the model at the look with the smallest order parameter.

    Of looks that float32 cannot tell apart the latest is taken: it has learned longest.
    """
    history = [Evaluation(*row) for row in trainer.extra.get("history", [])]  # type: ignore[attr-defined]
    best_weights = trainer.extra.get("best")
    for _ in range(trainer.step, trainer.recipe.stop, _EVALUATE_EVERY):
        last = trainer.step
        trainer.run(last + _EVALUATE_EVERY, lambda t: on_step(t, history[-1] if history else None))
        with trainer.naming_step():
            curvature = deductive_outputs(trainer.model, probe).curvature
        recent = trainer.losses[last:]
        evaluation = Evaluation(
            trainer.step,
            sum(recent) / len(recent),
            trainer.recipe.learning_rate_at(trainer.step - 1),
            fluctuation(curvature),
        )
        history.append(evaluation)
        on_evaluation(evaluation)
        if _steadiest(history) is evaluation:
            best_weights = copy.deepcopy(trainer.model.state_dict())
        if trainer.step % _SAVE_EVERY == 0:
            trainer.save(history=[tuple(e) for e in history], best=best_weights)
    assert best_weights is not None
    trainer.model.load_state_dict(best_weights)
    return history, _steadiest(history)


def _steadiest(history: list[Evaluation]) -> Evaluation:
    return min(reversed(history), key=lambda e: max(e.order_parameter, _RESOLUTION))


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
