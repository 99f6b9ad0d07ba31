"""The perturbation bound through a chain of sample extrema (arXiv:2608.10288): it quantifies, it does not certify.

Two passes over the same prefix differ in their operator alone: G, rebuilt, and G', constant. The chain carries the
difference from the first layer to the logits. Norms of vectors are Euclidean, those of matrices spectral; extrema are
over all rows of both passes of all sampled prefixes, so the chain bounds these passes (in exact arithmetic) and no
others. δ is the largest difference of a row of the hidden states, 0 before the first layer. In each layer, for head h,
with χ = max ‖q‖, κ = max ‖k‖, Γ = max(‖G‖, ‖G'‖) and Δ = max ‖G - G'‖ of that head:

1. Scores change by at most σ_h = (‖W_q‖ δ Γ κ + χ Δ κ + χ Γ ‖W_k‖ δ) / √d; a rotation changes no norm.
2. Softmax: ‖p - p'‖₁ ≤ min(σ_h, 2), as its Jacobian takes the maximum norm into the 1-norm with a factor of at most 1.
3. Output of the head: ω_h = min(σ_h, 2) max ‖v‖ + ‖W_v‖ δ.
4. Attention: α = ‖W_o‖ √(Σ_h ω_h²).
5. First LayerNorm: δ₁ = λ₁ (δ + α) with λ = (max abs γ) / min s, s = √(variance + eps) of a row. For two rows
   ‖LN(x) - LN(x')‖ ≤ (max abs γ) ‖x - x'‖ · 2 / (s + s') (the inequality of Dunkl and Williams).
6. Gated FFN: φ = ‖W_down‖ (1.1 ‖W_gate‖ max abs u + ‖W_up‖ max abs silu(g)), where g and u are what the gate's
   and the up projection give; the slope of silu is below 1.1.
7. Second LayerNorm: the δ of the next layer is λ₂ (1 + φ) δ₁.

At the end every logit changes by at most max ‖row of W_head‖ δ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plga.collapse.factors import Extrema, decoder_layers, head_norm, spectral, watching, weight_norms
from plga.model.modeling import PldrDecoderLayer, PldrForCausalLM

LABEL = "quantifies, does not certify"
_SLOPE = 1.1  # of silu, whose largest is 1.0998


@dataclass(frozen=True)
class LayerChain:
    """Factors of one layer; see the head of this file. Those of the heads are the largest over the heads.

    Attributes:
        operator_change: max Δ_h.
        score_change: max σ_h.
        attention_change: α.
        attention_norm: (max abs γ) / min s of the first LayerNorm.
        feed_forward: φ.
        feed_forward_norm: (max abs γ) / min s of the second LayerNorm.
        hidden_change: δ after the layer.
    """

    operator_change: float
    score_change: float
    attention_change: float
    attention_norm: float
    feed_forward: float
    feed_forward_norm: float
    hidden_change: float


@dataclass(frozen=True)
class Bound:
    """The chain over some prefixes, beside what was measured on the last row of each.

    Attributes:
        prefixes: how many.
        layers: one chain a layer.
        head: max ‖row of W_head‖.
        logit_change: the bound on the change of a logit.
        deviation: largest change of a logit measured on the last rows.
        margin: smallest decoding margin of the rebuilt operator on the last rows.
    """

    prefixes: int
    layers: list[LayerChain]
    head: float
    logit_change: float
    deviation: float
    margin: float
    label: str = LABEL

    @property
    def orders_above_margin(self) -> float | None:
        """log10(2 · bound / margin): by how many orders the bound misses the criterion 2 · change < margin.

        Below zero the criterion holds on these prefixes; None where the bound or the margin is 0.
        """
        return _orders(2 * self.logit_change, self.margin)

    @property
    def orders_above_deviation(self) -> float | None:
        """log10(bound / deviation): how loose the bound is; None where either is 0."""
        return _orders(self.logit_change, self.deviation)


@torch.no_grad()
def perturbation_bound(model: PldrForCausalLM, constant: PldrForCausalLM, prefixes: Sequence[Tensor]) -> Bound:
    """Bound the change of the logits by the chain, with extrema sampled on ``prefixes``.

    The factors are computed in float64 from passes in the dtype of the models. The rounding of these passes is not in
    the bound, so where the operators agree to rounding the deviation may exceed it.

    Args:
        model: with a learned operator and a global Gram.
        constant: the same weights with a constant operator.
        prefixes: rows of token ids, [S_i].

    Raises:
        ValueError: a chunked Gram, which has more than one operator a pass, or no prefix.
    """
    if model.config.gram != "global":
        raise ValueError(f"gram is {model.config.gram!r}, expected 'global': the chain has one operator a pass")
    if not prefixes:
        raise ValueError("no prefix, expected at least one")
    extrema = [_Extrema(layer) for layer in decoder_layers(model)]
    deviation, margin = 0.0, math.inf
    for prefix in prefixes:
        ids = prefix.unsqueeze(0).to(model.device)
        with watching(model, extrema):
            rebuilt = model(ids, use_cache=False, logits_to_keep=1, output_deductive=True)
        with watching(constant, extrema):
            kept = constant(ids, use_cache=False, logits_to_keep=1, output_deductive=True)
        for seen, g, other in zip(extrema, rebuilt.deductive, kept.deductive, strict=True):
            seen.see_operators(g.curvature[0].double(), other.curvature.double())
        best = rebuilt.logits[0, -1].double().topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        deviation = max(deviation, float((rebuilt.logits.double() - kept.logits.double()).abs().max()))

    hidden_change, layers = 0.0, []
    for layer, seen in zip(decoder_layers(model), extrema, strict=True):
        layers.append(_chain(layer, seen, hidden_change))
        hidden_change = layers[-1].hidden_change
    head = head_norm(model)
    return Bound(len(prefixes), layers, head, head * hidden_change, deviation, margin)


class _Extrema(Extrema):
    """Extrema of one layer with those of its operators, [H]."""

    def __init__(self, layer: PldrDecoderLayer) -> None:
        super().__init__(layer)
        self.operator, self.operator_change = torch.zeros_like(self.query), torch.zeros_like(self.query)

    def see_operators(self, rebuilt: Tensor, kept: Tensor) -> None:
        """Both operators of a pass, [H, d, d]."""
        for g in (rebuilt, kept):
            self.operator = torch.maximum(self.operator, spectral(g))
        self.operator_change = torch.maximum(self.operator_change, spectral(rebuilt - kept))


def _chain(layer: PldrDecoderLayer, seen: _Extrema, hidden_change: float) -> LayerChain:
    """The factors of one layer, given δ before it."""
    weights = weight_norms(layer)
    score_change = layer.self_attn.scaling * (
        weights.query * hidden_change * seen.operator * seen.key
        + seen.query * seen.operator_change * seen.key
        + seen.query * seen.operator * weights.key * hidden_change
    )
    heads = score_change.clamp(max=2.0) * seen.value + weights.value * hidden_change
    attention_change = float(weights.output * heads.norm())
    attention_norm = weights.attention_scale / seen.attention_scale
    between = attention_norm * (hidden_change + attention_change)
    feed_forward = weights.down * (_SLOPE * weights.gate * seen.up + weights.up * seen.gate)
    feed_forward_norm = weights.feed_forward_scale / seen.feed_forward_scale
    return LayerChain(
        operator_change=float(seen.operator_change.max()),
        score_change=float(score_change.max()),
        attention_change=attention_change,
        attention_norm=attention_norm,
        feed_forward=feed_forward,
        feed_forward_norm=feed_forward_norm,
        hidden_change=feed_forward_norm * (1 + feed_forward) * between,
    )


def _orders(above: float, below: float) -> float | None:
    return math.log10(above / below) if above > 0 and below > 0 and math.isfinite(above / below) else None
