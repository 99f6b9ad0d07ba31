"""audit.json: strict, complete, and what differs in it is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plga.audit.record import Part, Record, Settings, Source, difference, figure, read, text
from plga.audit.section import Quantity
from plga.audit.subject import Subject
from tests.audit.tiny import numbers, quantities


def part() -> Part:
    figures = [figure(quantity) for quantity in quantities(numbers(Subject()))]
    return Part(title="a", status="measured", reason=None, quantities=figures)


def record() -> Record:
    return Record(
        subject=Source(kind="nothing", name="no checkpoint", files={}, shape={}),
        prompts=None,
        settings=Settings(seed=0, dtype="float32", threads=1),
        versions={},
        environment={},
        sections={"A": part()},
        mechanism=None,
        files={"audit.npz": "0" * 64},
    )


@pytest.mark.parametrize(
    ("value", "stored", "nulls"),
    [
        (0.1, 0.1, []),
        (np.float64(0.1), 0.1, []),
        (np.float32(0.5), 0.5, []),
        (7, 7, []),
        (np.int64(7), 7, []),
        (True, True, []),
        (np.bool_(True), True, []),
        (None, None, ["does not exist"]),
        (float("nan"), None, ["not a number"]),
        ([-np.inf, 1, np.inf], [None, 1.0, None], ["-infinity", "infinity"]),
    ],
)
def test_values_are_plain_and_finite(value: Any, stored: Any, nulls: list[str]) -> None:
    found = figure(Quantity("x", value, "instances"))
    assert (found.value, found.nulls) == (stored, nulls)
    assert type(found.value) is type(stored)


def test_it_is_strict_json_and_comes_back(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    file = tmp_path / "audit.json"
    file.write_text(text(record()), encoding="utf-8")
    json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert read(file) == record()
    assert text(read(file)) == text(record())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "truncated, or not JSON"),
        ("[1]", "holds list, expected a JSON object"),
        ('{"model_type": "pldr"}', "subject: Field required; expected what plga audit writes"),
        (text(record()).replace("plga audit 1", "plga audit 2"), "format: Input should be 'plga audit 1'"),
        (text(record()).replace('"seed": 0', '"seed": "0"'), "settings.seed: Input should be a valid integer"),
        (text(record()).replace("0" * 64, "0"), r"files.audit.npz: String should match"),
        (text(record()).replace('"claim": "theorem"', '"claim": "fact"'), r"sections.A.quantities.2.claim"),
        (text(record()).replace("1.0", "NaN", 1), r"sections\.A\.quantities\.0\.published"),
    ],
)
def test_what_is_no_record(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "audit.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as raised:
        read(file)
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)


def test_what_differs_is_named() -> None:
    whole = part()
    assert difference(whole, part()) is None
    changed = [q.model_copy(update={"value": 6}) if q.name == "count" else q for q in whole.quantities]
    found = difference(whole, whole.model_copy(update={"quantities": changed}))
    assert found == "value of count (pooled) is 6, expected 5"
    fewer = whole.model_copy(update={"quantities": whole.quantities[1:]})
    assert difference(whole, fewer) == "values (instances) is missing"
    assert difference(fewer, whole) == "values (instances) is not a quantity of this section"
    swapped = whole.model_copy(update={"quantities": whole.quantities[::-1]})
    assert difference(whole, swapped) == "its quantities are in another order"
    assert difference(whole, whole.model_copy(update={"title": "b"})) == 'its title is "b", expected "a"'
    # An integer and a float of the same value are different texts.
    floating = [q.model_copy(update={"value": 5.0}) if q.name == "count" else q for q in whole.quantities]
    assert difference(whole, whole.model_copy(update={"quantities": floating})) is not None
