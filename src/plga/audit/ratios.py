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
    below = float(np.linalg.norm(denominator))
    return Quantity(name, float(np.linalg.norm(numerator)) / below if below else None, over, **told)
