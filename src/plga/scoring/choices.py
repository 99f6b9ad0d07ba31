"""Metrics of multiple choice, under one protocol and between two.

The likeliest choice is the one with the largest score; of equal scores, the first. Sums are in float64.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """A scored choice: its log-probability in nats, and its length in characters and in UTF-8 bytes."""

    logprob: float
    characters: int
    bytes: int


@dataclass(frozen=True)
class Question:
    """Scored choices of a question.

    Attributes:
        name: what an error message calls it.
        choices: at least two, none of them empty.
        true: indices of the true ones, at least one and not all; the first of them is the best answer.
    """

    name: str
    choices: tuple[Choice, ...]
    true: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.choices)
        if count < 2:
            raise ValueError(f"{self.name}: {count} choices, expected at least 2")
        if not self.true or not set(self.true) < set(range(count)):
            raise ValueError(
                f"{self.name}: true choices are {list(self.true)}, expected some and not all of 0 to {count - 1}"
            )
        for index, choice in enumerate(self.choices):
            if not choice.characters or not choice.bytes:
                raise ValueError(f"{self.name}: choice {index} is empty, expected at least one character")
            if not math.isfinite(choice.logprob):
                raise ValueError(f"{self.name}: choice {index} has the score {choice.logprob}, expected a finite one")


@dataclass(frozen=True)
class Metrics:
    """Means over questions, in [0, 1].

    Attributes:
        questions: how many.
        accuracy: the likeliest choice is true.
        length_normalized, byte_normalized: the same of scores over characters, and over bytes (``acc_norm`` and
            ``acc_bytes`` of lm-evaluation-harness).
        mc1: the best answer is likelier than every false one; other true ones do not count.
        mc2: probability on the true choices, normalized over all choices.
    """

    questions: int
    accuracy: float
    length_normalized: float
    byte_normalized: float
    mc1: float
    mc2: float


@dataclass(frozen=True)
class Comparison:
    """Block against sequential scores of the same questions.

    Attributes:
        questions: how many.
        argmax_changes: questions with another likeliest choice.
        block_only, sequential_only: discordant pairs: right under one protocol and wrong under the other.
        half_margin: questions on which a choice's score moves by half the margin of the sequential decision or more;
            no other question can change its likeliest choice (theorem).
        largest_gap: largest move of a choice's score, nats.
        largest_mc2_gap: largest move of a question's mc2.
    """

    questions: int
    argmax_changes: int
    block_only: int
    sequential_only: int
    half_margin: int
    largest_gap: float
    largest_mc2_gap: float


def likeliest(question: Question, size: Callable[[Choice], int] = lambda choice: 1) -> int:
    """Index of the choice with the largest score over its size."""
    scores = [choice.logprob / size(choice) for choice in question.choices]
    return scores.index(max(scores))


def margin(question: Question) -> float:
    """Score of the likeliest choice less that of the next one, nats."""
    first, second = sorted((choice.logprob for choice in question.choices), reverse=True)[:2]
    return first - second


def true_mass(question: Question) -> float:
    """Probability on the true choices, normalized over all choices (MC2)."""
    peak = max(choice.logprob for choice in question.choices)
    weights = [math.exp(choice.logprob - peak) for choice in question.choices]
    return sum(weights[index] for index in set(question.true)) / sum(weights)


def best_wins(question: Question) -> bool:
    """Whether the best answer is likelier than every false one (MC1)."""
    false = set(range(len(question.choices))) - set(question.true)
    best = question.choices[question.true[0]].logprob
    return best > max(question.choices[index].logprob for index in false)


def metrics(questions: Sequence[Question]) -> Metrics:
    """Every metric of some questions.

    Raises:
        ValueError: no questions.
    """
    if not questions:
        raise ValueError("there are no questions, expected at least one")

    def mean(measure: Callable[[Question], float]) -> float:
        return sum(map(measure, questions)) / len(questions)

    return Metrics(
        questions=len(questions),
        accuracy=mean(lambda question: likeliest(question) in question.true),
        length_normalized=mean(lambda question: likeliest(question, lambda choice: choice.characters) in question.true),
        byte_normalized=mean(lambda question: likeliest(question, lambda choice: choice.bytes) in question.true),
        mc1=mean(best_wins),
        mc2=mean(true_mass),
    )


def compare_choices(block: Sequence[Question], sequential: Sequence[Question]) -> Comparison:
    """Compare both protocols on the same questions in one order.

    Raises:
        ValueError: no questions, or questions that are not the same.
    """
    if not block or [_identity(q) for q in block] != [_identity(q) for q in sequential]:
        raise ValueError(
            f"{len(block)} questions scored by block and {len(sequential)} by sequential, expected the same, at least "
            "one, in one order"
        )
    changes = block_only = sequential_only = half = 0
    gaps, masses = [], []
    for ours, theirs in zip(block, sequential, strict=True):
        gap = max(abs(a.logprob - b.logprob) for a, b in zip(ours.choices, theirs.choices, strict=True))
        first, second = likeliest(ours), likeliest(theirs)
        right = first in ours.true, second in theirs.true
        changes += first != second
        block_only += right == (True, False)
        sequential_only += right == (False, True)
        half += gap >= margin(theirs) / 2
        gaps.append(gap)
        masses.append(abs(true_mass(ours) - true_mass(theirs)))
    return Comparison(len(gaps), changes, block_only, sequential_only, half, max(gaps), max(masses))


def _identity(question: Question) -> tuple[str, tuple[int, ...], int]:
    return question.name, question.true, len(question.choices)
