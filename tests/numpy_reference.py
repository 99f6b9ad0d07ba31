"""The whole PLDR-LLM forward pass in NumPy float64, written from the equations (arXiv:2608.10288, arXiv:2410.16703).

It shares no line with ``plga``: it is what ``plga`` is compared with. Weights come under the published key names.
Shapes in comments: B sequences, S tokens, H heads of width d, M = H d, V words, L layers.
"""

from collections.abc import Mapping
from itertools import count, takewhile
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


class Outputs(NamedTuple):
    """What one pass computes. A constant operator has no generator, metric or potential: those are None."""

    logits: Array  # [B, S, V]
    last_hidden: Array  # [B, S, M]
    generator: Array | None  # A, [L, B, H, d, d]
    metric: Array | None  # A_LM, [L, B, H, d, d]
    potential: Array | None  # A_P, [L, B, H, d, d]
    curvature: Array  # G_LM, [L, B, H, d, d]


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), with full relative precision on both sides and no overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def linear(w: Weights, key: str, x: Array) -> Array:
    """x Wᵀ + b: rows of W are outputs."""
    return x @ w[f"{key}.weight"].T + w[f"{key}.bias"]


def layer_norm(w: Weights, key: str, x: Array, eps: float) -> Array:
    """LayerNorm over the last axis, biased variance."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * w[f"{key}.weight"] + w[f"{key}.bias"]


def swiglu(w: Weights, key: str, x: Array) -> Array:
    """gluw3(silu(gluw1 x) ⊙ gluw2 x)."""
    gate = linear(w, f"{key}.gluw1", x)
    return linear(w, f"{key}.gluw3", gate * sigmoid(gate) * linear(w, f"{key}.gluw2", x))


def rotary_tables(positions: NDArray[np.int64], width: int, base: float) -> tuple[Array, Array]:
    """Cosines and sines [..., S, d/2] of position · base^(-2a/d), in float32 as published, then widened.

    The one place that calls PyTorch: the published tables are what its float32 power, cosine and sine give. Another
    library's differ in the last bit, and one float32 rounding of an angle is 1e-8 in the logits.
    """
    frequencies = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.from_numpy(np.asarray(positions))[..., None].float() * frequencies
    return angles.cos().double().numpy(), angles.sin().double().numpy()


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Turn each pair of coordinates of x [..., S, d]: pairs (2a, 2a+1) when interleaved, else (a, a + d/2)."""
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    turned = np.empty_like(x)
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., first] * sin + x[..., second] * cos
    return turned


def gram(q: Array, mask: NDArray[np.bool_]) -> Array:
    """D = Σ_s q_s q_sᵀ over the real tokens: q [B, H, S, d], mask [B, S] → [B, H, d, d]."""
    real = np.where(mask[:, None, :, None], q, 0.0)
    return np.einsum("bhsi,bhsj->bhij", real, real)


def generator(w: Weights, key: str, density: Array, eps: float) -> Array:
    """A = φ(LN(D)): residual units of SwiGLU blocks on the rows, weights shared by all heads; [B, H, d, d]."""
    a = layer_norm(w, f"{key}.layernorm1", density, eps)
    for unit in _numbered(w, f"{key}.reslayerAs", "layernormA.weight"):
        inside = a
        for block in _numbered(w, f"{unit}.denseAs", "gluw1.weight"):
            inside = swiglu(w, block, inside)
        a = layer_norm(w, f"{unit}.layernormA", inside + a, eps)
    return a


def power_law(w: Weights, key: str, a: Array, eps: float) -> tuple[Array, Array, Array]:
    """A_LM = iSwiGLU(W A + b_W) + ε, A_P = A_LM^⊙P, G_LM = a A_P + b_a; all [B, H, d, d]."""
    u = w[f"{key}.Wlst"] @ a + w[f"{key}.blst"]
    metric = u**2 * sigmoid(u) + eps
    potential = metric ** w[f"{key}.pwlst"]
    return metric, potential, w[f"{key}.alst"] @ potential + w[f"{key}.balst"]


def attend(q: Array, k: Array, v: Array, curvature: Array, mask: NDArray[np.bool_], scale: float) -> Array:
    """softmax(q G kᵀ · scale) v, each row over its own past and real tokens only; q, k, v [B, H, S, d], mask [B, S]."""
    scores = q @ curvature @ k.swapaxes(-1, -2) * scale  # [B, H, S, S]
    allowed = np.tri(q.shape[-2], dtype=bool) & mask[:, None, None, :]
    # A padded row may see nothing at all; it then attends to nothing, and nobody reads it.
    peak = np.where(allowed, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.finfo(np.float64).max)
    weights = np.exp(np.where(allowed, scores - peak, -np.inf))
    total = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0) @ v


