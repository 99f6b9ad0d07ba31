"""Memory and FLOPs of a training step, from the shapes alone: nothing is allocated and nothing runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from plga.model.configuration import PldrConfig
from plga.model.sizes import bytes_per_sequence
from plga.training import parts
from plga.training.parts import Part, Shapes

PRECISIONS = ("float32", "bf16")
CHECKPOINTING = ("none", "learner", "layers")
STRATEGIES = ("ddp", "fsdp2")

_NUMBER = 4  # bytes of a parameter, of its gradient and of each moment of AdamW: float32 under autocast too


@dataclass(frozen=True)
class Peak:
    """Bytes that a process holds at the fullest moment of a step.

    Attributes:
        moment: which.
        parameters, optimizer: of the process.
        gradients: those of parameters that are there by then.
        activations: kept for the backward pass and not used up yet.
        temporaries: of what is being computed, gradients of activations among them.
        communication: buckets of DDP; with FSDP2 the parameters and gradients that are gathered.
    """

    moment: str
    parameters: int
    optimizer: int
    gradients: int
    activations: int
    temporaries: int
    communication: int

    @property
    def total(self) -> int:
        """All of it."""
        held = self.parameters + self.optimizer + self.gradients + self.activations
        return held + self.temporaries + self.communication


@dataclass(frozen=True)
class Flops:
    """FLOPs of the two passes; the backward one's include what it recomputes."""

    forward: int
    backward: int


@dataclass(frozen=True)
class Plan:
    """What a training step costs one process.

    Attributes:
        numbers: in the whole model, by part.
        parameters, gradients, optimizer: bytes on this process; all of them are there when the optimizer steps.
        activations: bytes by part that the backward pass finds, of all layers.
        peak: the fullest moment of the second step or a later one; in the first, AdamW has no state yet.
        tokens: that the process trains on in a step.
        flops: by part, for these tokens.
        curvature: bytes of G_LM, [H, d, d], of one layer and sequence in float32.
        generation: bytes that the sequences keep between two steps of generation.
    """

    numbers: dict[str, int]
    parameters: int
    gradients: int
    optimizer: int
    activations: dict[str, int]
    peak: Peak
    tokens: int
    flops: dict[str, Flops]
    curvature: int
    generation: dict[str, int]


def plan(
    config: PldrConfig,
    batch: int,
    context: int,
    precision: str = "float32",
    checkpointing: str = "none",
    processes: int = 1,
    strategy: str = "ddp",
    accumulate: int = 1,
) -> Plan:
    """Plan a step on the block cross-entropy with fused AdamW and fused attention, on full windows without padding.

    Args:
        config: of the model.
        batch: sequences that a process computes at once.
        context: tokens of each.
        precision: ``float32``, or ``bf16`` autocast: parameters, gradients, AdamW, LayerNorms, the loss and the
            deductive branch stay float32.
        checkpointing: what the backward pass recomputes: nothing, the metric ``learner``, whole ``layers``.
        processes: that train together.
        strategy: how more than one share the model: ``ddp`` or ``fsdp2``.
        accumulate: parts that a process computes one after another before it steps.

    Raises:
        ValueError: a number below 1, a context beyond the model's positions, an unknown choice, a metric learner to
            recompute where there is none.
    """
    for name, number in {
        "batch": batch,
        "context": context,
        "processes": processes,
        "accumulate": accumulate,
    }.items():
        if number < 1:
            raise ValueError(f"{name} is {number}, expected >= 1")
    if context > config.max_position_embeddings:
        raise ValueError(f"context is {context}, expected <= {config.max_position_embeddings}, the model's positions")
    for name, value, choices in (
        ("precision", precision, PRECISIONS),
        ("checkpointing", checkpointing, CHECKPOINTING),
        ("strategy", strategy, STRATEGIES),
    ):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}, expected one of {', '.join(choices)}")
    if checkpointing == "learner" and config.operator == "constant":
        raise ValueError("checkpointing is 'learner', but the operator is constant, which has no metric learner")

    step = _Step(Shapes(config, batch, context, half=precision == "bf16"), checkpointing)
    share = _Share(step, processes, strategy, accumulate > 1)
    generation = bytes_per_sequence(config, context, torch.bfloat16 if precision == "bf16" else torch.float32)
    shared = {"G_LM"} if config.operator == "constant" else set()  # by all sequences
    return Plan(
        numbers=_by_name((part.name, part.parameters + part.constants) for part in step.parts()),
        parameters=share.of(_stored(step.parts())),
        gradients=share.gradients(_gradients(step.parts())),
        optimizer=share.of(2 * _gradients(step.parts())),
        activations=_by_name(kept for piece in step.pieces() for kept in piece.kept_by_name()),
        peak=_Walk(step, share).peak(),
        tokens=accumulate * batch * context,
        flops=step.flops(accumulate),
        curvature=config.num_attention_heads * config.head_dim**2 * _NUMBER,
        generation={name: size * (1 if name in shared else batch) for name, size in generation.items()},
    )


