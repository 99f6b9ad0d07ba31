"""Chunks of a sequence: where its tokens stand, their Grams, and rows bent by the operator of their chunk."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plga.ops.attention import bend
from plga.ops.chunks import Layout, align, bend_chunks, chunk_grams, in_order, layout, sums_before
from plga.ops.density import gram
from tests.ops.examples import SEEDS, close, normal

# Real tokens (1) and padding anywhere, at least one token in all.
MASKS = st.integers(1, 9).flatmap(
    lambda length: st.lists(st.lists(st.integers(0, 1), min_size=length, max_size=length), min_size=1, max_size=3)
)


def test_layout_by_hand() -> None:
    assert layout(4, 8) == Layout(4, 2, 0, 2, True, None)
    assert layout(4, 7) == Layout(4, 2, 0, 1, True, None)
    assert layout(4, 2, past=5) == Layout(4, 1, 1, 0, False, None)
    assert layout(4, 3, past=5) == Layout(4, 1, 1, 1, False, None)
    assert layout(4, 1, past=8) == Layout(4, 1, 0, 0, True, None)

    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]])
    chunks = layout(2, 4, past=2, mask=mask)
    assert (chunks.size, chunks.number, chunks.begins) == (2, 3, True)
    assert chunks.phase.tolist() == [0, 0] and chunks.after.tolist() == [1, 2]
    assert chunks.slots.tolist() == [[0, 1, 2, 6], [0, 1, 2, 3]]
    assert not layout(4, 4, past=2, mask=torch.ones(2, 6)).begins


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 9), SEEDS)
def test_a_mask_of_ones_changes_nothing(size: int, tokens: int, past: int, seed: int) -> None:
    plain, masked = layout(size, tokens, past), layout(size, tokens, past, torch.ones(2, past + tokens))
    q = normal(2, 3, tokens, 4, seed=seed)
    fewer = min(plain.number, masked.number)
    assert torch.equal(chunk_grams(q, plain)[:, :fewer], chunk_grams(q, masked)[:, :fewer])
    assert not chunk_grams(q, masked)[:, plain.number :].any()
    assert masked.after.tolist() == [plain.after] * 2 and masked.phase.tolist() == [plain.phase] * 2
    assert masked.begins == plain.begins
    for chunks in (plain, masked):
        assert torch.equal(in_order(align(q, chunks), chunks, tokens), q)


def by_hand(q: Tensor, size: int, past: int, mask: Tensor) -> list[list[Tensor]]:
    """Rows [H, d] of every chunk, by sequence and chunk of the pass, counted one token after the other."""
    chunks: list[list[Tensor]] = []
    for sequence, real in zip(q, mask, strict=True):
        count = int(real[:past].sum())
        first, rows = count // size, []
        for row in range(q.shape[2]):
            if real[past + row]:
                rows.append((count // size - first, sequence[:, row]))
                count += 1
        chunks.append(rows)
    return chunks


@given(st.integers(1, 4), MASKS, st.data(), SEEDS)
def test_grams_and_bends_are_those_of_tokens_counted_by_hand(size: int, masks, data, seed: int) -> None:
    mask = torch.tensor(masks)
    past = data.draw(st.integers(0, mask.shape[1] - 1))
    q = normal(len(mask), 2, mask.shape[1] - past, 3, seed=seed)
    dirty = q.masked_fill(mask[:, None, past:, None] == 0, torch.nan)
    chunks = layout(size, q.shape[2], past, mask)
    curvature = normal(len(mask), chunks.number, 2, 3, 3, seed=seed + 1)
    grams, bent = chunk_grams(dirty, chunks), bend_chunks(dirty, curvature, chunks)
    assert grams.shape == curvature.shape and bent.shape == q.shape
    for sequence, rows in enumerate(by_hand(q, size, past, mask)):
        for chunk in range(chunks.number):
            members = [row for number, row in rows if number == chunk]
            expected = gram(torch.stack(members, dim=1)) if members else torch.zeros(2, 3, 3, dtype=q.dtype)
            close(grams[sequence, chunk], expected)
        real = mask[sequence, past:] == 1
        expected = [bend(row[:, None], curvature[sequence, number])[:, 0] for number, row in rows]
        assert not bent[sequence][:, ~real].any()
        if expected:
            close(bent[sequence][:, real], torch.stack(expected, dim=1))


def test_sums_before_each_chunk() -> None:
    grams = normal(2, 3, 1, 2, 2)
    sums = sums_before(grams)
    assert sums.shape == (2, 4, 1, 2, 2)
    assert not sums[:, 0].any()
    for chunk in range(1, 4):
        close(sums[:, chunk], grams[:, :chunk].sum(1))
    start = normal(2, 1, 2, 2, seed=1)
    close(sums_before(grams, start), sums + start[:, None])


@pytest.mark.parametrize("mask", [None, [[1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]]], ids=["whole", "padded"])
def test_gradient(mask: list[list[int]] | None) -> None:
    chunks = layout(2, 5, 1, None if mask is None else torch.tensor(mask))
    q = normal(2, 2, 5, 3).requires_grad_()
    curvature = normal(2, chunks.number, 2, 3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda q: chunk_grams(q, chunks), q)
    assert torch.autograd.gradcheck(lambda q, curvature: bend_chunks(q, curvature, chunks), (q, curvature))


def test_padding_receives_no_gradient() -> None:
    chunks = layout(2, 3, mask=torch.tensor([[1, 0, 1]]))
    q = torch.ones(1, 1, 3, 2)
    q[..., 1, :] = torch.nan
    q.requires_grad_()
    (chunk_grams(q, chunks).sum() + bend_chunks(q, torch.eye(2).expand(1, 2, 1, 2, 2), chunks).sum()).backward()
    assert q.grad.isfinite().all() and not q.grad[..., 1, :].any() and q.grad[..., 0, :].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layout(0, 3), "^size is 0, expected >= 1"),
        (lambda: layout(2, 3, 1, torch.ones(2, 3)), r"^mask is \(2, 3\), expected \[B, past \+ S\] with past \+ S = 4"),
        (lambda: layout(2, 3, 0, [[1, 1, 1]]), "^mask is list"),
        (lambda: chunk_grams(torch.ones(1, 2, 3), layout(2, 2)), r"^q is \(1, 2, 3\) .*, expected at least 4 axes"),
        (lambda: chunk_grams(torch.ones(1, 1, 1, 2, 3), layout(2, 2)), r"^q is .*, expected \[B, H, S, d\]"),
        (
            lambda: bend_chunks(torch.ones(1, 2, 4, 3), torch.ones(1, 1, 2, 3, 3), layout(2, 4)),
            r"^curvature is \(1, 1, 2, 3, 3\), expected \(1, 2, 2, 3, 3\)",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
