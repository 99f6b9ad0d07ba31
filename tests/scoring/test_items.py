"""Items from texts and from padded batches."""

import pytest
import torch

from plga.scoring.items import Item, batch_items, text_item


def test_a_text_is_scored_but_for_its_first_token() -> None:
    assert text_item([5, 6, 7], "a") == Item((5,), (6, 7), "a")
    with pytest.raises(ValueError, match="a: 1 tokens, expected at least 2: the first has no score"):
        text_item([5], "a")


def test_padding_of_either_side_is_left_out() -> None:
    ids = torch.tensor([[1, 2, 3, 0], [0, 4, 5, 6]])
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    assert batch_items(ids, mask) == [Item((1,), (2, 3), "row 0"), Item((4,), (5, 6), "row 1")]


def test_rows_that_are_none() -> None:
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="row 1 of attention_mask is all padding, expected at least 2 real tokens"):
        batch_items(ids, torch.tensor([[1, 1, 1], [0, 0, 0]]))
    with pytest.raises(ValueError, match="row 0: 1 tokens"):
        batch_items(ids, torch.tensor([[0, 1, 0], [1, 1, 1]]))
    with pytest.raises(ValueError, match=r"input_ids is \(2, 3\) and attention_mask \(2, 2\), expected \[B, S\]"):
        batch_items(ids, torch.ones(2, 2))
