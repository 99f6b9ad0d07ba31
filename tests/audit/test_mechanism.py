"""Section K: the table of the three stages."""

from pathlib import Path

import pytest

from plga.audit import mechanism
from plga.audit.mechanism import stages
from plga.audit.section import Quantity
from plga.audit.sections import MECHANISM, SECTIONS
from tests.audit.subjects import trained


def found(
    suppression: float = 0.9, spread: float = 0.01, largest: float = 1e-3, scale: float = 1e-3
) -> dict[str, list[Quantity]]:
    return {
        "A": [Quantity(f"{mechanism.RESONANT} (d = 64, base 10000)", 0, "all")],
        "C": [Quantity(mechanism.SCALE, scale, "pooled")],
        "D": [Quantity(mechanism.SUPPRESSION, suppression, "pooled")],
        "E": [Quantity(name, [0.0, 0.0, largest], "rows") for name in (mechanism.JACOBIAN, mechanism.WITHIN)],
        "E2": [
            Quantity(f"{mechanism.SPREAD}8", [0.0, 1.0, 1.0], "heads"),
            Quantity(f"{mechanism.SPREAD}16", [0.0, spread, 1.0], "heads"),
        ],
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True, True, True]),
        ({"suppression": 0.4}, [False, True, True]),
        ({"spread": 0.5}, [True, False, True]),
        ({"largest": 0.5}, [True, True, False]),
        ({"scale": 0.5}, [True, True, False]),
    ],
)
def test_each_hypothesis_is_read_from_its_own_figures(changes: dict[str, float], expected: list[bool]) -> None:
    assert [stage.holds for stage in stages(found(**changes))] == expected


def test_what_is_missing_is_not_measured() -> None:
    assert [(stage.holds, stage.measured) for stage in stages({})] == [(None, "not measured")] * 3
    assert [stage.holds for stage in stages({"E": found()["E"]})] == [None, None, None]


def test_names_are_those_of_the_sections(reference: Path) -> None:
    subject = trained(reference, "critical")
    quantities = {letter: SECTIONS[letter].quantities(SECTIONS[letter].measure(subject)) for letter in MECHANISM}
    read = stages(quantities)
    assert None not in [stage.holds for stage in read]
    for name in (mechanism.MULTIPLIER, mechanism.EXPONENT, mechanism.ACROSS, mechanism.SCALE):
        assert any(name in stage.measured for stage in read), name
    assert read[2].holds is True
    other = trained(reference, "subcritical")
    quantities = {letter: SECTIONS[letter].quantities(SECTIONS[letter].measure(other)) for letter in MECHANISM}
    assert stages(quantities)[2].holds is False
