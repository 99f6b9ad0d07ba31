"""Settings of the guard: plain data, strictly read."""

import math

import pytest

from plga.model.guard_settings import GuardSettings

PLAIN = {"every": 64, "margin_factor": 2.0, "deviation": 1e-5, "tolerance": 1e-3}


def test_plain_data_there_and_back() -> None:
    settings = GuardSettings.read(PLAIN)
    assert settings == GuardSettings(64, 2.0, 1e-5, 1e-3)
    assert settings.to_dict() == PLAIN
    assert GuardSettings.read(settings) is settings
    assert GuardSettings.read({**PLAIN, "margin_factor": 0, "deviation": 0, "tolerance": 0}).tolerance == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evry": 1}, "guard: unknown: evry; expected every, margin_factor, deviation, tolerance"),
        ({"every": 0}, "every of the guard is 0, expected a whole number of tokens >= 1"),
        ({"every": 1.5}, "every of the guard is 1.5, expected a whole number"),
        ({"every": True}, "every of the guard is True, expected a whole number"),
        ({"margin_factor": -1}, "margin_factor of the guard is -1, expected a finite number >= 0"),
        ({"deviation": math.nan}, "deviation of the guard is nan, expected a finite number >= 0"),
        ({"tolerance": math.inf}, "tolerance of the guard is inf, expected a finite number >= 0"),
        ({"deviation": 10**400}, "deviation of the guard is 1000*, expected a finite number >= 0"),
        ({"tolerance": "1e-3"}, "tolerance of the guard is '1e-3', expected a finite number >= 0"),
    ],
)
def test_wrong_settings(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GuardSettings.read({**PLAIN, **changes})


@pytest.mark.parametrize("name", list(PLAIN))
def test_no_setting_may_be_missing(name: str) -> None:
    with pytest.raises(
        ValueError, match=f"guard: missing: {name}; expected every, margin_factor, deviation, tolerance"
    ):
        GuardSettings.read({key: value for key, value in PLAIN.items() if key != name})


@pytest.mark.parametrize("wrong", [True, 64, "every"])
def test_something_else_than_settings(wrong: object) -> None:
    with pytest.raises(
        ValueError, match="expected a mapping with every, margin_factor, deviation, tolerance, or False"
    ):
        GuardSettings.read(wrong)
