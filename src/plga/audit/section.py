"""What a section of the audit gives: raw arrays, measured once, and quantities, computed from these arrays alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from plga.audit.subject import Subject

Value = bool | int | float | list[float] | None


class NotMeasurable(ValueError):
    """A section has nothing to measure here; the message is the reason, in one line."""


@dataclass(frozen=True)
class Quantity:
    """A reported quantity under its exact name.

    Attributes:
        name: what it is, as "s2 / s1 of A".
        value: one number, or [min, median, max] over instances; None where it does not exist (a ratio to zero).
        over: what the instances are ("layer, head and prompt"), or what one number pools ("pooled over all rows").
        kind: the named quantity itself (direct), or a bound of it or a proxy for it, which need a ``formula``.
        formula: how it is computed.
        claim: the label that the paper gives what the quantity is about.
        published: the same quantity of a published checkpoint (arXiv:2608.10288, arXiv:2603.23539), where there is one.
    """

    name: str
    value: Value
    over: str
    kind: Literal["direct", "bound", "proxy"] = "direct"
    formula: str | None = None
    claim: Literal["theorem", "conditional theorem", "measurement", "conjecture"] = "measurement"
    published: Value = None

    def __post_init__(self) -> None:
        if self.kind != "direct" and not self.formula:
            raise ValueError(f"{self.name}: a {self.kind} needs its formula")


@dataclass(frozen=True)
class Section:
    """One section of the audit.

    Attributes:
        letter: "A" or "D2", as in the appendix "Numerical Audit on a Released Checkpoint" of arXiv:2608.10288.
        title: for people.
        needs: what of a subject it reads.
        raw: a frozen dataclass of numpy arrays; what ``measure`` gives and ``quantities`` reads.
        measure: takes the measurements; raises NotMeasurable.
        quantities: the summary of the arrays, and of nothing else.
    """

    letter: str
    title: str
    needs: Literal["nothing", "operators", "model"]
    raw: type[Any]
    measure: Callable[[Subject], Any]
    quantities: Callable[[Any], list[Quantity]]


def spread(values: np.ndarray) -> list[float]:
    """[min, median, max] of all entries, in float64."""
    wide = values.astype(np.float64).ravel()
    return [float(wide.min()), float(np.median(wide)), float(wide.max())]
