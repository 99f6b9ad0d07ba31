"""Windows of long texts: every token once, with as much before it as promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plga.scoring.items import Item
from plga.scoring.windows import windows


@given(length=st.integers(2, 60), context=st.integers(1, 12), data=st.data())
def test_every_token_is_scored_once_with_enough_before_it(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    ids = range(100, 100 + length)
    found = windows(ids, context, stride, "a")
    assert [token for item in found for token in item.candidate] == list(ids[1:])
    for number, item in enumerate(found):
        whole = [*item.context, *item.candidate]
        assert whole == list(range(whole[0], whole[0] + len(whole)))  # a piece of the text
        assert len(whole) <= context + 1
        if number:
            assert len(whole) == context + 1
            assert len(item.candidate) <= stride
            assert len(item.context) >= context + 1 - stride


def test_by_hand() -> None:
    assert windows([0, 1, 2, 3, 4, 5, 6], 3, 2, "a") == [
        Item((0,), (1, 2, 3), "a"),
        Item((2, 3), (4, 5), "a from token 4"),
        Item((3, 4, 5), (6,), "a from token 6"),
    ]
    assert windows([0, 1, 2, 3], 3, None, "a") == [Item((0,), (1, 2, 3), "a")]
    assert [len(item.candidate) for item in windows(range(12), 5, None, "a")] == [5, 3, 3]


def test_what_is_refused() -> None:
    for stride in (0, 6):
        with pytest.raises(ValueError, match=f"stride is {stride}, expected from 1 to the context of 5"):
            windows(range(9), 5, stride, "a")
    with pytest.raises(ValueError, match="a: 1 tokens, expected at least 2"):
        windows([1], 5, None, "a")
