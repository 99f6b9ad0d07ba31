"""What the bound chain of section F is made of: norms of weights, and extrema over the rows that the prompts visit.

How they are put together is in ``bound_chain.py``. Norms of vectors are Euclidean, of weights and of G_LM spectral.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plga.audit.learner_factors import LearnerFactors, learner_factors
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.audit.visits import learned_visits
from plga.collapse.factors import Extrema, WeightNorms, head_norm, spectral, watching, weight_norms
from plga.criticality.order_parameter import Deductive
from plga.ops.envelopes import log10_power_slope
from plga.ops.power_law import EPSILON


@dataclass(frozen=True)
class Budget:
    """Of N prompts; extrema are over all their rows, logarithms are decimal and -inf of zero.

    Attributes:
        metric_weight: ‖W‖, [L, H].
        metric_range: U = max |W A + b_W|, [L, H].
        power_measured: log10 of max |P| x^(P - 1), x from the measured floor of A_LM to its largest entry, [L, H].
        power_architectural: the same from the ε that is added to every entry of A_LM, [L, H].
        metric_floor: the measured floor, min A_LM, [L, H].
        coupling_weight: ‖a‖, [L, H].
        operator: max ‖G_LM‖, [L, H].
        operator_size: ‖G_LM‖_F, [N, L, H].
        operator_entry: the largest magnitude of an entry of G_LM, [N, L, H].
        scaling: 1 / √d, [1].
        query, key, value: max ‖row‖, [L, H].
        query_weight, key_weight, value_weight: ‖W‖ of the rows of a head, [L, H].
        output_weight: ‖W_o‖, [L].
        gamma: max |γ| of the first and of the second LayerNorm, [L, 2].
        row_scale: min √(variance + eps) of a row before them, [L, 2].
        gate_weight, up_weight, down_weight: ‖W‖ of the gated FFN, [L].
        gate_range: max |g|, [L].
        gate_size: max |silu(g)|, [L].
        up_range: max |u|, [L].
        learner_gamma, learner_row_scale: the same of the LayerNorms of the metric learner, [L, 1 + U]; these and the
            next six as in :class:`plga.audit.learner_factors.LearnerFactors`.
        learner_gate_weight, learner_up_weight, learner_down_weight: of its blocks, [L, U, B].
        learner_gate_range, learner_gate_size, learner_up_range: of its blocks, [L, U, B].
        head: max ‖row of W_head‖, [1].
        margin: largest minus second largest logit of the last row of each prompt, [N].
    """

    metric_weight: np.ndarray
    metric_range: np.ndarray
    power_measured: np.ndarray
    power_architectural: np.ndarray
    metric_floor: np.ndarray
    coupling_weight: np.ndarray
    operator: np.ndarray
    operator_size: np.ndarray
    operator_entry: np.ndarray
    scaling: np.ndarray
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    query_weight: np.ndarray
    key_weight: np.ndarray
    value_weight: np.ndarray
    output_weight: np.ndarray
    gamma: np.ndarray
    row_scale: np.ndarray
    gate_weight: np.ndarray
    up_weight: np.ndarray
    down_weight: np.ndarray
    gate_range: np.ndarray
    gate_size: np.ndarray
    up_range: np.ndarray
    learner_gamma: np.ndarray
    learner_row_scale: np.ndarray
    learner_gate_weight: np.ndarray
    learner_up_weight: np.ndarray
    learner_down_weight: np.ndarray
    learner_gate_range: np.ndarray
    learner_gate_size: np.ndarray
    learner_up_range: np.ndarray
    head: np.ndarray
    margin: np.ndarray


@torch.no_grad()
def measure(subject: Subject) -> Budget:
    """Take the measurements; factors in float64, from passes in the dtype of the model.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram, no prompts, or a non-finite deductive output or logit.
    """
    visits = list(learned_visits(subject))
    parts = [_operators(subject, visit.deductive) for visit in visits]
    ranges, floors, ceilings, norms, sizes, entries = (torch.stack(t) for t in zip(*parts, strict=True))
    learned = subject.learned
    floor, ceiling = floors.amin(0), ceilings.amax(0)
    eps = torch.full_like(floor, EPSILON).minimum(floor)  # in the dtype of the branch it may round below itself
    exponents = torch.stack([operator.exponent.double().cpu() for operator in learned])
    powers = [
        log10_power_slope(exponents, x[..., None, None], ceiling[..., None, None]).amax((-2, -1)) for x in (floor, eps)
    ]
    densities = torch.stack([visit.density for visit in visits], dim=1)  # [L, N, H, d, d]
    learners = [learner_factors(operator.learner, of) for operator, of in zip(learned, densities, strict=True)]
    extrema, margins = _chain(subject)
    weights = [weight_norms(layer) for layer in subject.layers]
    assert subject.model is not None

    def of(field: str, values: Sequence[WeightNorms | Extrema | LearnerFactors]) -> np.ndarray:
        return np.stack([np.asarray(getattr(value, field), dtype=np.float64) for value in values])

    return Budget(
        metric_weight=torch.stack([spectral(operator.metric_weight) for operator in learned]).numpy(),
        metric_range=ranges.amax(0).numpy(),
        power_measured=powers[0].numpy(),
        power_architectural=powers[1].numpy(),
        metric_floor=floor.numpy(),
        coupling_weight=torch.stack([spectral(operator.coupling_weight) for operator in learned]).numpy(),
        operator=norms.amax(0).numpy(),
        operator_size=sizes.numpy(),
        operator_entry=entries.numpy(),
        scaling=np.array([subject.layers[0].self_attn.scaling]),
        query=of("query", extrema),
        key=of("key", extrema),
        value=of("value", extrema),
        query_weight=of("query", weights),
        key_weight=of("key", weights),
        value_weight=of("value", weights),
        output_weight=of("output", weights),
        gamma=np.stack([of("attention_scale", weights), of("feed_forward_scale", weights)], axis=1),
        row_scale=np.stack([of("attention_scale", extrema), of("feed_forward_scale", extrema)], axis=1),
        gate_weight=of("gate", weights),
        up_weight=of("up", weights),
        down_weight=of("down", weights),
        gate_range=of("gate_range", extrema),
        gate_size=of("gate", extrema),
        up_range=of("up", extrema),
        **{f"learner_{field}": of(field, learners) for field in LearnerFactors._fields},
        head=np.array([head_norm(subject.model)]),
        margin=np.array(margins),
    )


def _operators(subject: Subject, deductive: Deductive) -> tuple[Tensor, ...]:
    """Of one prompt: max |W A + b_W|, min and max A_LM, ‖G‖, ‖G‖_F and max |G|, each float64 [L, H] on the CPU."""
    learned = subject.learned
    ranges = [
        (operator.metric_weight.double() @ generator.double() + operator.metric_bias.double()).abs().amax((-2, -1))
        for operator, generator in zip(learned, deductive.generator, strict=True)
    ]
    metric, curvature = deductive.metric.double(), deductive.curvature.double()
    return (
        torch.stack(ranges).cpu(),
        metric.amin((-2, -1)).cpu(),
        metric.amax((-2, -1)).cpu(),
        spectral(curvature),
        torch.linalg.matrix_norm(curvature).cpu(),
        curvature.abs().amax((-2, -1)).cpu(),
    )


def _chain(subject: Subject) -> tuple[list[Extrema], list[float]]:
    """Extrema of each layer over all prompts, and the margin of each prompt's last row."""
    model = subject.model
    assert model is not None
    extrema, margins = [Extrema(layer) for layer in subject.layers], []
    for number, prompt in enumerate(subject.prompts, start=1):
        with watching(model, extrema):
            logits = model(prompt.unsqueeze(0).to(model.device), use_cache=False, logits_to_keep=1).logits[0, -1]
        if not bool(logits.isfinite().all()):
            raise NotMeasurable(f"the logits of prompt {number} are not finite")
        best = logits.double().topk(2).values
        margins.append(float(best[0] - best[1]))
    return extrema, margins
