"""Section I: order parameters from independent sampled continuations (arXiv:2603.23539; arXiv:2608.10288).

Two runs continue every prompt by sampling, at temperature 1 from the whole distribution, the operator rebuilt from the
known prefix at each step (the online contract). x¹ and x² are a deductive output of the two texts, xᶜ that of the
prompt alone, which a G-cache keeps. The statistics, their names and what each pools stand at the head of
:mod:`plga.criticality.order_parameter`. All four are functions of the sums kept here, over the entries of one matrix;
adding these up over prompts gives the statistics of a layer and head, over all axes the pooled ones.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers.generation import LogitsProcessorList

from plga.audit.published import published
from plga.audit.section import NotMeasurable, Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import dtype_name, learned_visits, require_learned, room
from plga.criticality.order_parameter import SYMBOLS, deductive_outputs

_NEW_TOKENS = 16
_SOURCE = "order_parameter_source_normalization_RMSE1C_over_abs_mean"
_CHECKPOINT = "SOC-110M-5"  # whose audit is published


@dataclass(frozen=True)
class Order:
    """Sums over the d² entries of a matrix, in float64; N prompts, the first axis A, A_LM, A_P, G_LM.

    Attributes:
        squares_12, squares_1c: Σ (x¹ - x²)² and Σ (x¹ - xᶜ)², [4, N, L, H].
        difference_12: Σ (x¹ - x²), [4, N, L, H].
        sum_1: Σ x¹, [4, N, L, H].
        magnitude_1, magnitude_2: Σ abs(x), [4, N, L, H].
        squares_1: Σ x¹², [4, N, L, H].
        squares_about_mean: Σ (x¹ - mean of x¹ over the prompts)², [4, N, L, H].
        width: d, [1].
        tokens_1, tokens_2: the sampled continuations, [N, T].
    """

    squares_12: np.ndarray
    squares_1c: np.ndarray
    difference_12: np.ndarray
    sum_1: np.ndarray
    magnitude_1: np.ndarray
    magnitude_2: np.ndarray
    squares_1: np.ndarray
    squares_about_mean: np.ndarray
    width: np.ndarray
    tokens_1: np.ndarray
    tokens_2: np.ndarray


def measure(subject: Subject) -> Order:
    """Sample both runs from one seeded stream, and take the measurements.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram; fewer than two prompts; one that fills the context; or a
            non-finite deductive output or logit.
    """
    require_learned(subject)
    if len(subject.prompts) < 2:
        raise NotMeasurable("there is one prompt, and a spread over prompts needs at least 2")
    new_tokens = room(subject, _NEW_TOKENS)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subject.seed)
            tokens_1, tokens_2 = (
                torch.stack([_sampled(subject, prompt, new_tokens) for prompt in subject.prompts]) for _ in range(2)
            )
        run_1, run_2 = (_outputs(subject, tokens) for tokens in (tokens_1, tokens_2))
    except FloatingPointError as error:
        raise NotMeasurable(str(error)) from error
    cached = [torch.stack(tensors) for tensors in zip(*(v.deductive for v in learned_visits(subject)), strict=True)]
    sums = [_sums(*tensors) for tensors in zip(run_1, run_2, cached, strict=True)]
    return Order(
        **{name: torch.stack([of[name] for of in sums]).numpy() for name in sums[0]},
        width=np.array([run_1[0].shape[-1]]),
        tokens_1=tokens_1.numpy(),
        tokens_2=tokens_2.numpy(),
    )


def _sampled(subject: Subject, prompt: Tensor, new_tokens: int) -> Tensor:
    """A continuation of [S] tokens, [T]."""
    assert subject.model is not None
    ids = prompt.unsqueeze(0)
    text = subject.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        operator_mode="recompute",
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        eos_token_id=None,
        logits_processor=LogitsProcessorList([_finite]),
    )
    return text[0, len(prompt) :]


def _finite(ids: Tensor, logits: Tensor) -> Tensor:
    """A logits processor that lets finite ones through: of others no token can be drawn."""
    if not bool(logits.isfinite().all()):
        raise FloatingPointError(f"logits after {ids.shape[1]} tokens are not finite in {dtype_name(logits.dtype)}")
    return logits


def _outputs(subject: Subject, continuations: Tensor) -> list[Tensor]:
    """A, A_LM, A_P and G_LM of every prompt with its continuation, each [N, L, H, d, d]."""
    assert subject.model is not None
    texts = (torch.cat(parts) for parts in zip(subject.prompts, continuations, strict=True))
    outputs = [deductive_outputs(subject.model, text.unsqueeze(0)) for text in texts]
    return [torch.cat(tensors) for tensors in zip(*outputs, strict=True)]


def _sums(run_1: Tensor, run_2: Tensor, cached: Tensor) -> dict[str, Tensor]:
    """The sums of one deductive output; its tensors are [N, L, H, d, d], the sums [N, L, H]."""

    def total(x: Tensor) -> Tensor:
        return x.sum((-2, -1))

    x, y, kept = run_1.double(), run_2.double(), cached.double()
    # From the first prompt, so that what does not depend on the prompt gives exactly 0.
    shift = x - x[0]
    return {
        "squares_12": total((x - y).square()),
        "squares_1c": total((x - kept).square()),
        "difference_12": total(x - y),
        "sum_1": total(x),
        "magnitude_1": total(x.abs()),
        "magnitude_2": total(y.abs()),
        "squares_1": total(x.square()),
        "squares_about_mean": total((shift - shift.mean(dim=0)).square()),
    }


_RMSE_1C, _RMS, _SIGNED = "RMSE_1C / |mean|", "RMS-normalized order parameter", "symmetrized signed order parameter"
# What stands above the fraction, and its formula.
_STATISTICS = {
    "RMSE_12 / |mean|": ("squares_12", "√⟨(x¹ - x²)²⟩ / |⟨x¹⟩|"),
    _RMSE_1C: ("squares_1c", "√⟨(x¹ - xᶜ)²⟩ / |⟨x¹⟩|"),
    _RMS: ("squares_about_mean", "√⟨(x¹ - x̄)²⟩ / √⟨x¹²⟩, x̄ the mean over the prompts"),
    _SIGNED: ("difference_12", "⟨x¹ - x²⟩ / ⟨(|x¹| + |x²|) / 2⟩"),
}


def quantities(raw: Order) -> list[Quantity]:
    """Each statistic of each deductive output: pooled, and of every layer and head."""
    found = []
    for index, symbol in enumerate(SYMBOLS):
        for name, (_, formula) in _STATISTICS.items():
            pooled = float(_statistic(raw, name, index, (0, 1, 2)))
            values = _statistic(raw, name, index, (0,))
            exists = np.isfinite(values)
            over = "layer and head, prompts pooled"
            if not exists.all():
                over = f"{over}, without {int((~exists).sum())} of {exists.size} with denominator 0"
            found += [
                Quantity(
                    f"{name} of {symbol}",
                    pooled if np.isfinite(pooled) else None,
                    "pooled over layer, head and prompt",
                    formula=formula,
                    published=published(_SOURCE, _CHECKPOINT, symbol) if name == _RMSE_1C else None,
                ),
                Quantity(
                    f"{name} of {symbol}, by head",
                    spread(values[exists]) if exists.any() else None,
                    over,
                    formula=formula,
                ),
            ]
            if name == _RMS:
                found.append(
                    Quantity(
                        f"largest {name} of {symbol}",
                        float(values[exists].max()) if exists.any() else None,
                        f"maximum over {over}",
                        formula=formula,
                        published=published("order_parameter_max", f"{symbol}_rms"),
                    )
                )
    return found


def _statistic(raw: Order, name: str, index: int, axes: tuple[int, ...]) -> np.ndarray:
    """With the sums of [N, L, H] added up over ``axes``; infinite or NaN where the denominator is 0."""

    def mean(sums: np.ndarray) -> np.ndarray:
        total = sums[index].sum(axis=axes)
        return total / (sums[index].size / total.size * raw.width[0] ** 2)

    above = mean(getattr(raw, _STATISTICS[name][0]))
    if name == _SIGNED:
        below = (mean(raw.magnitude_1) + mean(raw.magnitude_2)) / 2
    else:
        above = np.sqrt(above)
        below = np.sqrt(mean(raw.squares_1)) if name == _RMS else np.abs(mean(raw.sum_1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return above / below


SECTION = Section("I", "Order parameter", "model", Order, measure, quantities)