def forward(
    weights: Mapping[str, NDArray[np.floating]],
    input_ids: NDArray[np.int64],
    *,
    num_heads: int,
    mask: NDArray[np.bool_] | None = None,
    interleaved: bool = True,
    curvature: Array | None = None,
    score_scale: float | None = None,
    rope_base: float = 10000.0,
    norm_eps: float = 1e-6,
    metric_eps: float = 1e-9,
) -> Outputs:
    """One pass over whole sequences (the block contract).

    Args:
        weights: every tensor of the published format; depths are read off the keys.
        input_ids: [B, S].
        num_heads: H.
        mask: [B, S], True at real tokens; None is all.
        interleaved: rotary pairs (2a, 2a+1); otherwise (a, a + d/2).
        curvature: a constant operator [L, H, d, d] in place of the learned one.
        score_scale: 1/√d by default. The published code rounds √d to float32 whatever its other dtypes: 1.7e-8
            relative at d = 32, nothing at d = 64; :func:`published_score_scale` is that number.
        rope_base, norm_eps, metric_eps: the published constants.
    """
    w: Weights = {key: np.asarray(tensor, dtype=np.float64) for key, tensor in weights.items()}
    real = np.ones(input_ids.shape, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    positions = np.maximum(real.cumsum(axis=-1) - 1, 0)  # [B, S], counting real tokens only

    x = w["decoder.embedding.weight"][input_ids]  # [B, S, M]
    batch, length, model_width = x.shape
    width = model_width // num_heads
    scale = 1.0 / np.sqrt(width) if score_scale is None else score_scale
    x = layer_norm(w, "decoder.layernorm1", x * np.sqrt(model_width), norm_eps)
    cos, sin = (table[:, None] for table in rotary_tables(positions, width, rope_base))  # [B, 1, S, d/2]

    tensors: list[tuple[Array, ...]] = []
    for index, layer in enumerate(_numbered(w, "decoder.dec_layers", "layernorm1.weight")):
        mha = f"{layer}.mha1"
        q, k, v = (
            linear(w, f"{mha}.{name}", x).reshape(batch, length, num_heads, width).transpose(0, 2, 1, 3)
            for name in ("wq", "wk", "wv")
        )  # [B, H, S, d]
        q, k = rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)
        if curvature is None:
            a = generator(w, mha, gram(q, real), norm_eps)
            tensors.append((a, *power_law(w, f"{mha}.plgatt_layer", a, metric_eps)))
        else:
            tensors.append((np.broadcast_to(curvature[index], (batch, num_heads, width, width)),))
        heads = attend(q, k, v, tensors[-1][-1], real, scale)
        merged = heads.transpose(0, 2, 1, 3).reshape(batch, length, model_width)
        x = layer_norm(w, f"{layer}.layernorm1", x + linear(w, f"{mha}.dense", merged), norm_eps)
        x = layer_norm(w, f"{layer}.layernorm2", x + swiglu(w, f"{layer}.ffn", x), norm_eps)

    stacked = [np.stack(kind) for kind in zip(*tensors, strict=True)]
    deductive = stacked if curvature is None else [None, None, None, *stacked]
    return Outputs(linear(w, "final_layer", x), x, *deductive)


def published_score_scale(width: int) -> float:
    """1/√d with √d rounded to float32, as the published code computes it."""
    return 1.0 / float(np.sqrt(np.float32(width)))


def dag_loss(m: Array) -> Array:
    """|log(tr exp(M ⊙ M) / d)| over [..., d, d], from the eigenvalues: tr exp(X) = Σ e^λ."""
    m = np.asarray(m, dtype=np.float64)
    eigenvalues = np.linalg.eigvals(m * m)  # complex ones come in conjugate pairs, so the sum is real
    peak = eigenvalues.real.max(axis=-1)
    trace = np.exp(eigenvalues - peak[..., None]).sum(axis=-1).real
    return np.abs(peak + np.log(trace / m.shape[-1]))


def _numbered(w: Weights, prefix: str, probe: str) -> list[str]:
    """``prefix.0``, ``prefix.1``, ... as long as ``prefix.N.probe`` is there."""
    return list(takewhile(lambda key: f"{key}.{probe}" in w, (f"{prefix}.{number}" for number in count())))
