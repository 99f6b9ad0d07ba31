"""``report.html``: one file for people, of one audit or of several side by side; it loads nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from plga.audit.drawing import Drawing
from plga.audit.figures import drawings
from plga.audit.record import Figure, Number, Part, Record


@dataclass(frozen=True)
class Audit:
    """An audit to show: its record, and the raw dataclasses of its measured sections by letter."""

    name: str
    record: Record
    raw: dict[str, Any]


@dataclass(frozen=True)
class _Row:
    """A quantity, and its figure in each audit; None where that has none."""

    quantity: Figure
    figures: list[Figure | None]


@dataclass(frozen=True)
class _Shown:
    """A section of the page; its drawings in rows, each with the name of its audit."""

    letter: str
    title: str
    parts: list[Part | None]
    rows: list[_Row]
    drawings: list[list[tuple[str, Drawing]]]

    @property
    def published(self) -> bool:
        return any(row.quantity.published is not None for row in self.rows)


def page(audits: Sequence[Audit], digest: str | None = None) -> str:
    """The page of one audit, with the ``digest`` of its record, or of several side by side."""
    template = resources.files("plga.audit").joinpath("report.html.jinja").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"shown": shown, "number": _number, "unbroken": unbroken, "inline": _trusted}
    letters = list(dict.fromkeys(letter for audit in audits for letter in audit.record.sections))
    return environment.from_string(template).render(
        audits=audits, digest=digest, sections=[_section(letter, audits) for letter in letters]
    )


def unbroken(text: str) -> Markup:
    """A text in which no line ends within a number, as after the e- of 1e-06."""
    return Markup(re.sub(r"[\d.]+e-\d+", r'<span class="number">\g<0></span>', str(escape(text))))


def shown(figure: Figure) -> str:
    """The value of a quantity for people: one number, or smallest, median and largest."""
    nulls = iter(figure.nulls)
    if isinstance(figure.value, list):
        return " · ".join(next(nulls) if value is None else _number(value) for value in figure.value)
    return next(nulls) if figure.value is None else _number(figure.value)


def _number(value: Number) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " · ".join(map(_number, value))
    if value is None:
        return "–"
    short = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    # What is nearly one is not one.
    return short if isinstance(value, int) or float(short) != 1 else f"{value:.10g}"


def _trusted(drawing: Drawing) -> Markup:
    """The SVG as it is: Matplotlib has escaped what is written in it."""
    return Markup(drawing.svg)


def _section(letter: str, audits: Sequence[Audit]) -> _Shown:
    parts = [audit.record.sections.get(letter) for audit in audits]
    found = [{(q.name, q.over): q for q in part.quantities} if part else {} for part in parts]
    keys = dict.fromkeys(key for quantities in found for key in quantities)
    rows = [
        _Row(next(q[key] for q in found if key in q), [quantities.get(key) for quantities in found]) for key in keys
    ]
    pictures = [
        (audit.name, drawing)
        for number, audit in enumerate(audits)
        if letter in audit.raw
        for drawing in drawings(
            letter, audit.raw[letter], audit.record.sections[letter].quantities, f"{letter}-{number}"
        )
    ]
    title = next(part.title for part in parts if part is not None)
    return _Shown(letter, title, parts, rows, _in_rows(pictures, len(audits)))


def _in_rows(pictures: list[tuple[str, Drawing]], audits: int) -> list[list[tuple[str, Drawing]]]:
    """All figures of one audit in one row, which wraps; of several, the same figure of each in one."""
    if audits == 1:
        return [pictures] if pictures else []
    titles = dict.fromkeys(drawing.title for _, drawing in pictures)
    return [[pair for pair in pictures if pair[1].title == title] for title in titles]
