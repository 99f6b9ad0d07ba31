"""``report.html`` in a browser: it renders at two widths, no figure is empty, and nothing is loaded from elsewhere."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plga.audit import figures, source
from plga.audit.drawing import HEIGHT, Drawing
from plga.audit.files import compare, load, write
from plga.audit.page import unbroken
from plga.audit.run import run
from plga.audit.sections import SECTIONS
from plga.audit.subject import Subject
from tests.audit.subjects import trained

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OFFLINE = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND")


@pytest.fixture
def browser() -> str:
    if BROWSER is None:
        assert not os.environ.get("CI"), "no Chromium on this machine, and CI must look at the report"
        pytest.skip("no Chromium on this machine")
    return BROWSER


@pytest.fixture(scope="module")
def audits(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the audits of both reference checkpoints, every section, and a comparison of them."""
    folder = tmp_path_factory.mktemp("audits")
    for name in ("critical", "subcritical"):
        subject = trained(reference, name)
        assert subject.model is not None
        task = source.of_checkpoint(
            reference / f"{name}.pth", None, reference / "tokenizer.json", subject.model.dtype, seed=0
        )
        task = replace(task, subject=Subject(model=subject.model, prompts=subject.prompts))
        write(task, run(task.subject, list(SECTIONS.values()), folder / f".{name}"), folder / name)
    compare([folder / "critical", folder / "subcritical"], folder / "both")
    return folder


def open_page(browser: str, page: Path, *options: str) -> str:
    """What the browser writes on standard output."""
    done = subprocess.run(
        [browser, *OFFLINE, f"--user-data-dir={page.parent.parent}/profile", *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["critical", "both"])
def test_every_section_is_on_the_page_and_no_figure_is_empty(browser: str, audits: Path, name: str) -> None:
    document = open_page(browser, audits / name / "report.html", "--dump-dom")
    for letter in [*SECTIONS, "K"]:
        assert f'<section id="{letter}">' in document
    drawn_figures = re.findall(r"<figure>.*?</figure>", document, flags=re.DOTALL)
    assert len(drawn_figures) >= len(SECTIONS)
    for figure in drawn_figures:
        label = re.search(r'aria-label="([^"]+)"', figure)
        assert label is not None
        # What is drawn is clipped to its axes, or a picture; frames, ticks and text are neither.
        assert bool("<image" in figure or figure.count("clip-path") >= 2), label.group(1)
        drawn = re.sub(r"base64,[^\"]*", "", figure)
        assert not re.findall(r"\bnan\b", drawn, flags=re.IGNORECASE), label.group(1)


def test_every_figure_that_the_report_promises_is_there(audits: Path) -> None:
    page = (audits / "critical" / "report.html").read_text(encoding="utf-8")
    titles = re.findall(r"<figcaption><b>([^<]*)</b>", page)
    promised = {
        *("Spectrum of A", "Spectrum of A_LM", "Spectrum of G_LM"),
        *(f"{symbol}, layer {layer}, head 0" for symbol in ("A", "G_LM") for layer in (0, 1)),
        *("Order parameters", "Margins against deviations", "Contraction of φ", "Contraction of pairs of rows"),
    }
    assert promised <= set(titles)
    with_published = [letter for letter in SECTIONS if 'data-label="published"' in of_section(page, letter)]
    assert {"A", "B", "C", "D", "D2", "E", "F", "G", "H", "I", "J"} == set(with_published)
    for letter in with_published:
        assert of_section(page, letter).count("<b>Here and published</b>") == 1


def test_every_axis_says_what_it_is(audits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words beside both axes; rows that carry their names have no second axis."""
    titles = []

    def look(name: str, title: str, caption: str, paint: Callable[[Axes], None], height: float = HEIGHT) -> Drawing:
        axes = Figure().subplots()
        paint(axes)
        assert axes.get_xlabel(), title
        assert axes.get_ylabel() or not axes.get_yticks().size, title
        titles.append(title)
        return Drawing(title, caption, "")

    monkeypatch.setattr(figures, "draw", look)
    record, results = load(audits / "critical")
    for result in results:
        letter = result.section.letter
        figures.drawings(letter, result.raw, record.sections[letter].quantities, letter)
    assert "A, layer 1, head 0" in titles and "Here and published" in titles


def test_the_mechanism_says_what_kind_of_claim_it_is(audits: Path) -> None:
    section = of_section((audits / "critical" / "report.html").read_text(encoding="utf-8"), "K")
    assert "thresholds are this report’s" in section.replace("\n", " ")
    assert '<span class="label">measurement</span>' in section


def of_section(page: str, letter: str) -> str:
    found = re.search(f'<section id="{letter}">.*?</section>', page, flags=re.DOTALL)
    assert found is not None
    return found.group(0)


def test_no_line_ends_within_a_number() -> None:
    assert unbroken("3 · 1.5e-06 < -2e-7") == (
        '3 · <span class="number">1.5e-06</span> &lt; -<span class="number">2e-7</span>'
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_it_renders_at_the_width_of_a_phone_and_of_a_desk(
    browser: str, audits: Path, tmp_path: Path, width: int
) -> None:
    page, shot = audits / "critical" / "report.html", tmp_path / "shot.png"
    open_page(browser, page, f"--window-size={width},3000", f"--screenshot={shot}")
    pixels = image.imread(shot)[..., :3]
    assert pixels.shape[1] == width
    ink = np.abs(pixels - pixels[0, 0]).max(axis=-1) > 0.1
    assert 0.01 < ink.mean() < 0.5
    # Nothing is cut off or pushed out at the right edge, and what there is uses the width.
    columns = np.flatnonzero(ink.any(axis=0))
    assert columns[0] >= 8 and columns[-1] < width - 8 and columns[-1] > 0.8 * width


def test_it_loads_nothing(browser: str, audits: Path, tmp_path: Path) -> None:
    page, log = audits / "both" / "report.html", tmp_path / "net.json"
    open_page(browser, page, f"--log-net-log={log}", "--dump-dom")
    events = json.loads(log.read_text())["events"]
    asked = [event["params"]["url"] for event in events if "url" in event.get("params", {})]
    own = ("file:", "chrome:", "data:", "devtools:", "about:", "chrome-extension:")
    # What the browser asks of its maker is not the page's; that of the page has the page as its origin.
    outside = [url for url in asked if not url.startswith(own) and "google" not in url and "gvt1" not in url]
    assert not outside
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*\"|url\((?!#|\"#|'#|data:)|@import|<script|<link", text)
