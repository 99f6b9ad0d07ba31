"""Section K: the three-stage mechanism of collapse, read off what other sections found (arXiv:2608.10288).

Rotary averaging brings D / S towards the commutant, concentration brings it to one mean for every prompt, and the row
map with the LayerNorm before it contracts what still differs. Each stage is a hypothesis, and what is measured either
meets its threshold in every instance or does not. That a stage fails does not say that G depends on the input: that is
measured by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plga.audit.section import Quantity

# Letters and names of what is read; a name may be followed by what it is of, in brackets.
RESONANCES = ("A", "resonant frequencies")
WORST_MULTIPLIER = ("A", "worst multiplier at S = 1024")
SUPPRESSION = ("D", "off-commutant suppression")
SPREAD = ("E2", "relative spread of D / S at the longest prefix")
JACOBIAN = ("E", "largest singular value of the Jacobian of φ")
WITHIN = ("E", "pairwise contraction ratio within a prompt")
ACROSS = ("E", "pairwise contraction ratio across prompts")
SCALE_ERROR = ("C", "relative LayerNorm scale error")

# Thresholds; the paper gives none, so a tenth and a hundredth stand for "small".
LARGEST_MULTIPLIER = 0.1
LEAST_SUPPRESSION = 0.9
LARGEST_SPREAD = 0.1
CONTRACTION = 1.0
LARGEST_SCALE_ERROR = 0.01


@dataclass(frozen=True)
class Stage:
    """A stage of the mechanism.

    Attributes:
        name: for people.
        hypothesis: what the stage needs, with its thresholds.
        measured: the quantities by name, as "value" or "min, median, max".
        holds: whether every threshold is met; None where something was not measured.
        why: what is not met or not measured, or that all is met.
    """

    name: str
    hypothesis: str
    measured: str
    holds: bool | None
    why: str


@dataclass(frozen=True)
class _Condition:
    """Of one quantity, whose worst instance is held against a limit."""

    of: tuple[str, str]
    relation: str
    limit: float

    @property
    def name(self) -> str:
        return f"{self.of[1]} (section {self.of[0]})"

    def is_met(self, value: float) -> bool:
        if self.relation == ">=":
            return value >= self.limit
        return value < self.limit if self.relation == "<" else value <= self.limit


_STAGES = (
    (
        "1. Rotary averaging",
        (
            _Condition(RESONANCES, "<=", 0.0),
            _Condition(WORST_MULTIPLIER, "<=", LARGEST_MULTIPLIER),
            _Condition(SUPPRESSION, ">=", LEAST_SUPPRESSION),
        ),
    ),
    ("2. Concentration", (_Condition(SPREAD, "<=", LARGEST_SPREAD),)),
    (
        "3. Contraction of the row map and LayerNorm scale",
        (
            _Condition(JACOBIAN, "<", CONTRACTION),
            _Condition(WITHIN, "<", CONTRACTION),
            _Condition(ACROSS, "<", CONTRACTION),
            _Condition(SCALE_ERROR, "<=", LARGEST_SCALE_ERROR),
        ),
    ),
)


def stages(found: Mapping[str, Sequence[Quantity]]) -> list[Stage]:
    """The three stages.

    Args:
        found: the quantities of each section that was measured, by its letter.

    Raises:
        KeyError: a section without a quantity that is read here.
    """
    return [_stage(name, conditions, found) for name, conditions in _STAGES]


def _stage(name: str, conditions: Sequence[_Condition], found: Mapping[str, Sequence[Quantity]]) -> Stage:
    measured, missing, failed = [], [], []
    for condition in conditions:
        letter, wanted = condition.of
        quantity = quantity_named(found[letter], wanted) if letter in found else None
        if quantity is None or quantity.value is None:
            missing.append(condition.name)
            measured.append(f"{condition.name}: not measured")
            continue
        values = quantity.value if isinstance(quantity.value, list) else [float(quantity.value)]
        worst = min(values) if condition.relation == ">=" else max(values)
        measured.append(f"{quantity.name} (section {letter}): {', '.join(f'{value:.4g}' for value in values)}")
        if not condition.is_met(worst):
            failed.append(f"{condition.name} is {worst:.4g}, not {condition.relation} {condition.limit:g}")
    whys = [f"not measured: {', '.join(missing)}"] if missing else []
    return Stage(
        name=name,
        hypothesis="; ".join(f"{c.name} {c.relation} {c.limit:g} in every instance" for c in conditions),
        measured="; ".join(measured),
        holds=None if missing else not failed,
        why="; ".join(whys + failed) or "every threshold is met in every instance",
    )


def quantity_named(quantities: Sequence[Quantity], name: str) -> Quantity:
    """The last quantity of that name, with or without brackets after it: section A has the model's own shape last.

    Raises:
        KeyError: there is none.
    """
    named = [quantity for quantity in quantities if quantity.name == name or quantity.name.startswith(f"{name} (")]
    if not named:
        raise KeyError(f"there is no quantity {name!r}")
    return named[-1]
