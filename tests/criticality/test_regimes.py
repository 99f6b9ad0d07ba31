"""Regimes: at the thresholds, between them, and beside the published runs."""

import json
from pathlib import Path

import pytest

from plga.criticality.regimes import RMS_NORMALIZED, RMSE_OVER_ABS_MEAN, Thresholds, regime, stated


def test_thresholds_belong_to_their_regimes() -> None:
    thresholds = Thresholds(near_critical=0.1, sub_critical=1.0)
    for value, name in (
        (0.0, "near-critical"),
        (0.1, "near-critical"),
        (0.11, "indeterminate"),
        (0.99, "indeterminate"),
        (1.0, "sub-critical"),
        (float("inf"), "sub-critical"),
    ):
        assert regime(value, thresholds=thresholds) == name
        assert regime(value, dragon_kings=2, thresholds=thresholds) == f"{name} with a dragon king"


def test_by_default_the_order_parameter_is_the_rms_normalized_one() -> None:
    assert regime(7e-8) == "near-critical"
    assert regime(0.11) == "sub-critical"
    assert stated(RMS_NORMALIZED) == "near-critical up to 0.0001, sub-critical from 0.01"


def test_published_runs(reference: Path) -> None:
    """Each is what it was published as; the one with a dragon king has the order parameter of a sub-critical run."""
    published = json.loads((reference / "published_numbers.json").read_text())
    runs = published["order_parameter_source_normalization_RMSE1C_over_abs_mean"]
    assert len(runs) == 8
    for name, run in runs.items():
        dragon_kings = int("dragon king" in run["regime"])
        expected = "sub-critical with a dragon king" if name == "ABL-SOC-110M-1" else run["regime"]
        assert regime(run["G_LM"], dragon_kings, RMSE_OVER_ABS_MEAN) == expected, name


@pytest.mark.parametrize("thresholds", [RMS_NORMALIZED, RMSE_OVER_ABS_MEAN])
def test_there_is_room_between_the_regimes(thresholds: Thresholds) -> None:
    assert 0 < thresholds.near_critical < thresholds.sub_critical
