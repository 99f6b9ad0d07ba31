"""Every section gives arrays alone, and its summary is computed from these alone, in whatever file they were."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from plga.audit.section import Section
from plga.audit.sections import SECTIONS
from tests.audit.subjects import tiny


@pytest.mark.parametrize("section", list(SECTIONS.values()), ids=lambda section: section.letter)
def test_the_summary_of_the_arrays_read_back_is_the_same(section: Section, tmp_path: Path) -> None:
    raw = section.measure(tiny())
    assert isinstance(raw, section.raw) and raw.__dataclass_params__.frozen
    arrays = vars(raw)
    assert all(isinstance(array, np.ndarray) and array.dtype.kind in "bif" for array in arrays.values())
    np.savez(tmp_path / "raw.npz", **arrays)
    with np.load(tmp_path / "raw.npz", allow_pickle=False) as read:
        again = section.raw(**{field.name: read[field.name] for field in dataclasses.fields(section.raw)})
    summary = section.quantities(raw)
    assert section.quantities(again) == summary
    assert len({quantity.name for quantity in summary}) == len(summary)
    for quantity in summary:
        values = quantity.value if isinstance(quantity.value, list) else [quantity.value]
        assert all(value is None or np.isfinite(value) for value in values), quantity.name


def test_a_ratio_to_nothing_is_none_and_never_not_a_number() -> None:
    """All queries 0 and A = 0: almost every denominator vanishes."""
    subject = tiny()
    with torch.no_grad():
        for layer in subject.layers:
            norm = layer.self_attn.operator.learner.units[-1].norm
            for parameter in (*layer.self_attn.q_proj.parameters(), norm.weight, norm.bias):
                parameter.zero_()
    missing = 0
    for section in SECTIONS.values():
        for quantity in section.quantities(section.measure(subject)):
            values = quantity.value if isinstance(quantity.value, list) else [quantity.value]
            assert quantity.value is None or np.isfinite(values).all(), quantity.name
            missing += quantity.value is None
    assert missing > 20


def test_letters_differ() -> None:
    assert [section.letter for section in SECTIONS.values()] == list(SECTIONS)
