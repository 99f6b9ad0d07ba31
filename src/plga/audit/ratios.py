"""Ratios, which do not commute with pooling: of each instance, and of what the instances have together."""

from typing import Any

import numpy as np

from plga.audit.section import Quantity, spread


def each(name: str, numerator: np.ndarray, denominator: np.ndarray, over: str, **told: Any) -> Quantity:
    """[min, median, max] of numerator / denominator over the instances where the denominator is positive.

    Those where it is not are counted in ``over``; where it is nowhere, the value is None.
    """
    exists = denominator > 0
    missing = int(exists.size - exists.sum())
    if missing:
        over = f"{over}, without {missing} of {exists.size} with denominator 0"
    value = spread(numerator[exists] / denominator[exists]) if exists.any() else None
    return Quantity(name, value, over, **told)


def together(name: str, numerator: np.ndarray, denominator: np.ndarray, over: str, **told: Any) -> Quantity:
    """Root of the sum of squares of all numerators over that of all denominators; None where that is 0."""
    below = root_of_squares(denominator)
    return Quantity(name, root_of_squares(numerator) / below if below else None, over, **told)


def root_of_squares(values: np.ndarray) -> float:
    """√Σ x² of all entries, finite where that is, whatever the number of threads.

    ``numpy.linalg.norm`` leaves the sum to BLAS, whose last digit goes with the number of threads and the processor: an
    audit would not verify on another machine.
    """
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.square(values / largest).sum()))
