import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.ops.density import block_grams, gram
from tests import numpy_reference as ref
from tests.ops.examples import DTYPES, LEADS, SEEDS, WIDTHS, close, normal


def test_by_hand() -> None:
    q = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(gram(q), torch.tensor([[10.0, 14.0], [14.0, 20.0]]))
    assert torch.equal(gram(q, torch.tensor([False, True])), torch.tensor([[9.0, 12.0], [12.0, 16.0]]))
    assert torch.equal(gram(q, torch.tensor([0, 0])), torch.zeros(2, 2))
    assert torch.equal(gram(torch.empty(2, 0, 3)), torch.zeros(2, 3, 3))  # no token: an empty sum


@given(LEADS, st.integers(1, 9), WIDTHS, DTYPES, SEEDS)
def test_is_a_sum_of_outer_products(lead, length, width, dtype, seed) -> None:
    q = normal(*lead, length, width, seed=seed, dtype=dtype)
    density = gram(q)
    assert density.dtype == dtype
    close(density, torch.einsum("...si,...sj->...ij", q.double(), q.double()))
    close(density, density.mT)
    assert torch.linalg.eigvalsh(density.double()).min() >= -1e-5 * density.abs().max()  # positive semidefinite


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 8), WIDTHS, SEEDS)
def test_equals_the_numpy_reference(batch, heads, length, width, seed) -> None:
    q = normal(batch, heads, length, width, seed=seed)
    mask = normal(batch, length, seed=seed + 1) > 0
    expected = torch.from_numpy(np.ascontiguousarray(ref.gram(q.numpy(), mask.numpy())))
    close(gram(q, mask[:, None]), expected)


@given(LEADS, st.integers(1, 8), WIDTHS, DTYPES, SEEDS, st.sampled_from([torch.nan, torch.inf, -1e30, 1.0]))
def test_padding_never_enters(lead, length, width, dtype, seed, garbage) -> None:
    q = normal(*lead, length, width, seed=seed, dtype=dtype)
    mask = normal(*lead, length, seed=seed + 1) > 0
    clean = gram(q, mask)
    dirty = torch.where(mask[..., None], q, garbage)
    assert torch.equal(gram(dirty, mask), clean)
    assert torch.equal(gram(dirty, mask.long()), clean)  # a tokenizer's 0/1 mask
    rows, real = q.reshape(-1, length, width), mask.reshape(-1, length)
    alone = torch.stack([gram(row[keep]) for row, keep in zip(rows, real, strict=True)])
    close(clean, alone.reshape(clean.shape))


def test_one_mask_for_all_heads() -> None:
    q, mask = normal(2, 3, 5, 4), torch.arange(5) < torch.tensor([[5], [2]])  # [B, S]
    assert torch.equal(gram(q, mask[:, None]), gram(q, mask[:, None].expand(2, 3, 5)))
    assert torch.equal(gram(q, mask[:, None])[1], gram(q[1, :, :2]))


@pytest.mark.parametrize("masked", [False, True])
def test_gradient(masked: bool) -> None:
    q = normal(2, 3, 4).requires_grad_()
    mask = torch.tensor([[True, False, True], [True, True, False]]) if masked else None
    assert torch.autograd.gradcheck(lambda q: gram(q, mask), q)


def test_padding_receives_no_gradient() -> None:
    q = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]], requires_grad=True)
    gram(q, torch.tensor([True, False])).sum().backward()
    assert torch.equal(q.grad, torch.tensor([[6.0, 6.0], [0.0, 0.0]]))


def test_values_are_checked_only_on_request() -> None:
    q = torch.tensor([[torch.nan, 1.0]])
    with pytest.raises(ValueError, match=r"^q is \(1, 2\) float32 with 1 non-finite entries, expected finite"):
        gram(q)
    assert gram(q, check_values=False).isnan().any()


