"""Choice metrics: computed by hand, and what holds for any scores."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plga.scoring.choices import (
    Choice,
    Comparison,
    Question,
    best_wins,
    compare_choices,
    likeliest,
    margin,
    metrics,
    true_mass,
)


def question(logprobs: list[float], true: tuple[int, ...], sizes: list[tuple[int, int]] | None = None) -> Question:
    sizes = sizes or [(1, 1)] * len(logprobs)
    choices = (Choice(logprob, *size) for logprob, size in zip(logprobs, sizes, strict=True))
    return Question("q", tuple(choices), true)


# Probabilities 1/2, 1/4, 1/8; the true ones have 5/7 of them.
FIRST = question([math.log(0.5), math.log(0.25), math.log(0.125)], (0, 2))
# Likeliest: 0; over characters: 2; over bytes: 1.
SECOND = question([-2.0, -3.0, -4.0], (2,), [(1, 2), (2, 8), (4, 4)])


def test_by_hand() -> None:
    assert [likeliest(FIRST), likeliest(SECOND)] == [0, 0]
    assert likeliest(SECOND, lambda choice: choice.characters) == 2
    assert likeliest(SECOND, lambda choice: choice.bytes) == 1
    assert margin(FIRST) == pytest.approx(math.log(2))
    assert true_mass(FIRST) == pytest.approx(5 / 7)
    assert best_wins(FIRST) and not best_wins(question([-2.0, -1.0, -0.5], (0, 2)))
    found = metrics([FIRST, SECOND])
    weights = [math.exp(-2), math.exp(-3), math.exp(-4)]
    assert found.questions == 2
    assert (found.accuracy, found.length_normalized, found.byte_normalized) == (0.5, 1.0, 0.5)
    assert found.mc1 == 0.5
    assert found.mc2 == pytest.approx((5 / 7 + weights[2] / sum(weights)) / 2)


def test_mc1_is_about_the_best_answer_and_accuracy_about_any_true_one() -> None:
    one = question([-3.0, -2.0, -1.0], (0, 2))
    found = metrics([one])
    assert (found.accuracy, found.mc1) == (1.0, 0.0)
    assert metrics([question([-3.0, -2.0, -1.0], (2, 0))]).mc1 == 1.0


def test_both_protocols_by_hand() -> None:
    sequential = [
        question([-1.0, -2.0], (0,)),  # right, margin 1
        question([-1.0, -1.5], (1,)),  # wrong, margin 0.5
        question([-1.0, -3.0], (0,)),  # right, margin 2
        question([-1.0, -1.25, -9.0], (2,)),  # wrong, margin 0.25
    ]
    block = [
        question([-1.0, -1.5], (0,)),  # moves by half the margin, still right
        question([-1.0, -0.5], (1,)),  # right under block alone
        question([-1.5, -3.0], (0,)),  # a quarter of the margin
        question([-1.5, -1.25, -9.0], (2,)),  # another choice, as wrong
    ]
    found = compare_choices(block, sequential)
    masses = [abs(true_mass(a) - true_mass(b)) for a, b in zip(block, sequential, strict=True)]
    assert found == Comparison(4, 2, 1, 0, 3, 1.0, max(masses))
    assert compare_choices(sequential, block).sequential_only == 1
    assert compare_choices(block, block) == Comparison(4, 0, 0, 0, 0, 0.0, 0.0)


scores = st.lists(st.floats(-50, 0), min_size=2, max_size=5)


@given(logprobs=scores, shift=st.floats(-5, 5), data=st.data())
def test_metrics_of_any_scores(logprobs: list[float], shift: float, data: st.DataObject) -> None:
    true = data.draw(st.sets(st.integers(0, len(logprobs) - 1), min_size=1, max_size=len(logprobs) - 1))
    one = question(logprobs, tuple(true))
    others = question(logprobs, tuple(set(range(len(logprobs))) - true))
    assert 0 <= true_mass(one) <= 1
    assert true_mass(one) + true_mass(others) == pytest.approx(1)
    assert metrics([one]).accuracy + metrics([others]).accuracy == 1
    assert true_mass(question([score + shift for score in logprobs], tuple(true))) == pytest.approx(true_mass(one))
    assert margin(one) >= 0
    assert logprobs[likeliest(one)] == max(logprobs)
    if best_wins(one) and len(true) == 1:
        assert likeliest(one) in true


@given(pairs=st.lists(st.tuples(st.floats(-50, 0), st.floats(-2, 2)), min_size=2, max_size=5))
def test_no_choice_changes_below_half_the_margin(pairs: list[tuple[float, float]]) -> None:
    sequential = question([score for score, _ in pairs], (0,))
    block = question([score + move for score, move in pairs], (0,))
    found = compare_choices([block], [sequential])
    assert found.argmax_changes <= found.half_margin
    assert found.block_only + found.sequential_only <= found.argmax_changes


@pytest.mark.parametrize(
    ("logprobs", "true", "sizes", "message"),
    [
        ([-1.0], (0,), None, "q: 1 choices, expected at least 2"),
        ([-1.0, -2.0], (), None, r"q: true choices are \[\], expected some and not all of 0 to 1"),
        ([-1.0, -2.0], (0, 1), None, r"q: true choices are \[0, 1\], expected some and not all"),
        ([-1.0, -2.0], (2,), None, r"q: true choices are \[2\]"),
        ([-1.0, -2.0], (0,), [(1, 1), (0, 0)], "q: choice 1 is empty"),
        ([-1.0, -math.inf], (0,), None, "q: choice 1 has the score -inf, expected a finite one"),
    ],
)
def test_questions_that_are_none(logprobs: list[float], true: tuple, sizes: list | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question(logprobs, true, sizes)


def test_questions_that_differ() -> None:
    for block, sequential in (([], []), ([FIRST], [SECOND]), ([FIRST], [FIRST, FIRST])):
        with pytest.raises(ValueError, match="expected the same, at least one, in one order"):
            compare_choices(block, sequential)
    with pytest.raises(ValueError, match="there are no questions"):
        metrics([])
