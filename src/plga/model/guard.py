"""The runtime guard of a collapsed model: it watches the constant while a text is written, and steps in.

That a constant operator writes what the learned one would is a *conditional theorem* (arXiv:2608.10288, if G does not
depend on the input) and a measurement on other texts. The guard measures it on this one. It does not certify: between
two checks a sequence is watched by the margin of its logits alone.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput, LogitsProcessorList, StoppingCriteriaList

from plga.model.guard_settings import GuardSettings
from plga.model.guard_tensors import GUARD_FILE


@dataclass
class GuardStatistics:
    """What the guard saw of one sequence.

    ``tokens``: those that it wrote; ``checks``: times that the learned operator was rebuilt; ``fallbacks``: times that
    the sequence left the constant; ``recomputed``: tokens that came from the learned operator;
    ``curvature_deviation``: the worst ‖G - G_constant‖_F / ‖G_constant‖_F of any check, layer and head;
    ``logit_deviation``: the worst difference of a logit at any check.
    """

    tokens: int = 0
    checks: int = 0
    fallbacks: int = 0
    recomputed: int = 0
    curvature_deviation: float = 0.0
    logit_deviation: float = 0.0


@dataclass
class GuardedOutput(GenerateDecoderOnlyOutput):
    """Transformers' output of ``generate``, with the statistics of each sequence."""

    guard: tuple[GuardStatistics, ...] | None = None