@dataclass(frozen=True)
class _Piece:
    """Parts of the forward pass in a row.

    Attributes:
        parts: in their order.
        recomputed: what the backward pass computes again, by name; None: nothing.
        inputs: bytes that are kept then, instead of what the parts keep.
        shared: bytes of ``inputs`` that the parts, computed again, keep too.
    """

    parts: Sequence[Part]
    recomputed: str | None = None
    inputs: int = 0
    shared: int = 0

    @property
    def kept(self) -> int:
        """Bytes that the backward pass finds."""
        return self.inputs if self.recomputed else sum(part.kept for part in self.parts)

    def kept_by_name(self) -> Iterator[tuple[str, int]]:
        """The same by part."""
        if self.recomputed:
            yield f"inputs of {self.recomputed} (recomputed)", self.inputs
        else:
            yield from ((part.name, part.kept) for part in self.parts)


class _Step:
    """A step in its order: ``before`` the layers, ``layer`` by layer, and what comes ``after`` them."""

    def __init__(self, shapes: Shapes, checkpointing: str) -> None:
        self.layers = shapes.config.num_hidden_layers
        self.before = _Piece([parts.embedding(shapes), parts.embedding_norm(shapes), parts.rotary_tables(shapes)])
        self.layer = list(_pieces(shapes, checkpointing))
        self.after = _Piece([parts.head_and_loss(shapes)])

    def pieces(self) -> Iterator[_Piece]:
        """Those of all layers."""
        yield self.before
        for _ in range(self.layers):
            yield from self.layer
        yield self.after

    def parts(self) -> Iterator[Part]:
        """Those of all layers."""
        return (part for piece in self.pieces() for part in piece.parts)

    def flops(self, times: int) -> dict[str, Flops]:
        """Of all layers, by part, so many times."""
        again = {id(part) for piece in self.layer if piece.recomputed for part in piece.parts}
        forward = _by_name((part.name, part.flops) for part in self.parts())
        backward = _by_name(
            (part.name, part.flops_backward + part.flops * (id(part) in again)) for part in self.parts()
        )
        return {name: Flops(times * forward[name], times * backward[name]) for name in forward}


def _pieces(shapes: Shapes, checkpointing: str) -> Iterator[_Piece]:
    layer = list(parts.layer(shapes))
    if checkpointing == "layers":
        yield _Piece(layer, "layers", shapes.stream, shared=0 if shapes.half else shapes.stream)
        return
    for part in layer:
        if checkpointing == "learner" and part.name == parts.METRIC_LEARNER:
            yield _Piece([part], "metric learners", shapes.density, shared=shapes.density)
        else:
            yield _Piece([part])


