"""A sequence in chunks: the Gram of each, and rows bent by the operator of their chunk (experimental, a conjecture).

That an operator built from the chunks before a row serves as well as one built from the whole sequence is conjectured;
that no row then sees its target or a later token holds by construction.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from plga.ops import _check
from plga.ops.attention import bend
from plga.ops.density import gram


class Layout(NamedTuple):
    """Where the tokens of one pass stand: in the slots of n chunks of K slots, the first chunk perhaps begun before.

    Args:
        size: K.
        number: n, chunks that tokens of this pass may stand in.
        phase: real tokens that the first chunk had before this pass: [B], or a number if no token is padding.
        after: chunk, counted from the first of this pass, of the real token that will follow it: [B] or a number.
        begins: whether the pass begins its first chunk, for some sequence at least.
        slots: [B, S], the slot of each token, n K at padding; None: phase, phase + 1, ...
    """

    size: int
    number: int
    phase: Tensor | int
    after: Tensor | int
    begins: bool
    slots: Tensor | None


def layout(size: int, tokens: int, past: int = 0, mask: Tensor | None = None) -> Layout:
    """Layout of a pass over ``tokens`` tokens that follow ``past`` others, counted over real tokens.

    Args:
        size: K >= 1, real tokens a chunk.
        tokens: S >= 1.
        past: tokens of earlier passes, padding included.
        mask: True (or 1) at real tokens, [B, past + S]. None: all are real.

    Raises:
        ValueError: a ``size`` below 1, or a ``mask`` of another shape.
    """
    if size < 1:
        raise ValueError(f"size is {size}, expected >= 1")
    if mask is None:
        phase = past % size
        return Layout(size, -(-(phase + tokens) // size), phase, (phase + tokens) // size, phase == 0, None)
    _check.tensor("mask", mask)
    if mask.dim() != 2 or mask.shape[1] != past + tokens:
        raise ValueError(f"mask is {tuple(mask.shape)}, expected [B, past + S] with past + S = {past + tokens}")
    real = mask.bool()
    before = real[:, :past].sum(dim=-1)
    phases = before % size
    # From the shapes alone, so that no accelerator is waited for: a sequence may fill all but one slot of a chunk.
    number = -(-((size - 1 if past else 0) + tokens) // size)
    new = real[:, past:]
    counted = phases.unsqueeze(1) + new.cumsum(dim=-1)
    begins = not past or bool((phases == 0).any())
    return Layout(size, number, phases, counted[:, -1] // size, begins, torch.where(new, counted - 1, number * size))


def align(x: Tensor, chunks: Layout) -> Tensor:
    """Tokens in their slots, zeros in empty ones; padding is left out: [B, H, S, d] → [B, H, n, K, d]."""
    slots = chunks.number * chunks.size
    if chunks.slots is None:
        assert isinstance(chunks.phase, int)
        free = slots - chunks.phase - x.shape[2]
        x = torch.nn.functional.pad(x, (0, 0, chunks.phase, free)) if chunks.phase or free else x
    else:
        # Padding goes to one slot more, which is then cut off with whatever stood there.
        empty = x.new_zeros(*x.shape[:2], slots + 1, x.shape[3])
        x = empty.scatter(2, _index(chunks.slots, x), x)[:, :, :-1]
    return x.unflatten(2, (chunks.number, chunks.size))


def in_order(aligned: Tensor, chunks: Layout, tokens: int) -> Tensor:
    """The inverse of :func:`align`, with zeros at padding: [B, H, n, K, d] → [B, H, S, d]."""
    x = aligned.flatten(2, 3)
    if chunks.slots is None:
        assert isinstance(chunks.phase, int)
        return x[:, :, chunks.phase : chunks.phase + tokens]
    x = torch.nn.functional.pad(x, (0, 0, 0, 1))
    return x.gather(2, _index(chunks.slots, x))


def _index(slots: Tensor, x: Tensor) -> Tensor:
    return slots[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])


def chunk_grams(q: Tensor, chunks: Layout) -> Tensor:
    """Density operator of each chunk: what the tokens of this pass add to it.

    Args:
        q: queries after the rotary embedding, [B, H, S, d], floating point.
        chunks: from :func:`layout`.

    Returns:
        [B, n, H, d, d], in the dtype of ``q``.

    Raises:
        ValueError: ``q`` is not a floating tensor of four axes.
    """
    _check_queries(q)
    return gram(align(q, chunks), check_values=False).transpose(1, 2)


def sums_before(grams: Tensor, start: Tensor | None = None) -> Tensor:
    """Density operator of all that comes before each chunk, and at the end that of all chunks.

    Args:
        grams: of each chunk, [B, n, H, d, d].
        start: of what comes before the first, [B, H, d, d]; None: nothing does, and D = 0.

    Returns:
        [B, n + 1, H, d, d].
    """
    first = torch.zeros_like(grams[:, :1]) if start is None else start.unsqueeze(1)
    return torch.cat((first, grams), dim=1).cumsum(dim=1)


def bend_chunks(q: Tensor, curvature: Tensor, chunks: Layout) -> Tensor:
    """q' = q G_LM with the G_LM of the chunk that each row stands in.

    Args:
        q: queries, [B, H, S, d].
        curvature: G_LM of each chunk, [B, n, H, d, d]; cast to the dtype of ``q``.
        chunks: from :func:`layout`.

    Returns:
        q', [B, H, S, d]; zeros at padding.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    _check_queries(q)
    _check.square("curvature", curvature)
    shape = (q.shape[0], chunks.number, q.shape[1], q.shape[3], q.shape[3])
    if tuple(curvature.shape) != shape:
        raise ValueError(f"curvature is {tuple(curvature.shape)}, expected {shape}: [B, n, H, d, d] with those of q")
    return in_order(bend(align(q, chunks), curvature.transpose(1, 2), check_values=False), chunks, q.shape[2])


def _check_queries(q: Tensor) -> None:
    _check.floating("q", q, min_dims=4)
    if q.dim() != 4:
        raise ValueError(f"q is {tuple(q.shape)}, expected [B, H, S, d]")
