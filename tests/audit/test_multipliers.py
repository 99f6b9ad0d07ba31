"""Section A: the published analysis anew, and the model's own rotary embedding."""

import json
from pathlib import Path

import numpy as np
import pytest

from plga.audit.multipliers import SECTION, measure, quantities
from plga.audit.subject import Subject
from tests.audit.subjects import summary, tiny


def test_the_published_analysis_to_twelve_digits(reference: Path) -> None:
    numbers = json.loads((reference / "published_numbers.json").read_text())["twirl_analytic_dk64_base10000"]
    found = summary(SECTION, Subject())
    of = "(d = 64, base 10000)"
    expected = {f"C_Θ {of}": numbers["C_theta"]}
    for length in (64, 256, 1024):
        figures = numbers[f"S={length}"]
        expected |= {
            f"worst multiplier at S = {length} {of}": figures["worst"],
            f"median multiplier at S = {length} {of}": figures["median"],
            f"fraction of multipliers below 0.1 at S = {length} {of}": figures["fraction_below_0.1"],
            f"fraction of multipliers below 0.01 at S = {length} {of}": figures["fraction_below_0.01"],
        }
    expected[f"slowest in-plane multiplier at S = 1024 {of}"] = numbers["slowest_in_plane_multiplier_S=1024"]
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, rel=1e-12), name
        assert found[name].published == value
    assert found[f"resonant frequencies {of}"].value == 0


def test_every_frequency_has_its_multipliers() -> None:
    raw = measure(Subject())
    assert raw.frequencies.shape == (2016,) and raw.multipliers.shape == (3, 2016)
    assert raw.model_frequencies.shape == (0,) and raw.model_multipliers.shape == (3, 0)
    c_theta = next(q.value for q in quantities(raw) if q.name.startswith("C_Θ"))
    # The bound that C_Θ is for.
    assert (raw.multipliers <= np.minimum(1.0, c_theta / raw.lengths[:, None])).all()


def test_the_rotary_embedding_of_the_model_is_added_where_it_is_another() -> None:
    found = summary(SECTION, tiny(rope_theta=100.0))
    assert found["C_Θ (d = 64, base 10000)"].published is not None
    own = found["C_Θ (d = 4, base 100)"]
    # θ = 1, 0.1: the frequencies are 2, 0.2, 0.9, 1.1, and 0.2 is the slowest.
    assert own.value == pytest.approx(1 / np.sin(0.1), rel=1e-14) and own.published is None
    assert len(found) == 2 * len(summary(SECTION, Subject()))
