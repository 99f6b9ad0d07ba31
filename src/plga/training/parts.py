"""What each part of a PLDR-LLM costs in training: numbers, bytes kept for the backward pass, temporaries, FLOPs.

One function a part, in the order of the forward pass. Whoever changes what a part keeps changes its function here; the
tests compare each with what autograd really saves. Letters: B sequences of S tokens, N = B S; H heads of width d,
D = H d; F and A_dff are inner widths; a deductive tensor has E = B H d² entries in R = B H d rows, with a chunked Gram
as many for each chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from plga.model.configuration import PldrConfig
from plga.model.loss import ROWS

METRIC_LEARNER = "metric learner"

_WIDE, _HALF, _INDEX = 4, 2, 8  # bytes of a float32, a bf16, an int64


@dataclass(frozen=True)
class Part:
    """Costs of one part; those of one layer if layers have it.

    Attributes:
        name: of the part.
        parameters: numbers that take a gradient.
        constants: numbers that take none.
        kept: bytes kept for the backward pass; what several parts need counts for the first.
        forward, backward: bytes held besides in that pass, waiting gradients of activations among them.
        flops: of matrix products in the forward pass, two for a multiply-add.
        flops_backward: of those in the backward pass.
    """

    name: str
    parameters: int = 0
    constants: int = 0
    kept: int = 0
    forward: int = 0
    backward: int = 0
    flops: int = 0
    flops_backward: int = 0


@dataclass(frozen=True)
class Shapes:
    """What one process computes at once.

    Args:
        config: of the model.
        batch: B.
        context: S.
        half: matrix products outside of the deductive branch run in bf16, by autocast.
    """

    config: PldrConfig
    batch: int
    context: int
    half: bool = False

    @property
    def tokens(self) -> int:
        """N."""
        return self.batch * self.context

    @property
    def states(self) -> int:
        """Numbers in [B, S, D]."""
        return self.tokens * self.config.hidden_size

    @property
    def stream(self) -> int:
        """Bytes of the hidden states between two parts, which are float32."""
        return self.states * _WIDE

    @property
    def chunks(self) -> int:
        """Operators a sequence and layer: one, or with a chunked Gram one for each chunk."""
        return -(-self.context // self.config.gram_chunk) if self.config.gram == "chunked" else 1

    @property
    def filled(self) -> int:
        """Numbers in the queries, [B, S, D], filled up to whole chunks."""
        chunked = self.batch * self.chunks * self.config.gram_chunk * self.config.hidden_size
        return chunked if self.config.gram == "chunked" else self.states

    @property
    def rows(self) -> int:
        """R."""
        return self.batch * self.chunks * self.config.hidden_size

    @property
    def entries(self) -> int:
        """E."""
        return self.rows * self.config.head_dim

    @property
    def density(self) -> int:
        """Bytes of D = qᵀ q, [B, H, d, d]; a chunked Gram adds up to one more, that of all chunks."""
        return self.entries * _WIDE * (self.chunks + (self.config.gram == "chunked")) // self.chunks

    @property
    def item(self) -> int:
        """Bytes of a number in the products outside of the deductive branch."""
        return _HALF if self.half else _WIDE

    @property
    def complex_rotation(self) -> bool:
        """Whether the rotary embedding rotates complex numbers; see plga.ops.rotary."""
        return self.config.rope_interleaved and not self.half

    @property
    def waiting(self) -> int:
        """Bytes of gradients that wait while the operator goes backward: of the stream and of q, k and v."""
        return 4 * self.stream

    def inputs(self, readers: int) -> int:
        """Bytes of the stream where so many linear layers read it: they share it, but each casts its own to bf16."""
        return readers * self.states * _HALF if self.half else self.stream

    def casts(self, weights: int) -> int:
        """Bytes of the bf16 copies of so many weights, which the backward pass needs."""
        return weights * _HALF if self.half else 0


def embedding(s: Shapes) -> Part:
    """Embedding: the windows, [B, S + 1] integers."""
    return Part(
        "embedding",
        parameters=s.config.vocab_size * s.config.hidden_size,
        kept=s.batch * (s.context + 1) * _INDEX,
        backward=s.stream,
    )


def embedding_norm(s: Shapes) -> Part:
    """LayerNorm of the embeddings: its input, mean and deviation."""
    return Part(
        "layer norms",
        parameters=2 * s.config.hidden_size,
        kept=s.stream + 2 * s.tokens * _WIDE,
        forward=s.stream,
        backward=2 * s.stream,
    )


def rotary_tables(s: Shapes) -> Part:
    """Cosines and sines, [S, d/2] each, which all layers share unless each makes complex numbers of them."""
    return Part("rotary embedding", kept=0 if s.complex_rotation else 2 * s.context * s.config.head_dim // 2 * _WIDE)


def rotation(s: Shapes) -> Part:
    """Rotation of q and k, as complex numbers by two tables [S, d/2] each, or as real ones."""
    tables = 2 * 2 * s.context * s.config.head_dim // 2 * 2 * _WIDE
    return Part(
        "rotary embedding",
        kept=tables if s.complex_rotation else 0,
        backward=s.waiting + 2 * s.stream,
    )


def residual_norm(s: Shapes) -> Part:
    """LayerNorm of x + f(x): the sum, mean and deviation."""
    # Autocast widens f(x) before it is added, and x in float32 is nothing that the layers f kept.
    forward = 2 * s.stream + s.states * _HALF if s.half else s.stream
    return Part(
        "layer norms",
        parameters=2 * s.config.hidden_size,
        kept=s.stream + 2 * s.tokens * _WIDE,
        forward=forward,
        backward=2 * s.stream,
    )


def projections(s: Shapes) -> Part:
    """q, k, v and output projections: x and the merged heads, [N, D] each."""
    width = s.config.hidden_size
    weights = 4 * width**2
    flops = 2 * s.tokens * weights
    return Part(
        "attention projections",
        parameters=weights + 4 * width,
        kept=s.inputs(readers=3) + s.states * s.item + s.casts(weights),
        backward=s.waiting + s.stream,
        flops=flops,
        flops_backward=2 * flops,
    )


def density(s: Shapes) -> Part:
    """D = qᵀ q: the rotated queries, which the rotation leaves in float32."""
    flops = 2 * s.filled * s.config.head_dim
    return Part(
        "density (rotated queries)",
        kept=s.filled * _WIDE,
        backward=s.waiting + 2 * s.stream,
        flops=flops,
        flops_backward=2 * flops,
    )


def metric_learner(s: Shapes) -> Part:
    """A = φ(LN(D)): LayerNorm, then residual units of SwiGLU blocks in series, in float32."""
    width, inner = s.config.head_dim, s.config.metric_intermediate_size
    units, blocks = s.config.num_metric_units, s.config.num_metric_blocks
    norm = s.entries + 2 * s.rows
    flops = units * blocks * swiglu_flops(s.rows, width, inner)
    return Part(
        METRIC_LEARNER,
        parameters=2 * width + units * (blocks * swiglu_parameters(width, inner) + 2 * width),
        kept=s.density + (2 * s.rows + units * (blocks * (s.entries + swiglu_kept(s.rows, inner)) + norm)) * _WIDE,
        backward=s.waiting + (2 * s.entries + swiglu_backward(s.rows, inner)) * _WIDE,
        flops=flops,
        flops_backward=2 * flops,
    )


def power_laws(s: Shapes) -> Part:
    """From A to G_LM, in float32: A, W A + b_W, silu of that, A_LM and A_P."""
    repeated = 2 if s.batch * s.chunks > 1 else 0  # W and a: a batched product copies what it broadcasts
    flops = 2 * 2 * s.entries * s.config.head_dim
    return Part(
        "power laws (W, b_W, P, a, b_a)",
        parameters=5 * s.config.hidden_size * s.config.head_dim,
        kept=(5 + repeated) * s.entries * _WIDE,
        backward=s.waiting + 5 * s.entries * _WIDE,
        flops=flops,
        flops_backward=2 * flops,
    )


def bent_queries(s: Shapes) -> Part:
    """q' = q G: G_LM [B, H, d, d], and under autocast the queries in bf16."""
    flops = 2 * s.filled * s.config.head_dim
    if s.config.operator == "learned":
        # In float32 the density keeps the queries; where whole chunks are filled up, that is done twice.
        again = s.half or s.filled != s.states
        constants, kept = 0, (s.entries + (s.filled if again else 0)) * s.item
    else:
        constants = s.config.hidden_size * s.config.head_dim
        kept = s.entries * s.item if s.half or s.batch > 1 else 0
    return Part(
        "bent queries (G)",
        constants=constants,
        kept=kept,
        backward=s.waiting + s.states * s.item,
        flops=flops,
        flops_backward=flops if constants else 2 * flops,
    )


