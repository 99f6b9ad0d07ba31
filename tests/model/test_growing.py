"""Growing: what it holds is what concatenation gives, whatever was done to it in between."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plga.model.growing import Growing

EMPTY = torch.tensor([])


def piece(tokens: int, start: int = 0, batch: int = 2) -> Tensor:
    numbers = torch.arange(start, start + batch * 3 * tokens * 4, dtype=torch.float32)
    return numbers.view(batch, 3, tokens, 4)


@torch.no_grad()
@given(lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6), room=st.sampled_from([0, 1, 50, 600]))
def test_it_is_concatenation(lengths: list[int], room: int) -> None:
    growing, kept, pieces = Growing(), EMPTY, []
    for number, tokens in enumerate(lengths):
        pieces.append(piece(tokens, 1000 * number))
        kept = growing.append(kept, pieces[-1], room)
        assert torch.equal(kept, torch.cat(pieces, dim=-2))


@torch.no_grad()
def test_a_token_is_written_behind_the_others_without_copying_them() -> None:
    growing = Growing()
    kept = growing.append(EMPTY, piece(5), room=7)
    longer = growing.append(kept, piece(2))
    assert longer.data_ptr() == kept.data_ptr()
    assert growing.append(longer, piece(1)).data_ptr() != kept.data_ptr()


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, :, :3],
        lambda x: x[[1, 0]],
        lambda x: x[:1],
        lambda x: x.repeat_interleave(2, dim=0),
        lambda x: x[:, :, 1:],
        lambda x: x.clone(),
    ],
    ids=["crop", "reorder", "select", "repeat", "cut the beginning", "copy"],
)
def test_what_was_kept_may_be_changed_in_between(change: object) -> None:
    growing = Growing()
    kept = change(growing.append(EMPTY, piece(5)))  # type: ignore[operator]
    new = piece(2, 500, batch=kept.shape[0])
    wanted = torch.cat([kept, new], dim=-2)
    assert torch.equal(growing.append(kept, new), wanted)


@torch.no_grad()
def test_a_deep_copy_goes_its_own_way() -> None:
    growing = Growing()
    kept = growing.append(EMPTY, piece(5))
    twin, its = copy.deepcopy((growing, kept))
    ours, theirs = growing.append(kept, piece(1, 100)), twin.append(its, piece(1, 200))
    assert torch.equal(ours[:, :, 5:], piece(1, 100)) and torch.equal(theirs[:, :, 5:], piece(1, 200))


def test_gradients_go_through() -> None:
    growing, first, second = Growing(), piece(2).requires_grad_(), piece(1).requires_grad_()
    growing.append(growing.append(EMPTY, first), second).sum().backward()
    assert torch.equal(first.grad, torch.ones_like(first)) and torch.equal(second.grad, torch.ones_like(second))


def test_what_was_made_in_inference_mode_can_go_on_outside() -> None:
    growing = Growing()
    with torch.inference_mode():
        kept = growing.append(EMPTY, piece(2))
    with torch.no_grad():
        assert torch.equal(growing.append(kept, piece(1)), torch.cat([piece(2), piece(1)], dim=-2))


@torch.no_grad()
def test_what_was_returned_never_changes() -> None:
    growing = Growing()
    kept = growing.append(EMPTY, piece(5))
    longer = growing.append(kept, piece(2, 100))
    before = longer.clone()
    growing.append(kept, piece(2, 200))  # as after a crop, or another branch from the same beginning
    assert torch.equal(longer, before)


def test_queries_alone_may_need_gradients() -> None:
    growing, query, kept = Growing(), piece(1).requires_grad_(), EMPTY
    total = torch.zeros(())
    for number in range(3):
        kept = growing.append(kept, piece(1, 100 * number))
        total = total + (query * kept).sum()
    total.backward()
    assert torch.equal(query.grad, 3 * piece(1) + 2 * piece(1, 100) + piece(1, 200))


@torch.no_grad()
@pytest.mark.parametrize("new", [piece(1, batch=3), piece(1).double()], ids=["sequences", "dtype"])
def test_another_batch_or_dtype_is_refused(new: Tensor) -> None:
    growing = Growing()
    kept = growing.append(EMPTY, piece(5, batch=1 if len(new) == 3 else 2))
    with pytest.raises(ValueError, match=r"the cache holds \[\d, 3, 5, 4\] in torch.float32, expected \["):
        growing.append(kept, new)


@torch.no_grad()
def test_beyond_the_room_there_is_some_to_spare() -> None:
    growing = Growing()
    kept = growing.append(growing.append(EMPTY, piece(5), room=5), piece(1), room=5)
    assert growing.append(kept, piece(1), room=5).data_ptr() == kept.data_ptr()
