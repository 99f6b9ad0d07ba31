"""Ratios of instances and of what they have together, by hand."""

import os
import subprocess
import sys

import numpy as np
import pytest

from plga.audit.ratios import each, root_of_squares, together


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


def test_the_root_of_squares_is_finite_where_it_can_be() -> None:
    assert root_of_squares(np.array([3.0, 0.0, -4.0])) == 5.0
    assert root_of_squares(np.array([[3e200], [4e200]])) == pytest.approx(5e200, rel=1e-15)
    assert root_of_squares(np.array([3e-200, 4e-200])) == pytest.approx(5e-200, rel=1e-15)
    assert root_of_squares(np.zeros(0)) == 0.0
    assert root_of_squares(np.array([1.0, np.inf])) == np.inf
    assert np.isnan(root_of_squares(np.array([1.0, np.nan])))


def test_the_root_of_squares_does_not_go_with_the_number_of_threads() -> None:
    """32256 pairs, as many as section E has: BLAS shares them out among its threads and adds in another order."""
    program = (
        "import numpy as np; from plga.audit.ratios import root_of_squares;"
        "print(*[root_of_squares(np.random.default_rng(seed).random(32256)).hex() for seed in range(20)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "3")
    }
    assert len(printed) == 1