def fused_attention(s: Shapes) -> Part:
    """softmax(q' kᵀ / √d) v by a fused kernel: q', k, v, output and log-sum-exp, and no [S, S] scores.

    FLOPs as torch.utils.flop_counter has them for fused kernels: of all S² scores, which the backward pass computes
    once more. A causal kernel passes over up to half of them.
    """
    flops = 2 * 2 * s.states * s.context
    return Part(
        "fused attention (q', k, v, output)",
        kept=(s.filled + 3 * s.states) * s.item + s.tokens * s.config.num_attention_heads * _WIDE,
        backward=s.stream + 4 * s.states * s.item,
        flops=flops,
        flops_backward=5 * flops // 2,
    )


def feed_forward(s: Shapes) -> Part:
    """SwiGLU of the block."""
    width, inner = s.config.hidden_size, s.config.intermediate_size
    assert inner is not None  # the configuration filled it in
    flops = swiglu_flops(s.tokens, width, inner)
    return Part(
        "feed-forward",
        parameters=swiglu_parameters(width, inner),
        kept=s.inputs(readers=2) + swiglu_kept(s.tokens, inner) * s.item + s.casts(3 * width * inner),
        backward=s.stream + swiglu_backward(s.tokens, inner) * s.item,
        flops=flops,
        flops_backward=2 * flops,
    )


