"""Verdicts at their limits, and thresholds from a file."""

import math
from pathlib import Path

import pytest

from plga.collapse.verdict import (
    COLLAPSED,
    INPUT_DEPENDENT,
    NEARLY_INVARIANT,
    Figures,
    Thresholds,
    Verdict,
    load_thresholds,
    verdict,
)

EXACT = Figures(distance=0.0, divergence=0.0, moved=0.0, agreement=1.0)
LIMIT = Figures(distance=1e-4, divergence=1e-5, moved=1e-4, agreement=0.999)
NEARLY = Figures(distance=1e-2, divergence=1e-2, moved=1e-2, agreement=0.98)


@pytest.mark.parametrize(
    ("figures", "name"),
    [
        (EXACT, COLLAPSED),
        (LIMIT, COLLAPSED),
        (LIMIT._replace(distance=1.1e-4), NEARLY_INVARIANT),
        (LIMIT._replace(divergence=1.1e-5), NEARLY_INVARIANT),
        (LIMIT._replace(moved=1.1e-4), NEARLY_INVARIANT),
        (LIMIT._replace(agreement=0.998), NEARLY_INVARIANT),
        (NEARLY, NEARLY_INVARIANT),
        (EXACT._replace(distance=1.1e-2), INPUT_DEPENDENT),
        (EXACT._replace(divergence=1.1e-2), INPUT_DEPENDENT),
        (EXACT._replace(moved=1.1e-2), INPUT_DEPENDENT),
        (EXACT._replace(agreement=0.97), INPUT_DEPENDENT),
        (EXACT._replace(distance=math.inf), INPUT_DEPENDENT),
        (EXACT._replace(moved=math.nan), INPUT_DEPENDENT),
    ],
)
def test_every_figure_counts_up_to_its_limit(figures: Figures, name: str) -> None:
    assert verdict(figures, Thresholds()).name == name


def test_the_reasons_are_the_figures_in_the_way() -> None:
    assert verdict(EXACT, Thresholds()) == Verdict(COLLAPSED, [])
    between = Figures(distance=5e-3, divergence=0.0, moved=0.0, agreement=0.99)
    assert verdict(between, Thresholds()).reasons == [
        "distance 0.005, at most 0.0001",
        "agreement 0.99, at least 0.999",
    ]
    assert verdict(between._replace(moved=0.5), Thresholds()).reasons == ["moved 0.5, at most 0.01"]


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    assert load_thresholds(None) == Thresholds()
    file = tmp_path / "limits.yaml"
    file.write_text("collapsed:\n  distance: 1.0e-6\ncommuting: 1.0e-3\n")
    found = load_thresholds(file)
    assert (found.collapsed.distance, found.collapsed.moved, found.commuting) == (1e-6, 1e-4, 1e-3)
    assert found.nearly_invariant == Thresholds().nearly_invariant
    assert verdict(LIMIT, found).name == NEARLY_INVARIANT
    file.write_text("")
    assert load_thresholds(file) == Thresholds()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colapsed: {}", "colapsed is not a setting, expected one of collapsed, nearly_invariant, commuting"),
        ("collapsed: {kl: 1}", "collapsed.kl is not a setting"),
        ("collapsed: {distance: -1}", "collapsed.distance is -1, expected greater than or equal to 0"),
        ("collapsed: {agreement: 2}", "collapsed.agreement is 2, expected less than or equal to 1"),
        ("collapsed: {distance: 1}", "collapsed.distance is 1 and nearly_invariant.distance 0.01, expected collapsed"),
        ("nearly_invariant: {agreement: 1}", "collapsed.agreement is 0.999 and nearly_invariant.agreement 1"),
        ("collapsed: 3", "collapsed"),
        ("- 1", "holds list"),
        ("a: [", "not YAML"),
    ],
)
def test_bad_thresholds_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"limits\.yaml") as error:
        load_thresholds(file)
    assert message in str(error.value)


def test_missing_thresholds(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_thresholds(tmp_path / "missing.yaml")
