"""The sections in the order of the appendix "Numerical Audit on a Released Checkpoint" of arXiv:2608.10288."""

from typing import Literal

from plga.audit import (
    acyclicity,
    bound_chain,
    commutant,
    concentration,
    contract,
    contraction,
    curvature_spectrum,
    decoding,
    layer_norm,
    multipliers,
    order,
    spectra,
    twirl,
)
from plga.audit.mechanism import stages as mechanism
from plga.audit.section import Section

__all__ = ["MECHANISM", "SECTIONS", "chosen", "mechanism"]

MECHANISM = ("A", "C", "D", "E", "E2")  # what the three-stage table reads together
_TABLE = "K"  # its letter, which asks for all of these
SECTIONS: dict[str, Section] = {
    module.SECTION.letter: module.SECTION
    for module in (
        multipliers,
        spectra,
        curvature_spectrum,
        layer_norm,
        twirl,
        commutant,
        contraction,
        concentration,
        bound_chain,
        decoding,
        acyclicity,
        order,
        contract,
    )
}


def chosen(letters: str | None, available: Literal["nothing", "operators", "model"]) -> list[Section]:
    """The sections asked for, in their order.

    Args:
        letters: as "A,D2"; "K" stands for the sections that its table reads. None: all that can be measured.
        available: what there is to measure on.

    Raises:
        ValueError: an unknown letter, a section that needs more than is ``available``, or no section.
    """
    served = {
        "nothing": ("nothing",),
        "operators": ("nothing", "operators"),
        "model": ("nothing", "operators", "model"),
    }
    possible = [letter for letter, section in SECTIONS.items() if section.needs in served[available]]
    if letters is None:
        if available == "nothing":
            raise ValueError(
                f"nothing to audit: expected a checkpoint, --operators FILE, or --sections {','.join(possible)}, which "
                "needs neither"
            )
        return [SECTIONS[letter] for letter in possible]
    asked = {letter.strip() for letter in letters.split(",") if letter.strip()}
    if unknown := sorted(asked - SECTIONS.keys() - {_TABLE}):
        raise ValueError(f"--sections: {unknown[0]!r} is unknown, expected letters of {', '.join([*SECTIONS, _TABLE])}")
    if not asked:
        raise ValueError(f"--sections is {letters!r}, expected letters of {', '.join([*SECTIONS, _TABLE])}")
    if _TABLE in asked:
        asked = asked - {_TABLE} | set(MECHANISM)
    if impossible := [letter for letter in SECTIONS if letter in asked and letter not in possible]:
        raise ValueError(f"--sections: {impossible[0]} needs a {_NEEDED[SECTIONS[impossible[0]].needs]}")
    return [section for letter, section in SECTIONS.items() if letter in asked]


_NEEDED = {"operators": "checkpoint, or --operators FILE", "model": "checkpoint"}
