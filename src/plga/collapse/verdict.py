"""May this checkpoint be collapsed: a verdict from what was measured and from stated thresholds.

It speaks of the prompts it was measured on. The theorem behind it is conditional (exact invariance of G,
arXiv:2608.10288), and no measurement on some prompts certifies others.
"""

import math
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from plga.training.settings import Settings, read_yaml

COLLAPSED, NEARLY_INVARIANT, INPUT_DEPENDENT = "collapsed", "nearly invariant", "input-dependent"


class Level(Settings):
    """Up to which figures a verdict holds, all of them.

    Args:
        distance: RMS of G_LM minus the constant over the RMS of G_LM, over calibration and held-out prompts.
        divergence: mean KL(recomputed ‖ constant) over the decoding steps, nats a token.
        moved: mean magnitude by which a token's log-probability changes, nats, block or sequential, the larger.
        agreement: least share of the decoding steps on which the constant has the recomputed token, on one prefix.
    """

    distance: float = Field(ge=0)
    divergence: float = Field(ge=0)
    moved: float = Field(ge=0)
    agreement: float = Field(ge=0, le=1)


class Thresholds(Settings):
    """Levels of the two verdicts that allow a constant, and when an operator counts as commuting.

    Args:
        collapsed: small runs of ours, once collapsed, lie two orders of magnitude below these and more.
        nearly_invariant: what somebody may want to pay; runs that depend on the input lie above.
        commuting: residual of the commutant up to which G is absorbed into the queries (relative, Frobenius).
    """

    collapsed: Level = Level(distance=1e-4, divergence=1e-5, moved=1e-4, agreement=0.999)
    nearly_invariant: Level = Level(distance=1e-2, divergence=1e-2, moved=1e-2, agreement=0.98)
    commuting: float = Field(1e-6, ge=0, lt=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name in Level.model_fields:
            strict, loose = getattr(self.collapsed, name), getattr(self.nearly_invariant, name)
            if (strict < loose) if name == "agreement" else (strict > loose):
                raise ValueError(
                    f"collapsed.{name} is {strict:g} and nearly_invariant.{name} {loose:g}, expected collapsed to be "
                    "the stricter"
                )
        return self


class Figures(NamedTuple):
    """What a verdict looks at; the names are those of :class:`Level`."""

    distance: float
    divergence: float
    moved: float
    agreement: float


class Verdict(NamedTuple):
    """A verdict and, where it is not ``collapsed``, the figures that stand in the way of the better one."""

    name: str
    reasons: list[str]


def load_thresholds(file: Path | None) -> Thresholds:
    """Thresholds of a YAML file over the default ones; None: these.

    Raises:
        ValueError: no YAML, an unknown key, an impossible value: one line says which.
        OSError: missing or unreadable.
    """
    if file is None:
        return Thresholds()
    merged = Thresholds().model_dump()
    for key, value in read_yaml(file).items():
        inner = merged.get(key)
        merged[key] = inner | value if isinstance(inner, dict) and isinstance(value, dict) else value
    return Thresholds.checked(merged, str(file))


def verdict(figures: Figures, thresholds: Thresholds) -> Verdict:
    """The first of ``collapsed`` and ``nearly invariant`` whose level all figures keep, or ``input-dependent``."""
    above_collapsed = _above(figures, thresholds.collapsed)
    if not above_collapsed:
        return Verdict(COLLAPSED, [])
    above_nearly = _above(figures, thresholds.nearly_invariant)
    return Verdict(INPUT_DEPENDENT, above_nearly) if above_nearly else Verdict(NEARLY_INVARIANT, above_collapsed)


def _above(figures: Figures, level: Level) -> list[str]:
    reasons = []
    for name, value in figures._asdict().items():
        limit = getattr(level, name)
        kept = value >= limit if name == "agreement" else value <= limit
        if not kept or math.isnan(value):
            reasons.append(f"{name} {value:.2g}, {'at least' if name == 'agreement' else 'at most'} {limit:g}")
    return reasons
