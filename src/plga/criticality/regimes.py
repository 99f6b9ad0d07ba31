"""Regimes of a training run, from what was measured of it and from stated thresholds.

Published runs (arXiv:2603.23539, RMSE_1C / abs(mean) of G_LM) are near-critical up to 2.2e-2, sub-critical from 1.6e1.
In the RMS normalization small runs of ours lie at 1e-8 to 1e-5 once collapsed and at 1e-1 where they are not. Between
two thresholds a run counts as indeterminate: nothing seen there says which it is.
"""

from typing import NamedTuple

NEAR_CRITICAL, SUB_CRITICAL, INDETERMINATE = "near-critical", "sub-critical", "indeterminate"


class Thresholds(NamedTuple):
    """Order parameter of G_LM up to which a run is near-critical, and from which on it is sub-critical."""

    near_critical: float
    sub_critical: float


RMS_NORMALIZED = Thresholds(near_critical=1e-4, sub_critical=1e-2)
RMSE_OVER_ABS_MEAN = Thresholds(near_critical=3e-2, sub_critical=1e1)


def regime(order_parameter: float, dragon_kings: int = 0, thresholds: Thresholds = RMS_NORMALIZED) -> str:
    """``near-critical``, ``sub-critical`` or ``indeterminate``; after a dragon king, ``... with a dragon king``.

    Args:
        order_parameter: of G_LM, in the normalization of ``thresholds``.
        dragon_kings: recorded jumps of the loss (:class:`plga.training.guards.DragonKingGuard`).
        thresholds: ours, both kinds above.
    """
    if order_parameter <= thresholds.near_critical:
        name = NEAR_CRITICAL
    elif order_parameter >= thresholds.sub_critical:
        name = SUB_CRITICAL
    else:
        name = INDETERMINATE
    return f"{name} with a dragon king" if dragon_kings else name


def stated(thresholds: Thresholds) -> str:
    """The thresholds in words, for a report."""
    return f"near-critical up to {thresholds.near_critical:g}, sub-critical from {thresholds.sub_critical:g}"
