from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plga.audit.section import Quantity


@dataclass(frozen=True)
class Stage:
    name: str
    hypothesis: str
    measured: str
    holds: bool | None
    why: str


def stages(found: Mapping[str, Sequence[Quantity]]) -> list[Stage]:
    return [Stage("1. averaging", "twirl", f"{len(found)} sections", "A" in found, "because")]