def head_and_loss(s: Shapes) -> Part:
    """Head and cross-entropy of next_token_cross_entropy."""
    width, vocabulary = s.config.hidden_size, s.config.vocab_size
    parameters = (width + 1) * vocabulary
    logits = s.tokens * vocabulary
    flops = 2 * s.states * vocabulary
    if s.half:
        # Under autocast they are two functions: kept are log-probabilities, [B, S, V] in float32, with the targets and
        # their number. Beside them come the logits in bf16 and float32; backward, the gradients on either side of the
        # log-softmax, before those of the head arrive.
        targets = s.tokens * _INDEX if s.batch > 1 else 0  # copied out of the windows
        kept = logits * _WIDE + s.inputs(readers=1) + s.casts(width * vocabulary) + targets + _WIDE
        forward = logits * (_HALF + _WIDE) + s.stream
        backward = max(2 * logits - parameters, 0) * _WIDE
    else:
        # One function, which goes through chunks of rows and computes gradients in the forward pass: kept are those of
        # hidden states, weight and bias, and no logits. Backward, autograd fills zeros of the same shapes for outputs
        # that have no gradient; those of weight and bias stand here as the gradients that arrive.
        kept = s.stream + parameters * _WIDE
        forward, backward = s.stream + min(ROWS, s.tokens) * (vocabulary + width) * _WIDE, s.stream
    return Part(
        "head and loss",
        parameters=parameters,
        kept=kept,
        forward=forward,
        backward=backward,
        flops=flops,
        flops_backward=2 * flops,
    )


def layer(s: Shapes) -> Iterator[Part]:
    """The parts of a layer."""
    yield projections(s)
    yield rotation(s)
    if s.config.operator == "learned":
        yield density(s)
        yield metric_learner(s)
        yield power_laws(s)
    yield bent_queries(s)
    yield fused_attention(s)
    yield residual_norm(s)
    yield feed_forward(s)
    yield residual_norm(s)


def swiglu_parameters(width: int, inner: int) -> int:
    """Weights and biases of down(silu(gate(x)) · up(x))."""
    return 3 * width * inner + 2 * inner + width


def swiglu_kept(rows: int, inner: int) -> int:
    """Numbers kept beside x: gate, silu(gate), up and their product."""
    return 4 * rows * inner


def swiglu_backward(rows: int, inner: int) -> int:
    """Numbers held besides: the gradients of silu(gate) and up; that of the product takes the place of the product."""
    return 2 * rows * inner


def swiglu_flops(rows: int, width: int, inner: int) -> int:
    """Of three products."""
    return 3 * 2 * rows * width * inner
