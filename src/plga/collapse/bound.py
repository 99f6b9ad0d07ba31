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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
    extrema = [_Extrema(layer) for layer in _layers(model)]
    deviation, margin = 0.0, math.inf
    for prefix in prefixes:
        ids = prefix.unsqueeze(0).to(model.device)
        with _watching(model, extrema):
            rebuilt = model(ids, use_cache=False, logits_to_keep=1, output_deductive=True)
        with _watching(constant, extrema):
            kept = constant(ids, use_cache=False, logits_to_keep=1, output_deductive=True)
        for seen, g, other in zip(extrema, rebuilt.deductive, kept.deductive, strict=True):
            seen.see_operators(g.curvature[0].double(), other.curvature.double())
        best = rebuilt.logits[0, -1].double().topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        deviation = max(deviation, float((rebuilt.logits.double() - kept.logits.double()).abs().max()))

    hidden_change, layers = 0.0, []
    for layer, seen in zip(_layers(model), extrema, strict=True):
        layers.append(_chain(layer, seen, hidden_change))
        hidden_change = layers[-1].hidden_change
    head = float(model.lm_head.weight.double().norm(dim=-1).max())
    return Bound(len(prefixes), layers, head, head * hidden_change, deviation, margin)


class _Extrema:
    """Extrema of one layer over the passes seen so far; of heads [H]."""

    def __init__(self, layer: PldrDecoderLayer) -> None:
        attention = layer.self_attn
        self._heads, self._width = attention.config.num_attention_heads, attention.head_dim
        zeros = torch.zeros(self._heads, dtype=torch.float64)
        self.query, self.key, self.value, self.operator, self.operator_change = (zeros.clone() for _ in range(5))
        self.gate, self.up = 0.0, 0.0
        self.attention_scale, self.feed_forward_scale = math.inf, math.inf

    def see_operators(self, rebuilt: Tensor, kept: Tensor) -> None:
        """Both operators of a pass, [H, d, d]."""
        for g in (rebuilt, kept):
            self.operator = torch.maximum(self.operator, torch.linalg.matrix_norm(g, ord=2).cpu())
        change = torch.linalg.matrix_norm(rebuilt - kept, ord=2).cpu()
        self.operator_change = torch.maximum(self.operator_change, change)

    def hooks(self, layer: PldrDecoderLayer) -> Iterator[Any]:
        """Let the modules of ``layer`` report here; yields handles."""
        for name, module in (
            ("query", layer.self_attn.q_proj),
            ("key", layer.self_attn.k_proj),
            ("value", layer.self_attn.v_proj),
        ):
            yield module.register_forward_hook(lambda _, given, out, name=name: self._see_rows(name, out))
        for name, norm in (("attention_scale", layer.self_attn_norm), ("feed_forward_scale", layer.mlp_norm)):
            yield norm.register_forward_hook(lambda m, given, out, name=name: self._see_scale(name, given[0], m.eps))
        for name, module in (("gate", layer.mlp.gate_proj), ("up", layer.mlp.up_proj)):
            yield module.register_forward_hook(lambda _, given, out, name=name: self._see_inner(name, out))

    def _see_rows(self, name: str, rows: Tensor) -> None:
        norms = rows.double().unflatten(-1, (self._heads, self._width)).norm(dim=-1).flatten(0, -2).amax(dim=0).cpu()
        setattr(self, name, torch.maximum(getattr(self, name), norms))

    def _see_scale(self, name: str, rows: Tensor, eps: float) -> None:
        scale = (rows.double().var(dim=-1, correction=0) + eps).sqrt().min()
        setattr(self, name, min(getattr(self, name), float(scale)))

    def _see_inner(self, name: str, inner: Tensor) -> None:
        inner = inner.double()
        size = (nn.functional.silu(inner) if name == "gate" else inner).abs().max()
        setattr(self, name, max(getattr(self, name), float(size)))


@contextmanager
def _watching(model: PldrForCausalLM, extrema: Sequence[_Extrema]) -> Iterator[None]:
    handles = [handle for layer, seen in zip(_layers(model), extrema, strict=True) for handle in seen.hooks(layer)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _chain(layer: PldrDecoderLayer, seen: _Extrema, hidden_change: float) -> LayerChain:
    """The factors of one layer, given δ before it."""
    attention, mlp = layer.self_attn, layer.mlp
    query, key, value = (
        _spectral(p.weight.double().view(len(seen.query), -1, p.weight.shape[-1]))
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    score_change = attention.scaling * (
        query * hidden_change * seen.operator * seen.key
        + seen.query * seen.operator_change * seen.key
        + seen.query * seen.operator * key * hidden_change
    )
    heads = score_change.clamp(max=2.0) * seen.value + value * hidden_change
    attention_change = float(_spectral(attention.o_proj.weight) * heads.norm())
    attention_norm = float(layer.self_attn_norm.weight.double().abs().max()) / seen.attention_scale
    between = attention_norm * (hidden_change + attention_change)
    gate, up, down = (float(_spectral(p.weight)) for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    feed_forward = down * (_SLOPE * gate * seen.up + up * seen.gate)
    feed_forward_norm = float(layer.mlp_norm.weight.double().abs().max()) / seen.feed_forward_scale
    return LayerChain(
        operator_change=float(seen.operator_change.max()),
        score_change=float(score_change.max()),
        attention_change=attention_change,
        attention_norm=attention_norm,
        feed_forward=feed_forward,
        feed_forward_norm=feed_forward_norm,
        hidden_change=feed_forward_norm * (1 + feed_forward) * between,
    )


def _layers(model: PldrForCausalLM) -> list[PldrDecoderLayer]:
    return [module for module in model.modules() if isinstance(module, PldrDecoderLayer)]


def _spectral(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix.double(), ord=2).cpu()


def _orders(above: float, below: float) -> float | None:
    return math.log10(above / below) if above > 0 and below > 0 and math.isfinite(above / below) else None
