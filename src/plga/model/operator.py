"""The two operators that an attention layer can have: G_LM built from the queries, or one constant tensor."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from plga.model.cache import PldrCache
from plga.model.configuration import PldrConfig
from plga.model.linear import Linear
from plga.ops.alignment import relative_difference
from plga.ops.density import block_grams, gram
from plga.ops.power_law import curvature_tensor, metric_tensor, potential_tensor


class DeductiveOutputs(NamedTuple):
    """Deductive outputs of one layer (arXiv:2608.10288): A, A_LM, A_P and G_LM, each [B, H, d, d].

    An operator that is read, not built (constant, or kept from the prompt), has its ``curvature`` only.
    """

    generator: Tensor | None
    metric: Tensor | None
    potential: Tensor | None
    curvature: Tensor


def require_finite(outputs: DeductiveOutputs, layer_idx: int, dtype: torch.dtype) -> None:
    """Raise FloatingPointError on a non-finite entry, naming the first tensor that has one, its layer and its heads.

    All four are looked at: an infinite A_LM under a negative exponent gives a finite G_LM. And attention does not show
    it later: a fused kernel may take a NaN score for a masked one and return zeros. G_LM is looked at in ``dtype``,
    that of the queries it will meet: a finite float32 may be infinite in float16.
    """
    outputs = outputs._replace(curvature=outputs.curvature.to(dtype))
    named = {name: t for name, t in zip(("A", "A_LM", "A_P", "G_LM"), outputs, strict=True) if t is not None}
    # A sum that is finite tells at once, and one number is one wait for the device. Large entries may overflow in it.
    wide = torch.promote_types(dtype, torch.float32)
    if math.isfinite(torch.stack([t.sum(dtype=wide) for t in named.values()]).sum().item()):
        return
    # One row a tensor, one column a head.
    broken = torch.stack([~t.isfinite().all(dim=(-2, -1)).reshape(-1, t.shape[-3]).all(dim=0) for t in named.values()])
    if not broken.any():
        return
    first = int(broken.any(dim=1).nonzero()[0])
    heads = broken[first].nonzero().flatten().tolist()
    raise FloatingPointError(f"{list(named)[first]} of layer {layer_idx} is not finite in heads {heads}")


def widened(q: Tensor) -> Tensor:
    """Queries in the dtype of the deductive branch: float32, or their own where that is wider."""
    return q.to(torch.promote_types(q.dtype, torch.float32))


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the last axis that computes in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if weight.dtype != x.dtype:
            weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        return torch.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)): [..., width] → [..., width], biases everywhere."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner)
        self.up_proj = Linear(width, inner)
        self.down_proj = Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if torch.is_grad_enabled():
            return self.down_proj(nn.functional.silu(gate) * up)
        # The same numbers in place: with many rows, memory that was never touched costs as much as the arithmetic.
        return self.down_proj(nn.functional.silu(gate, inplace=True).mul_(up))


class ResidualUnit(nn.Module):
    """LN(x + SwiGLU blocks in series on x), acting on rows: [..., d] → [..., d]."""

    def __init__(self, config: PldrConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            SwiGLU(config.head_dim, config.metric_intermediate_size) for _ in range(config.num_metric_blocks)
        )
        self.norm = LayerNorm(config.head_dim, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        inner = x
        for block in self.blocks:
            inner = block(inner)
        return self.norm(inner + x)


class MetricLearner(nn.Module):
    """Generator A = φ(LN(D)) (arXiv:2608.10288): weights shared by all heads, acting on rows of [..., d, d]."""

    def __init__(self, config: PldrConfig) -> None:
        super().__init__()
        self.input_norm = LayerNorm(config.head_dim, eps=config.layer_norm_eps)
        self.units = nn.ModuleList(ResidualUnit(config) for _ in range(config.num_metric_units))

    def forward(self, density: Tensor) -> Tensor:
        x = self.input_norm(density)
        for unit in self.units:
            x = unit(x)
        return x


class LearnedOperator(nn.Module):
    """G_LM built from the queries of each sequence, in float32 or wider whatever the model's dtype or autocast."""

    def __init__(self, config: PldrConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.checkpoint_learner = False  # see PldrPreTrainedModel.checkpoint_metric_learner
        shape = (config.num_attention_heads, config.head_dim, config.head_dim)
        self.learner = MetricLearner(config)
        self.metric_weight = nn.Parameter(torch.empty(shape))
        self.metric_bias = nn.Parameter(torch.empty(shape))
        self.exponent = nn.Parameter(torch.empty(shape))
        self.coupling_weight = nn.Parameter(torch.empty(shape))
        self.coupling_bias = nn.Parameter(torch.empty(shape))

    def forward(self, q: Tensor, token_mask: Tensor | None, cache: PldrCache | None) -> DeductiveOutputs:
        """Build G_LM from ``q``, or read it from a cache that kept it.

        Args:
            q: rotated queries, [B, H, S, d].
            token_mask: [B, S], True at real tokens; None: all are real.
            cache: in mode ``prompt``; it keeps the first G_LM it sees.

        Raises:
            FloatingPointError: a non-finite deductive output, naming it, the layer and the heads.
        """
        kept = cache.curvature(self.layer_idx) if cache is not None else None
        if kept is not None:
            return DeductiveOutputs(None, None, None, kept)
        with torch.autocast(q.device.type, enabled=False):
            mask = None if token_mask is None else token_mask.unsqueeze(1)
            outputs = self.build(gram(widened(q), mask, check_values=False))
        if not torch.compiler.is_compiling():
            require_finite(outputs, self.layer_idx, q.dtype)
        if cache is not None:
            cache.keep_curvature(outputs.curvature, self.layer_idx)
        return outputs

    def alignment(self, q: Tensor, token_mask: Tensor | None, curvature: Tensor, blocks: int) -> Tensor:
        """How far the G_LM of each of some equal blocks of a sequence lies from ``curvature``, that of all of it.

        A block has fewer tokens, so a smaller density operator; the LayerNorm that the learner begins with takes the
        scale away again, up to its eps: what remains is a difference of form.

        Args:
            q, token_mask: as for ``forward``.
            curvature: G_LM of the sequence, [B, H, d, d].
            blocks: n.

        Returns:
            RMS over blocks, heads and sequences of ‖G_i - G‖_F / ‖G‖_F, a scalar that can be differentiated.

        Raises:
            FloatingPointError: as ``forward``, for a block.
        """
        with torch.autocast(q.device.type, enabled=False):
            mask = None if token_mask is None else token_mask.unsqueeze(1)
            parts = self.build(block_grams(widened(q), blocks, mask, check_values=False))
            if not torch.compiler.is_compiling():
                require_finite(parts, self.layer_idx, curvature.dtype)
            return relative_difference(parts.curvature, curvature)

    def build(self, density: Tensor) -> DeductiveOutputs:
        """A, A_LM, A_P and G_LM from density operators [..., H, d, d], in their dtype; call it with autocast off."""
        if self.checkpoint_learner and torch.is_grad_enabled():
            # Nothing in the learner is random, so no state of a generator needs to be kept for the second pass.
            generator = checkpoint(self.learner, density, use_reentrant=False, preserve_rng_state=False)
        else:
            generator = self.learner(density)
        w, b, p, a, b_a = (
            t.to(density.dtype)
            for t in (self.metric_weight, self.metric_bias, self.exponent, self.coupling_weight, self.coupling_bias)
        )
        metric = metric_tensor(generator, w, b, check_values=False)
        potential = potential_tensor(metric, p, check_values=False)
        return DeductiveOutputs(generator, metric, potential, curvature_tensor(potential, a, b_a, check_values=False))


class ConstantOperator(nn.Module):
    """One G_LM for every input: the collapsed model, generalized SDPA; with G = I, SDPA itself."""

    def __init__(self, config: PldrConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.seen_finite: tuple[int, int, torch.dtype] | None = None
        # A parameter, because serving engines load and shard parameters by name; a constant, so it takes no gradient.
        shape = (config.num_attention_heads, config.head_dim, config.head_dim)
        self.curvature = nn.Parameter(torch.empty(shape), requires_grad=False)

    def forward(self, q: Tensor, token_mask: Tensor | None, cache: PldrCache | None) -> DeductiveOutputs:
        """The constant, [H, d, d], which broadcasts over the batch; the arguments are those of LearnedOperator.

        Raises:
            FloatingPointError: a non-finite entry, such as those of an ``external`` constant that nobody has set.
        """
        # A view: reentrant checkpointing would make a parameter that a layer returns its own output.
        outputs = DeductiveOutputs(None, None, None, self.curvature.view_as(self.curvature))
        if not torch.compiler.is_compiling():
            # A look waits for the device, so it is taken once; again when the tensor was written, moved or cast.
            state = (self.curvature._version, self.curvature.data_ptr(), q.dtype)
            if state != self.seen_finite:
                require_finite(outputs, self.layer_idx, q.dtype)
                self.seen_finite = state
        return outputs