class Watch:
    """Replaces the logits of the constant operator by those of the learned one where a sequence has fallen back.

    The constant reads every token of every sequence, in fall-back too, so its cache is complete whenever a sequence
    returns to it.

    Args:
        learned: see ``plga.model.guard_tensors.recomputing``.
        constants: G_constant of every layer, [L, H, d, d].
        settings: see there.
        prompts: token ids, [B, S].
        mask: [B, S], 1 at real tokens; None: all are.
    """

    def __init__(
        self, learned: Any, constants: Tensor, settings: GuardSettings, prompts: Tensor, mask: Tensor | None
    ) -> None:
        self.learned, self.constants, self.settings, self.mask = learned, constants, settings, mask
        self.statistics = tuple(GuardStatistics() for _ in prompts)
        # Lists and not tensors: a step takes few operations, so that it costs little where there is nothing to check.
        self.finished, self.fallen = [False] * len(prompts), [False] * len(prompts)
        self.unchecked = [0] * len(prompts)  # tokens since the last check, the one to be chosen included

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits [B, V] of the next token after ``input_ids`` [B, T], changed in place."""
        threshold = self.settings.margin_factor * self.settings.deviation
        close = [best - second < threshold for best, second in scores.topk(2, dim=-1).values.tolist()]
        writing = [row for row, finished in enumerate(self.finished) if not finished]
        for row in writing:
            self.unchecked[row] += 1
        due = [r for r in writing if close[r] or self.fallen[r] or self.unchecked[r] >= self.settings.every]
        if due:
            self._check(due, input_ids, scores)
        for row in writing:
            self.statistics[row].tokens += 1
            self.statistics[row].recomputed += self.fallen[row]
        return scores

    def _check(self, rows: list[int], input_ids: Tensor, scores: Tensor) -> None:
        """Run the learned model on the whole prefixes of ``rows`` (the online contract), and judge the constant."""
        ids, mask = input_ids[rows], None
        if self.mask is not None:
            mask = torch.ones_like(ids)
            mask[:, : self.mask.shape[1]] = self.mask[rows]
            padding = int(mask.argmax(dim=-1).min())  # columns in which none of these sequences has begun
            ids, mask = ids[:, padding:], None if bool(mask[:, padding:].all()) else mask[:, padding:]
        out = self.learned(
            ids, attention_mask=mask, use_cache=False, logits_to_keep=1, output_deductive=True, last_row=True
        )
        # G as attention would see it, so in the dtype of the constant.
        curvature = torch.stack([layer.curvature.to(self.constants) for layer in out.deductive], dim=1)
        deviations = relative_deviation(curvature, self.constants).tolist()
        logits = out.logits[:, -1].to(scores)
        moved = (logits - scores[rows]).abs().amax(dim=-1).tolist()
        for index, row in enumerate(rows):
            fallen = deviations[index] > self.settings.tolerance
            if fallen:
                # In place, so that Transformers' ``output_logits`` too are those that the token came from.
                scores[row] = logits[index]
            statistics = self.statistics[row]
            statistics.checks += 1
            statistics.fallbacks += fallen and not self.fallen[row]
            statistics.curvature_deviation = max(statistics.curvature_deviation, deviations[index])
            statistics.logit_deviation = max(statistics.logit_deviation, moved[index])
            self.fallen[row], self.unchecked[row] = fallen, 0


class WatchedLogits(LogitsProcessorList):
    """Processors of logits behind the guard, which is none of them.

    At every token such a list looks up the signature of each processor, and that takes longer than watching.
    """

    def __init__(self, processors: LogitsProcessorList, watch: Watch) -> None:
        super().__init__(processors)
        self.watch = watch

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return super().__call__(input_ids, self.watch(input_ids, scores), **kwargs)


class WatchedStopping(StoppingCriteriaList):
    """Stopping criteria that tell the guard which sequences are finished, and so need no check."""

    def __init__(self, criteria: StoppingCriteriaList, watch: Watch) -> None:
        super().__init__(criteria)
        self.watch = watch

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        done = super().__call__(input_ids, scores, **kwargs)
        self.watch.finished = [a or b for a, b in zip(self.watch.finished, done.tolist(), strict=True)]
        return done


def relative_deviation(curvature: Tensor, constants: Tensor) -> Tensor:
    """‖G - G_constant‖_F / ‖G_constant‖_F, the largest over layers and heads, in float64.

    Args:
        curvature: G of each sequence, [B, L, H, d, d].
        constants: G_constant, [L, H, d, d].

    Returns:
        [B]; infinite where a constant is zero and G is not.
    """
    norms = torch.linalg.vector_norm(constants.double(), dim=(-2, -1))
    distances = torch.linalg.vector_norm(curvature.double() - constants.double(), dim=(-2, -1))
    return torch.where(distances == 0, 0.0, distances / norms).amax(dim=(-2, -1))


def watch_over(model: Any, settings: Any, prompts: Tensor, mask: Tensor | None) -> Watch:
    """A guard for one call of ``generate``.

    Args:
        model: PldrForCausalLM with a constant operator and, attached to it, the learned ones.
        settings: plain data, see GuardSettings.
        prompts, mask: [B, S], see Watch.

    Raises:
        ValueError: wrong settings, a learned operator, a model without the learned operators, prompts without tokens.
    """
    read = GuardSettings.read(settings)
    if model.config.operator == "learned":
        raise ValueError("guard is set, but the operator of this model is learned: only a constant needs a guard")
    if not model.recomputing:
        raise ValueError(
            "guard is set, but this model has no learned operators to check its constant with: expected "
            f"{GUARD_FILE} beside its weights; write it with plga.collapse.guard.write_guard, or pass guard=False"
        )
    if prompts.shape[1] == 0:
        raise ValueError("guard is set with inputs_embeds, expected input_ids: the learned model reads the whole text")
    (learned,) = model.recomputing
    constants, operators = ([layer.self_attn.operator for layer in m.model.layers] for m in (model, learned))
    constants = [constant.curvature.detach() for constant in constants]
    for operator, constant in zip(operators, constants, strict=True):
        if operator.exponent.device != constant.device:
            operator.to(constant.device)  # the rest of the learned model has moved with this one, being the same
    return Watch(learned, torch.stack([constant.to(prompts.device) for constant in constants]), read, prompts, mask)
