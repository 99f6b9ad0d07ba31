"""The report of a collapse: every figure as JSON, and a page for people made from it."""

import json
import platform
from dataclasses import asdict
from importlib import metadata, resources
from typing import Any

from jinja2 import Environment, StrictUndefined

import plga
from plga.collapse.collapse import Candidate, Outcome
from plga.collapse.prompts import Prompts, digest
from plga.collapse.steps import by_step, summary

JSON, PAGE = "collapse_report.json", "COLLAPSE.md"
_PACKAGES = ("torch", "transformers")


def record(outcome: Outcome, checkpoint: str) -> dict[str, Any]:
    """Every figure as plain data.

    Args:
        checkpoint: the source, in words.
    """
    return {
        "checkpoint": checkpoint,
        "verdict": outcome.written.verdict.name,
        "reasons": outcome.written.verdict.reasons,
        "thresholds": outcome.thresholds.model_dump(),
        "operator": outcome.operator,
        "projected": outcome.projected is not None,
        "prompts": _prompts(outcome.prompts, outcome.new_tokens),
        "invariance": asdict(outcome.invariance),
        "written": _candidate(outcome.written),
        "frozen": _candidate(outcome.frozen),
        "versions": {
            "plga": plga.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
    }


def texts(report: dict[str, Any]) -> dict[str, str]:
    """``collapse_report.json`` and ``COLLAPSE.md``, by file name.

    Args:
        report: of :func:`record`.

    Raises:
        ValueError: a NaN or an infinity, which JSON does not know.
    """
    template = resources.files("plga.collapse").joinpath("report.md.jinja").read_text(encoding="utf-8")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["short"] = short
    page = environment.from_string(template).render(report)
    return {JSON: json.dumps(report, indent=1, allow_nan=False) + "\n", PAGE: page}


def short(value: float | None) -> str:
    """Two digits of a figure; a dash where there is none."""
    return "–" if value is None else f"{value:.1e}"


def _prompts(prompts: Prompts, new_tokens: int) -> dict[str, Any]:
    sets = (prompts.calibration, prompts.held_out)
    return {
        "origin": prompts.origin,
        "calibration": len(prompts.calibration),
        "held_out": len(prompts.held_out),
        "shortest": min(len(row) for rows in sets for row in rows),
        "longest": max(len(row) for rows in sets for row in rows),
        "new_tokens": new_tokens,
        "calibration_sha256": digest(prompts.calibration),
        "held_out_sha256": digest(prompts.held_out),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    bound = candidate.bound
    return {
        "verdict": candidate.verdict.name,
        "distance": candidate.distance,
        "commutant_residual": candidate.residual,
        "absorbed": candidate.absorbed,
        "fidelity": {
            dtype: {"all": asdict(summary(steps)), "by_step": [asdict(step) for step in by_step(steps)]}
            for dtype, steps in candidate.fidelity.items()
        },
        "price": asdict(candidate.price),
        "bound": None
        if bound is None
        else {
            **asdict(bound),
            "orders_above_margin": bound.orders_above_margin,
            "orders_above_deviation": bound.orders_above_deviation,
        },
    }
