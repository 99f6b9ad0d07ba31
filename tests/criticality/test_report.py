"""The report: a picture, a table, and one file that holds all."""

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from plga.criticality import phase_diagram
from plga.criticality.report import Onset, onsets, write
from plga.criticality.results import Figures, Row, cells
from plga.criticality.sweep_settings import Point, Sweep
from tests.criticality import fakes
from tests.criticality.sweeps import sweep

AXES: dict[str, Any] = {
    "learning_rate": [0.001, 0.02, 0.5],
    "warmup": [10, 20],
    "size": {"small": {}, "<wide>": {}},
    "seed": [0, 1, 2],
}


def grid(**changes: Any) -> Sweep:
    return sweep(axes=AXES, **changes)


def rows(of: Sweep) -> list[Row]:
    return [
        Row(number, "complete", point, Figures(**fakes.figures(point.learning_rate, point.warmup, point.seed)))
        for number, point in enumerate(of.grid())
    ]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """Figures that were saved."""
    found: list[Figure] = []
    save = phase_diagram.save
    monkeypatch.setattr(phase_diagram, "save", lambda figure, file: found.append(figure) or save(figure, file))  # type: ignore[func-returns-value]
    yield found


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_what_a_report_says_and_leaves(tmp_path: Path) -> None:
    of = grid()
    report = write(of, rows(of), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"trials.csv", "phase_diagram.png", "phase_diagram.html"}
    assert report.states == {"complete": 36}
    assert report.regimes == {
        "sub-critical": 12,
        "near-critical": 12,
        "indeterminate with a dragon king": 12,
    }
    assert (report.passed, report.ended) == (24, 12)
    assert report.best is not None and report.best.point == Point(0.02, 10.0, "small", 0)
    assert report.onsets == [Onset(size, warmup, 0.02, 0.02) for size in ("<wide>", "small") for warmup in (10.0, 20.0)]


def test_the_html_holds_everything_and_fetches_nothing(tmp_path: Path) -> None:
    of = grid()
    given = rows(of)
    given[3] = Row(3, "failed", given[3].point, None, "A of layer 0 is <not> finite")
    write(of, given, tmp_path)
    html = (tmp_path / "phase_diagram.html").read_text()
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', html)
    assert picture is not None
    assert base64.b64decode(picture[1]) == (tmp_path / "phase_diagram.png").read_bytes()
    assert not re.search(r"""(src|href)="(?!data:)|@import|url\(""", html)
    for text in (
        "near-critical up to 0.0001, sub-critical from 0.01",
        "35 complete, 1 failed",
        "A of layer 0 is &lt;not&gt; finite",
        "&lt;wide&gt;",
        "23 of the complete runs were near-critical at some look; 11 ended so",
        "On windows that no look has seen its loss is",
        "torch 2.",
        "<strong>Measurement.</strong>",
        "num_metric_units: 24",
    ):
        assert text in " ".join(html.split()), text
    assert "<wide>" not in html
    assert html.count("<tr>") > 36


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_a_picture_shows_every_cell_and_marks_events(tmp_path: Path, sampler: str, drawn: list[Figure]) -> None:
    of = grid() if sampler == "grid" else grid(sampler=sampler, trials=36)
    given = rows(of)
    given[0] = replace(given[0], state="failed", figures=None)
    phase_diagram.draw(of, given, tmp_path / "phase.png")
    assert (tmp_path / "phase.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = drawn
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert len(panels) == 8
    assert [line.get_linestyle() for line in panels[3].lines].count(":") == 2  # the thresholds
    assert len(panels[3].lines) == 2 + 17  # a line a complete run of the size
    marks = texts(figure)
    assert sum("*" in text for text in marks) == 4 * 3  # 2 sizes x 2 warmups with a dragon king, in three panels
    assert sum("x" in text for text in marks) == 3
    if sampler == "grid":
        assert sum("1e-07" in text for text in marks) == 4 + 8  # at the end, and over the run


def test_a_sweep_in_which_nothing_is_complete(tmp_path: Path) -> None:
    of = grid()
    for state in ("failed", "running", "waiting"):
        report = write(of, [Row(0, state, Point(0.02, 10.0, "small", 0) if state != "waiting" else None)], tmp_path)
        assert report.best is None
        assert report.states == {state: 1}
    assert "No run ended near-critical" in (tmp_path / "phase_diagram.html").read_text()


def test_one_run_is_a_report_too(tmp_path: Path) -> None:
    of = sweep(axes={"learning_rate": [0.02]})
    assert write(of, rows(of), tmp_path).onsets == [Onset("base", 150.0, 0.02, 0.02)]


def test_most_runs_make_an_onset() -> None:
    def at(number: int, rate: float, seed: int, smallest: float, end: float) -> Row:
        figures = Figures(**{**fakes.figures(rate, 10.0, seed), "smallest": smallest, "order_parameter": end})
        return Row(number, "complete", Point(rate, 10.0, "base", seed), figures)

    found = cells(
        [
            at(0, 0.1, 0, 1e-7, 1e-1),
            at(1, 0.1, 1, 1e-1, 1e-1),  # one of two is not most
            at(2, 0.2, 0, 1e-7, 1e-1),
            at(3, 0.2, 1, 1e-7, 1e-7),
            at(4, 0.4, 0, 1e-7, 1e-7),
            at(5, 0.4, 1, 1e-7, 1e-7),
        ]
    )
    assert onsets(found) == [Onset("base", 10.0, passing=0.2, ending=0.4)]
    assert onsets(found[:1]) == [Onset("base", 10.0, passing=None, ending=None)]


def test_a_report_replaces_another_and_none_is_half_written(tmp_path: Path) -> None:
    of = sweep(axes={"learning_rate": [0.02]})
    write(of, rows(of), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write(of, rows(of), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
