"""Figures that the papers' author published of checkpoints of 110M parameters: context for ours, never our results."""

import json
from functools import cache
from importlib import resources
from typing import Any

from plga.audit.section import Value


def published(*keys: str) -> Value:
    """One figure of ``published.json``: a number, or [min, median, max].

    Args:
        keys: from the outside in, as "spectra_trained", "A_s2_over_s1".
    """
    found: Any = _figures()
    for key in keys:
        found = found[key]
    return found


@cache
def _figures() -> dict[str, Any]:
    return json.loads(resources.files("plga.audit").joinpath("published.json").read_text(encoding="utf-8"))