@pytest.mark.parametrize(
    ("q", "mask", "message"),
    [
        ([[1.0]], None, r"^q is list, expected a torch.Tensor"),
        (torch.ones(2, 3, dtype=torch.long), None, r"^q is \(2, 3\) int64, expected a floating-point dtype"),
        (torch.ones(3), None, r"^q is \(3,\) float32, expected at least 2 axes"),
        (torch.ones(2, 3, 4), torch.ones(2, 3), r"^mask is \(2, 3\) .*float32, expected bool or integer"),
        (torch.ones(2, 3, 4), torch.ones(2, 4).bool(), r"^mask is \(2, 4\) bool, expected .*\(2, 3\)"),
        (torch.ones(2, 3, 4), torch.ones(5, 2, 3).bool(), r"^mask is \(5, 2, 3\) bool, expected .*\(2, 3\)"),
    ],
)
def test_bad_input(q, mask, message) -> None:
    with pytest.raises(ValueError, match=message):
        gram(q, mask)


# Blocks ---------------------------------------------------------------------------------------------------------------


def test_blocks_by_hand() -> None:
    q = torch.tensor([[1.0], [2.0], [3.0], [4.0]])[None]  # [H, S, d]
    assert block_grams(q, 2).flatten().tolist() == [5.0, 25.0]
    assert block_grams(q, 3).flatten().tolist() == [5.0, 9.0, 16.0]  # 2 + 1 + 1 tokens
    assert block_grams(q, 2, torch.tensor([0, 1, 0, 1])).flatten().tolist() == [4.0, 16.0]
    assert block_grams(q, 2, torch.tensor([1, 1, 1, 0])).flatten().tolist() == [5.0, 9.0]


@given(LEADS, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), WIDTHS, SEEDS)
def test_blocks_are_runs_of_real_tokens(lead, heads, blocks, each, width, seed) -> None:
    q = normal(*lead, heads, blocks * each, width, seed=seed)
    ours = block_grams(q, blocks)
    assert ours.shape == (*lead, blocks, heads, width, width)
    for number in range(blocks):
        close(ours.select(-4, number), gram(q[..., number * each : (number + 1) * each, :]))
    close(ours.sum(-4), gram(q))
    # Padding on either side, whatever stands there.
    padded = torch.nn.functional.pad(q, (0, 0, 1, 2), value=torch.nan)
    mask = torch.ones(padded.shape[-2], dtype=torch.bool)
    mask[0] = mask[-2:] = False
    close(block_grams(padded, blocks, mask), ours)
    close(block_grams(q, blocks, torch.ones(q.shape[-2], dtype=torch.long)), ours)


def test_blocks_of_sequences_of_different_lengths() -> None:
    q, mask = normal(2, 3, 6, 4), torch.tensor([[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]])
    ours = block_grams(q, 2, mask[:, None])
    close(ours[0], block_grams(q[0, :, :5], 2))
    close(ours[1], block_grams(q[1, :, 2:], 2))


@pytest.mark.parametrize("masked", [False, True])
def test_gradient_of_blocks(masked: bool) -> None:
    q = normal(2, 2, 4, 3).requires_grad_()
    mask = torch.tensor([True, False, True, True]) if masked else None
    assert torch.autograd.gradcheck(lambda q: block_grams(q, 2, mask), q)


@pytest.mark.parametrize(
    ("blocks", "mask", "message"),
    [
        (0, None, "^blocks is 0, expected from 1 to the 4 tokens of q"),
        (5, None, "^blocks is 5, expected from 1 to the 4 tokens of q"),
        (3, [0, 1, 1, 0], "^the number of real tokens of a sequence is 2, expected at least 3"),
        (2, [1, 1, 1], r"^mask is \(3,\) int64, expected"),
    ],
)
def test_blocks_that_cannot_be(blocks: int, mask: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        block_grams(normal(2, 4, 3), blocks, None if mask is None else torch.tensor(mask))
