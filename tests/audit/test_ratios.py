"""Ratios of instances and of what they have together, by hand."""

import numpy as np
import pytest

from plga.audit.ratios import each, together


def test_ratios_do_not_commute_with_pooling() -> None:
    above, below = np.array([3.0, 1.0, 4.0]), np.array([3.0, 4.0, 0.0])
    of_each = each("ratio", above, below, "head")
    assert of_each.value == [0.25, 0.625, 1.0]
    assert of_each.over == "head, without 1 of 3 with denominator 0"
    assert together("ratio", above, below, "pooled").value == pytest.approx(np.sqrt(26 / 25))


def test_a_ratio_to_nothing_does_not_exist() -> None:
    zero = np.zeros(2)
    assert each("ratio", zero, zero, "head").value is None
    assert together("ratio", zero, zero, "pooled").value is None
