"""Section K: the three stages by which G_LM stops depending on the input, read off sections A, D, E2, E and C.

The paper (arXiv:2608.10288) explains the collapse in three stages: rotations average the density operator over the
positions, the mean over the tokens gathers around that of the data, and the row map contracts what differences are
left, once the first LayerNorm has taken the scale away. Each stage has a hypothesis, which is read here on one
checkpoint. That they hold together with a collapse is a *measurement*; that they cause it is not shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plga.audit.section import Quantity

RESONANT, MULTIPLIER = "resonant frequencies", "median multiplier at S = 1024"
SUPPRESSION = "pooled off-commutant suppression"
SPREAD, EXPONENT = "spread of D / S at S = ", "exponent of the spread of D / S in S"
JACOBIAN, WITHIN, ACROSS = (
    "largest singular value of the Jacobian of φ",
    "contraction ratio within a prompt",
    "contraction ratio across prompts",
)
SCALE = "pooled relative LayerNorm scale error"

SUPPRESSED = 0.5  # of the off-commutant energy, at least
GATHERED = 0.1  # median spread of D / S at the largest length, at most
CONTRACTED = 1e-2  # largest singular value of the Jacobian of φ, and ratio of a pair, at most
SCALE_FREE = 1e-2  # pooled relative scale error of the first LayerNorm, at most


@dataclass(frozen=True)
class Stage:
    """One stage: its hypothesis, what was measured, and whether the hypothesis holds here (None: not measured)."""

    name: str
    hypothesis: str
    measured: str
    holds: bool | None
    why: str


def stages(found: Mapping[str, Sequence[Quantity]]) -> list[Stage]:
    """The three stages, from the quantities of the sections by letter; what is missing is not measured."""
    return [_averaging(found), _concentration(found), _contraction(found)]


def _averaging(found: Mapping[str, Sequence[Quantity]]) -> Stage:
    resonant, multiplier = (_numbers(found, "A", name) for name in (RESONANT, MULTIPLIER))
    suppression = _numbers(found, "D", SUPPRESSION)
    measured = _told(("resonant frequencies", resonant), (MULTIPLIER, multiplier), (SUPPRESSION, suppression))
    holds = None
    if resonant and suppression:
        holds = max(resonant) == 0 and min(suppression) >= SUPPRESSED
    return Stage(
        "1. rotary averaging",
        "no frequency resonates, and rotation takes away what of the query second moment does not commute with it",
        measured,
        holds,
        f"holds where no frequency resonates and at least {SUPPRESSED:g} of the off-commutant energy is suppressed; "
        "the multipliers vanish as S grows, but the slowest do not within a context",
    )


def _concentration(found: Mapping[str, Sequence[Quantity]]) -> Stage:
    lengths = sorted((int(q.name.removeprefix(SPREAD)), q) for q in found.get("E2", ()) if q.name.startswith(SPREAD))
    exponent = _numbers(found, "E2", EXPONENT)
    if not lengths:
        measured, holds = "not measured", None
    else:
        length, largest = lengths[-1]
        assert isinstance(largest.value, list)
        median = largest.value[1]
        measured = _told((f"median spread at S = {length}", [median]), (EXPONENT, exponent))
        holds = median <= GATHERED
    return Stage(
        "2. concentration",
        "D / S of a text is near its mean over the data set",
        measured,
        holds,
        f"holds where the median relative spread at the largest length is at most {GATHERED:g}; the bound beside it "
        "supposes independent rows",
    )


def _contraction(found: Mapping[str, Sequence[Quantity]]) -> Stage:
    jacobian, within, across = (_numbers(found, "E", name) for name in (JACOBIAN, WITHIN, ACROSS))
    scale = _numbers(found, "C", SCALE)
    holds = None
    if jacobian and scale:
        holds = max([*jacobian, *within, *across]) <= CONTRACTED and max(scale) <= SCALE_FREE
    return Stage(
        "3. row-map contraction",
        "φ takes what is left of the differences away, and its first LayerNorm the scale",
        _told((JACOBIAN, jacobian[-1:]), (WITHIN, within[-1:]), (ACROSS, across[-1:]), (SCALE, scale)),
        holds,
        f"holds where the largest singular value and every ratio are at most {CONTRACTED:g}, and the scale error "
        f"at most {SCALE_FREE:g}",
    )


def _numbers(found: Mapping[str, Sequence[Quantity]], letter: str, name: str) -> list[float]:
    """The values of the quantities of that name, of any width where the name goes on with one; empty: none."""
    values = [q.value for q in found.get(letter, ()) if q.name == name or q.name.startswith(f"{name} (")]
    flat = [entry for value in values for entry in (value if isinstance(value, list) else [value])]
    return [float(entry) for entry in flat if entry is not None]


def _told(*figures: tuple[str, Sequence[float]]) -> str:
    """The largest of each figure, in words."""
    told = [f"{name} {max(values):.3g}" for name, values in figures if values]
    return "; ".join(told) or "not measured"
