"""Section K: on made-up quantities, against the names of the sections, and on the two reference checkpoints."""

import importlib
import pkgutil
from pathlib import Path

import pytest

import plga.audit
from plga.audit import mechanism
from plga.audit.mechanism import quantity_named, stages
from plga.audit.section import Quantity, Section, Value
from tests.audit.subjects import tiny, trained

READ = [value for value in vars(mechanism).values() if isinstance(value, tuple) and isinstance(value[0], str)]
GOOD: dict[tuple[str, str], Value] = {
    mechanism.RESONANCES: 0,
    mechanism.WORST_MULTIPLIER: 0.1,
    mechanism.SUPPRESSION: [0.9, 0.95, 1.0],
    mechanism.SPREAD: [0.0, 0.05, 0.1],
    mechanism.JACOBIAN: [0.0, 0.5, 0.99],
    mechanism.WITHIN: [0.0, 0.5, 0.99],
    mechanism.ACROSS: [0.0, 0.5, 0.99],
    mechanism.SCALE_ERROR: [0.0, 0.001, 0.01],
}


def made_up(changes: dict[tuple[str, str], Value]) -> dict[str, list[Quantity]]:
    found: dict[str, list[Quantity]] = {}
    for (letter, name), value in {**GOOD, **changes}.items():
        found.setdefault(letter, []).append(Quantity(name, value, "instance"))
    return found


def sections() -> dict[str, Section]:
    """Every section there is, by its letter."""
    modules = [
        importlib.import_module(f"plga.audit.{module.name}") for module in pkgutil.iter_modules(plga.audit.__path__)
    ]
    return {module.SECTION.letter: module.SECTION for module in modules if hasattr(module, "SECTION")}


def test_all_thresholds_met() -> None:
    found = stages(made_up({}))
    assert [stage.holds for stage in found] == [True, True, True]
    assert [stage.name[:2] for stage in found] == ["1.", "2.", "3."]
    assert found[1].measured == "relative spread of D / S at the longest prefix (section E2): 0, 0.05, 0.1"
    assert found[1].hypothesis == (
        "relative spread of D / S at the longest prefix (section E2) <= 0.1 in every instance"
    )
    assert {stage.why for stage in found} == {"every threshold is met in every instance"}


@pytest.mark.parametrize(
    ("of", "value", "stage", "why"),
    [
        (mechanism.RESONANCES, 1, 0, "resonant frequencies (section A) is 1, not <= 0"),
        (mechanism.WORST_MULTIPLIER, 0.9999, 0, "worst multiplier at S = 1024 (section A) is 0.9999, not <= 0.1"),
        (mechanism.SUPPRESSION, [-0.5, 1.0, 1.0], 0, "off-commutant suppression (section D) is -0.5, not >= 0.9"),
        (mechanism.SPREAD, [0.0, 0.0, 0.2], 1, "at the longest prefix (section E2) is 0.2, not <= 0.1"),
        (mechanism.JACOBIAN, [0.0, 0.0, 1.0], 2, "Jacobian of φ (section E) is 1, not < 1"),
        (mechanism.WITHIN, [0.0, 0.0, 2.0], 2, "within a prompt (section E) is 2, not < 1"),
        (mechanism.ACROSS, [0.0, 0.0, 2.0], 2, "across prompts (section E) is 2, not < 1"),
        (mechanism.SCALE_ERROR, [0.0, 0.0, 4.3], 2, "scale error (section C) is 4.3, not <= 0.01"),
    ],
)
def test_the_worst_instance_decides(of: tuple[str, str], value: Value, stage: int, why: str) -> None:
    found = stages(made_up({of: value}))
    assert [one.holds for one in found] == [index != stage for index in range(3)]
    assert found[stage].why.endswith(why)


def test_what_is_missing_leaves_its_stage_open() -> None:
    found = made_up({mechanism.WITHIN: [0.0, 0.0, 2.0]})
    del found["D"], found["E2"], found["C"]
    first, second, third = stages(found)
    assert first.holds is None and second.holds is None and third.holds is None
    assert first.why == "not measured: off-commutant suppression (section D)"
    assert second.measured == "relative spread of D / S at the longest prefix (section E2): not measured"
    # What is measured and fails is still told.
    assert third.why == (
        "not measured: relative LayerNorm scale error (section C); "
        "pairwise contraction ratio within a prompt (section E) is 2, not < 1"
    )
    assert all(stage.holds is None for stage in stages({}))


def test_a_quantity_without_a_value_is_not_measured() -> None:
    """As the ratios across prompts of one prompt."""
    third = stages(made_up({mechanism.ACROSS: None}))[2]
    assert third.holds is None and third.why == "not measured: pairwise contraction ratio across prompts (section E)"


def test_the_names_are_those_of_the_sections() -> None:
    subject = tiny()
    assert len(READ) == 8
    for letter, name in READ:
        if section := sections().get(letter):
            quantity_named(section.quantities(section.measure(subject)), name)
    with pytest.raises(KeyError, match="no quantity 'worst'"):
        quantity_named([Quantity("worst multiplier", 1, "instance")], "worst")


def test_of_two_shapes_the_models_is_read() -> None:
    """The published rotary embedding comes first, that of the model after it."""
    section = sections()["A"]
    quantity = quantity_named(section.quantities(section.measure(tiny())), mechanism.WORST_MULTIPLIER[1])
    assert quantity.name == "worst multiplier at S = 1024 (d = 4, base 10000)"


def test_reference_checkpoints(reference: Path) -> None:
    """The slowest rotary modes do not average out at S = 1024 in either; the row map contracts in one of them."""
    for name in ("critical", "subcritical"):
        subject = trained(reference, name)
        read = {letter for letter, _ in READ}
        present = {letter: section for letter, section in sections().items() if letter in read}
        found = {letter: section.quantities(section.measure(subject)) for letter, section in present.items()}
        first, _, third = stages(found)
        assert first.holds is False
        assert "worst multiplier at S = 1024 (section A) is 0.99" in first.why and "resonant" not in first.why
        assert third.holds is (name == "critical")
        assert ("Jacobian of φ (section E)" in third.why) is (name == "subcritical")
