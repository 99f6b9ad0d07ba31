"""What a YAML document spells: numbers and words as people mean them, and one error for whatever is none."""

import math

import pytest

from plga.training.plain_yaml import parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0100", 100),  # no octal number
        ("0x10", 16),
        ("-3", -3),
        ("1e-3", 1e-3),  # a number without a point
        ("1.5E+3", 1500.0),
        (".5", 0.5),
        ("inf", math.inf),
        ("-.Inf", -math.inf),
        ("'1e3'", "1e3"),  # what is in quotes is text
        ("1:30", "1:30"),  # no number to the base of 60
        ("yes", "yes"),
        ("2024-13-45", "2024-13-45"),  # no date
        ("true", True),
        ("~", None),
        ("", None),
        ("[1, x]", [1, "x"]),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}", {"a": {"b": 1}, "c": {"b": 2}}),
    ],
)
def test_a_value(text: str, value: object) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


def test_not_a_number_is_one() -> None:
    assert math.isnan(parse("nan")) and math.isnan(parse(".nan"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: 1, b: 2, a: 3}", "the key 'a' stands twice"),
        ("a: 1\na: 1", "the key 'a' stands twice"),
        ("a: &a {b: *a}", "recursive"),
        ("&a [*a]", "recursive"),
        ("a:\n\tb: 1", "character"),
        ("!!int ''", "invalid literal"),
        ("!!bool maybe", "a tag over other text"),
        ("!!timestamp never", "a tag over other text"),
        ("!!python/object/apply:os.getcwd []", "constructor"),
        ("[" * 5000, "nested too deep"),
        ("9" * 5000, "limit"),
        ("\0", "unacceptable character"),
    ],
)
def test_what_is_none_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        parse(text)
    assert "\n" not in str(raised.value)
