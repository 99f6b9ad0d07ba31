"""The published figures that ship with the package are those of the reference data."""

import json
from pathlib import Path

import pytest

from plga.audit import published as module
from plga.audit.published import published


def test_they_are_the_published_ones(reference: Path) -> None:
    numbers = json.loads((reference / "published_numbers.json").read_text())
    for name, figures in module._figures().items():
        assert name == "about" or figures == numbers[name]


def test_one_by_its_keys() -> None:
    assert published("spectra_trained", "A_numerical_rank") == [1, 1, 1]
    with pytest.raises(KeyError):
        published("spectra_trained", "no such figure")