class _Share:
    """What a process holds of the model, and what for the others' sake.

    FSDP2 gathers the parameters of a layer, and of the next one ahead, while it is computed, those outside of the
    layers from beginning to end; gradients are whole until a layer is done, and while parts of a step add up.
    """

    def __init__(self, step: _Step, processes: int, strategy: str, accumulating: bool) -> None:
        self.accumulating = accumulating
        self.processes = processes if strategy == "fsdp2" else 1
        layer = [part for piece in step.layer for part in piece.parts]
        outer = [*step.before.parts, *step.after.parts]
        sharded = self.processes > 1
        self.layers = step.layers
        self.layer = _stored(layer) if sharded else 0
        self.outer = _stored(outer) if sharded else 0
        # DDP copies gradients into buckets that it exchanges.
        self.buckets = _gradients(step.parts()) if strategy == "ddp" and processes > 1 else 0

    def of(self, size: int) -> int:
        """Bytes of this process."""
        return -(-size // self.processes)

    def gradients(self, size: int) -> int:
        """Bytes of gradients that are done."""
        return size if self.accumulating else self.of(size)

    def forward(self) -> int:
        """Gathered while a layer is computed: its parameters arrive in one buffer and are copied out of it."""
        return self.outer + 2 * self.layer

    def backward(self, index: int) -> int:
        """Gathered while layer ``index`` = 0, 1, ... goes backward."""
        ahead = 2 if index > 0 else 1  # parameters of the layer below, or only gradients of its own
        behind = 1 if index < self.layers - 1 else 0  # gradients of the layer above, on their way
        return self.outer + (1 + ahead + behind) * self.layer


class _Walk:
    """Goes through a step and remembers its fullest moment."""

    def __init__(self, step: _Step, share: _Share) -> None:
        self.step, self.share = step, share
        self.held = {
            "parameters": share.of(_stored(step.parts())),
            "optimizer": share.of(2 * _gradients(step.parts())),
        }
        self.kept = 0
        self.gradients = share.gradients(_gradients(step.parts())) if share.accumulating else 0
        self.fullest: Peak | None = None

    def peak(self) -> Peak:
        """The fullest moment."""
        step, share = self.step, self.share
        self._forward(step.before, "", share.outer)
        for number in range(1, step.layers + 1):
            for piece in step.layer:
                self._forward(piece, f", layer {number}", share.forward())
        self._forward(step.after, "", share.outer)
        self._backward(step.after, "", share.outer, whole=True)
        for index in reversed(range(step.layers)):
            for piece in reversed(step.layer):
                self._backward(piece, f", layer {index + 1}", share.backward(index), whole=False)
        self._backward(step.before, "", share.outer + share.layer, whole=True)
        self.gradients = share.gradients(_gradients(step.parts()))
        self._look("the optimizer's step", 0, 0)
        assert self.fullest is not None
        return self.fullest

    def _forward(self, piece: _Piece, where: str, communication: int) -> None:
        if piece.recomputed:  # the backward pass of such a piece is fuller than its forward pass
            self.kept += piece.kept
            return
        for part in piece.parts:
            self.kept += part.kept
            self._look(f"forward pass, {part.name}{where}", part.forward, communication)

    def _backward(self, piece: _Piece, where: str, communication: int, whole: bool) -> None:
        if piece.recomputed:
            self.kept += sum(part.kept for part in piece.parts) - piece.shared
        for part in reversed(piece.parts):
            arriving = _gradients([part])
            if not self.share.accumulating:
                self.gradients += arriving if whole else self.share.of(arriving)
            temporaries = part.backward + (arriving if self.share.accumulating else 0)
            self._look(f"backward pass, {part.name}{where}", temporaries, communication)
            self.kept -= part.kept
        if piece.recomputed:
            self.kept -= piece.inputs - piece.shared

    def _look(self, moment: str, temporaries: int, communication: int) -> None:
        peak = Peak(
            moment=moment,
            gradients=self.gradients,
            activations=self.kept,
            temporaries=temporaries,
            communication=communication + self.share.buckets,
            **self.held,
        )
        if self.fullest is None or peak.total > self.fullest.total:
            self.fullest = peak


def _stored(of: Iterable[Part]) -> int:
    return _NUMBER * sum(part.parameters + part.constants for part in of)


def _gradients(of: Iterable[Part]) -> int:
    return _NUMBER * sum(part.parameters for part in of)


def _by_name(items: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, number in items:
        sums[name] = sums.get(name, 0) + number
    return sums
