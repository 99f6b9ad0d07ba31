"""A collapse as a whole: measure the operator, freeze it, measure what that costs, judge, and write the checkpoint."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from plga.collapse import absorb
from plga.collapse.bound import Bound, perturbation_bound
from plga.collapse.freeze import freeze
from plga.collapse.guard import TOLERANCE, attach_guard
from plga.collapse.invariance import Invariance, distance, invariance, outputs_over
from plga.collapse.loss import Price, price
from plga.collapse.prompts import Prompts
from plga.collapse.source import chosen
from plga.collapse.steps import Steps, compare_steps, summary
from plga.collapse.verdict import INPUT_DEPENDENT, Figures, Thresholds, Verdict, verdict
from plga.criticality.order_parameter import Deductive, fluctuation
from plga.model.checkpoint import save_model
from plga.model.guard_settings import GuardSettings
from plga.model.modeling import PldrForCausalLM


@dataclass(frozen=True)
class Candidate:
    """A constant model and what it costs on the held-out prompts.

    Attributes:
        model: with the constant, or with none if it was absorbed.
        distance: RMS of G_LM minus the constant over the RMS of G_LM, over calibration and held-out prompts.
        residual: of the commutant, ‖G - Π(G)‖_F / ‖G‖_F, [L][H].
        absorbed: whether G is in the query projections.
        fidelity: every decoding step, by dtype; the first dtype is the one that is judged.
        price: in the first dtype.
        bound: in the first dtype; None for a chunked Gram, for which there is no such chain.
        verdict: from the above.
    """

    model: PldrForCausalLM
    distance: float
    residual: list[list[float]]
    absorbed: bool
    fidelity: dict[str, Steps]
    price: Price
    bound: Bound | None
    verdict: Verdict


@dataclass(frozen=True)
class Outcome:
    """What a collapse found.

    Attributes:
        prompts: that it was measured on.
        new_tokens: decoding steps a held-out prompt.
        operator: where the constant is from, in words.
        thresholds: of the verdict.
        invariance: of the learned operator over the calibration prompts.
        frozen: the constant as it is.
        projected: the nearest constant that commutes with the rotary rotations; None: not asked for.
    """

    prompts: Prompts
    new_tokens: int
    operator: str
    thresholds: Thresholds
    invariance: Invariance
    frozen: Candidate
    projected: Candidate | None

    @property
    def written(self) -> Candidate:
        """The candidate that is judged and written."""
        return self.projected or self.frozen


def collapse(
    model: PldrForCausalLM,
    prompts: Prompts,
    new_tokens: int,
    operator: tuple[str, Tensor | None] = ("mean", None),
    serving: torch.dtype = torch.bfloat16,
    thresholds: Thresholds | None = None,
    project: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Outcome:
    """Measure everything; write nothing.

    Args:
        model: with a learned operator, in float32 or wider.
        prompts: whose held-out ones have room for ``new_tokens`` in the context.
        new_tokens: >= 1.
        operator: ``("mean", None)`` or ``("first", None)`` of the calibration prompts; or where the constant is from,
            in words, and the constant itself, [L, H, d, d].
        serving: dtype in which fidelity is measured too.
        thresholds: of the verdict; None: the default ones.
        project: also measure the constant projected onto the commutant of the rotations, and let that one be written.
        on_stage: called with a line for people as each stage begins.

    Raises:
        ValueError: the operator is constant already, or a constant that does not fit.
        FloatingPointError: a non-finite deductive output or logit, naming it.
    """
    if model.config.operator != "learned":
        raise ValueError("the operator of this model is constant already, expected learned: there is nothing to freeze")
    thresholds = thresholds or Thresholds()
    on_stage(f"measuring the operator on {len(prompts.calibration)} prompts of {prompts.origin}")
    calibration = outputs_over(model, prompts.calibration)
    held_out = outputs_over(model, prompts.held_out)
    name, constant = operator
    if constant is None:
        constant = chosen(calibration.curvature, name)
        name = f"{name} over the calibration prompts" if name == "mean" else f"{name} calibration prompt"
    both = Deductive(*(torch.cat(pair) for pair in zip(calibration, held_out, strict=True)))

    def candidate(curvature: Tensor) -> Candidate:
        return _candidate(model, curvature, both.curvature, prompts.held_out, new_tokens, serving, thresholds)

    steps = len(prompts.held_out) * new_tokens
    on_stage(f"comparing {steps} decoding steps of {len(prompts.held_out)} held-out prompts")
    frozen, projected = candidate(constant), None
    if project:
        on_stage("comparing the same steps with the operator projected onto what commutes with the rotations")
        projected = candidate(absorb.projected(model, constant))
    return Outcome(prompts, new_tokens, name, thresholds, invariance(calibration), frozen, projected)


def write(
    outcome: Outcome,
    out: Path,
    dtype: torch.dtype,
    tokenizer: PreTrainedTokenizerFast,
    texts: dict[str, str],
    overwrite: bool = False,
    force: bool = False,
    guard: tuple[PldrForCausalLM, int] | None = None,
) -> None:
    """Write the constant checkpoint with its reports, whole or not at all.

    Args:
        outcome: of :func:`collapse`.
        out: new or empty, or with ``overwrite`` a checkpoint, which is replaced.
        dtype: of the weights.
        tokenizer: written beside them.
        texts: reports by file name.
        force: write an ``input-dependent`` one too.
        guard: the learned model, and ``every`` of GuardSettings, to write a runtime guard too.

    Raises:
        ValueError: the verdict is ``input-dependent`` without ``force``; it says what would be lost. Or a guard for
            what was absorbed.
        FileExistsError, OSError: as ``save_model``.
    """
    written = outcome.written
    if written.verdict.name == INPUT_DEPENDENT and not force:
        lost = written.price
        raise ValueError(
            f"input-dependent ({'; '.join(written.verdict.reasons)}): a constant would change the loss by "
            f"{lost.block.price:+.2g} nats a token (block) and {lost.sequential.price:+.2g} (sequential), each token's "
            f"score by {lost.block.moved:.2g} and {lost.sequential.moved:.2g} in the mean; nothing is written without "
            "--force"
        )
    model = copy.deepcopy(written.model).to(dtype)
    if guard is not None:
        if written.absorbed:
            raise ValueError("the operator was absorbed into the queries, so no guard can watch it; leave out --guard")
        learned, every = guard
        attach_guard(model, learned, GuardSettings(every, 2.0, largest_deviation(written, dtype), TOLERANCE))
    save_model(model, out, overwrite, tokenizer, texts)


def largest_deviation(candidate: Candidate, dtype: torch.dtype) -> float:
    """Of a logit at any decoding step, in ``dtype``; where that was not measured, in any that was."""
    figures = {name: summary(steps).largest_deviation for name, steps in candidate.fidelity.items()}
    return figures.get(str(dtype).removeprefix("torch."), max(figures.values()))


def _candidate(
    model: PldrForCausalLM,
    constant: Tensor,
    curvature: Tensor,
    held_out: Sequence[Tensor],
    new_tokens: int,
    serving: torch.dtype,
    thresholds: Thresholds,
) -> Candidate:
    frozen = freeze(model, constant)
    residual = absorb.residuals(model, absorb.constants(frozen))
    absorbed = bool((residual <= thresholds.commuting).all())
    if absorbed:  # without what does not commute, so that all figures are those of what is written
        frozen = freeze(model, absorb.projected(model, absorb.constants(frozen)))
    kept = absorb.absorb(frozen) if absorbed else frozen
    fidelity = {}
    for dtype in dict.fromkeys((model.dtype, serving)):
        pair = (model, kept) if dtype == model.dtype else (_cast(model, dtype), _cast(kept, dtype))
        fidelity[str(dtype).removeprefix("torch.")] = compare_steps(*pair, held_out, new_tokens)
    judged = next(iter(fidelity.values()))
    # The first and the last prefix of every decoding.
    texts = [torch.cat([prompt, tokens.cpu()]) for prompt, tokens in zip(held_out, judged.tokens[:, :-1], strict=True)]
    prefixes = [*held_out, *texts]
    bound = None if model.config.gram == "chunked" else perturbation_bound(model, frozen, prefixes)
    lost, steps = price(model, kept, held_out), summary(judged)
    apart = distance(curvature, absorb.constants(frozen))
    judgement = verdict(Figures(apart, steps.mean_divergence, lost.moved, steps.same / steps.total), thresholds)
    own, limit = fluctuation(curvature), thresholds.nearly_invariant.distance
    if judgement.name == INPUT_DEPENDENT and own <= limit < apart:
        # A transferred or projected constant may fail where the model's own would do.
        judgement.reasons.append(f"the operator itself fluctuates by {own:.2g} only: this constant is another one")
    return Candidate(kept, apart, residual.tolist(), absorbed, fidelity, lost, bound, judgement)


def _cast(model: PldrForCausalLM, dtype: torch.dtype) -> PldrForCausalLM:
    return copy.deepcopy(model).to(dtype)
