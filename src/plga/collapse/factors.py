"""What the factors of a perturbation chain are made of: spectral norms of weights, and extrema over sampled rows."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plga.model.modeling import PldrDecoderLayer, PldrForCausalLM


class WeightNorms(NamedTuple):
    """Spectral norms of the weights of one layer, in float64, and the largest magnitudes of its LayerNorms' γ.

    Attributes:
        query, key, value: of the rows of each head, [H].
        output: of the output projection.
        gate, up, down: of the gated FFN.
        attention_scale, feed_forward_scale: max abs γ of the first and of the second LayerNorm.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: float
    gate: float
    up: float
    down: float
    attention_scale: float
    feed_forward_scale: float


class Extrema:
    """Extrema of one layer over the passes seen so far, in float64.

    Attributes:
        query, key, value: max ‖row‖₂ of each head, [H].
        gate_range: max abs g, g what the gate's projection gives.
        gate: max abs silu(g).
        up: max abs u, u what the up projection gives.
        attention_scale, feed_forward_scale: min √(variance + eps) of a row before each LayerNorm.
    """

    def __init__(self, layer: PldrDecoderLayer) -> None:
        attention = layer.self_attn
        self._heads, self._width = attention.config.num_attention_heads, attention.head_dim
        self.query, self.key, self.value = (torch.zeros(self._heads, dtype=torch.float64) for _ in range(3))
        self.gate_range, self.gate, self.up = 0.0, 0.0, 0.0
        self.attention_scale, self.feed_forward_scale = math.inf, math.inf

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
        yield layer.mlp.gate_proj.register_forward_hook(lambda _, given, out: self._see_gate(out.double()))
        yield layer.mlp.up_proj.register_forward_hook(lambda _, given, out: self._see_size("up", out.double()))

    def _see_rows(self, name: str, rows: Tensor) -> None:
        norms = rows.double().unflatten(-1, (self._heads, self._width)).norm(dim=-1).flatten(0, -2).amax(dim=0).cpu()
        setattr(self, name, torch.maximum(getattr(self, name), norms))

    def _see_scale(self, name: str, rows: Tensor, eps: float) -> None:
        scale = (rows.double().var(dim=-1, correction=0) + eps).sqrt().min()
        setattr(self, name, min(getattr(self, name), float(scale)))

    def _see_gate(self, gate: Tensor) -> None:
        self._see_size("gate_range", gate)
        self._see_size("gate", nn.functional.silu(gate))

    def _see_size(self, name: str, inner: Tensor) -> None:
        setattr(self, name, max(getattr(self, name), float(inner.abs().max())))


@contextmanager
def watching(model: PldrForCausalLM, extrema: Sequence[Extrema]) -> Iterator[None]:
    """Within it every pass of ``model`` reports to ``extrema``, one for each layer."""
    handles = [
        handle for layer, seen in zip(decoder_layers(model), extrema, strict=True) for handle in seen.hooks(layer)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def weight_norms(layer: PldrDecoderLayer) -> WeightNorms:
    """The norms of the weights of ``layer``."""
    attention, mlp = layer.self_attn, layer.mlp
    heads = attention.config.num_attention_heads
    query, key, value = (
        spectral(p.weight.view(heads, -1, p.weight.shape[-1]))
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    output, gate, up, down = (
        float(spectral(p.weight)) for p in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    )
    gammas = (float(norm.weight.double().abs().max()) for norm in (layer.self_attn_norm, layer.mlp_norm))
    return WeightNorms(query, key, value, output, gate, up, down, *gammas)


@torch.no_grad()
def head_norm(model: PldrForCausalLM) -> float:
    """max ‖row of W_head‖₂: by how much a logit changes at most where a row of the hidden states changes by 1."""
    return float(model.lm_head.weight.double().norm(dim=-1).max())


def decoder_layers(model: PldrForCausalLM) -> list[PldrDecoderLayer]:
    """The decoder layers of ``model`` in order."""
    return [module for module in model.modules() if isinstance(module, PldrDecoderLayer)]


def spectral(matrix: Tensor) -> Tensor:
    """‖·‖₂ of [..., m, n] in float64, [...], on the CPU."""
    return torch.linalg.matrix_norm(matrix.double(), ord=2).cpu()
