"""A finished audit on the disk: whole or not at all, the same bytes each time, and every kind of damage is named."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plga.audit import source
from plga.audit.arrays import read_arrays, write_arrays
from plga.audit.files import compare, verify, write
from plga.audit.run import run
from plga.audit.section import Quantity, Section
from plga.model.digests import digest_file
from tests.audit.tiny import broken, not_measurable, section, tiny

__all__ = ["tiny"]
NAMES = {"audit.json", "audit.npz", "report.html"}


def audit(out: Path, sections: dict[str, Section], seed: int = 0, overwrite: bool = False) -> None:
    task = source.of_nothing(seed)
    results = run(task.subject, list(sections.values()), out.with_name(f"work of {out.name} {seed}"))
    write(task, results, out, overwrite)


@pytest.fixture
def folder(tiny: dict[str, Section], tmp_path: Path) -> Path:
    audit(tmp_path / "out", tiny)
    return tmp_path / "out"


def test_three_files_with_everything(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == NAMES
    record = json.loads((folder / "audit.json").read_text())
    assert list(record["sections"]) == ["A", "B", "D2"]
    assert record["sections"]["B"]["status"] == "not measurable"
    assert record["files"] == {name: digest_file(folder / name)["sha256"] for name in ("audit.npz", "report.html")}
    assert record["versions"].keys() == {"plga", "python", "torch", "transformers", "numpy"}
    assert record["mechanism"][0]["holds"] is True
    assert list(read_arrays(folder / "audit.npz")) == ["A.values", "A.scale", "D2.values", "D2.scale"]


def test_the_same_audit_is_the_same_bytes(folder: Path, tiny: dict[str, Section], tmp_path: Path) -> None:
    audit(tmp_path / "again", tiny)
    assert all((folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in NAMES)
    audit(tmp_path / "other", tiny, seed=1)
    assert (folder / "audit.npz").read_bytes() != (tmp_path / "other" / "audit.npz").read_bytes()


def test_it_verifies(folder: Path) -> None:
    assert list(verify(folder).sections) == ["A", "B", "D2"]


def test_failed_and_unmeasured_sections_verify_too(tiny: dict[str, Section], tmp_path: Path) -> None:
    failing = {"A": section("A", not_measurable), "B": section("B", broken), "D2": tiny["D2"]}
    audit(tmp_path / "out", failing)
    parts = verify(tmp_path / "out").sections
    assert {letter: part.status for letter, part in parts.items()} == {
        "A": "not measurable",
        "B": "failed",
        "D2": "measured",
    }


def edited(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / "audit.json"
    text = file.read_text(encoding="utf-8")
    assert change(text) != text
    file.write_text(change(text), encoding="utf-8")


def resealed(folder: Path) -> None:
    """Let the JSON name the other files as they are now, as a careful forger would."""
    record = json.loads((folder / "audit.json").read_text())
    record["files"] = {name: digest_file(folder / name)["sha256"] for name in record["files"]}
    (folder / "audit.json").write_text(json.dumps(record))


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no json": (lambda f: (f / "audit.json").unlink(), "audit.json: no such file, but an audit has one"),
    "no arrays": (lambda f: (f / "audit.npz").unlink(), "No such file or directory: .*audit.npz"),
    "no page": (lambda f: (f / "report.html").unlink(), "No such file or directory: .*report.html"),
    "half the json": (lambda f: halve(f / "audit.json"), "audit.json: truncated, or not JSON"),
    "half the arrays": (lambda f: halve(f / "audit.npz"), r"audit.npz: SHA-256 is \w+, but audit.json says \w+"),
    "half the page": (lambda f: halve(f / "report.html"), "report.html: SHA-256 is"),
    "a value": (
        lambda f: edited(f, lambda s: s.replace('"value": 5,', '"value": 6,', 1)),
        r"audit.json: section A is not what its arrays say: value of count \(pooled\) is 6, expected 5",
    ),
    "a claim": (
        lambda f: edited(f, lambda s: s.replace('"claim": "theorem"', '"claim": "conjecture"', 1)),
        r'claim of count \(pooled\) is "conjecture", expected "theorem"',
    ),
    "a title": (
        lambda f: edited(f, lambda s: s.replace("Section D2", "Section D3")),
        "section D2 is not what its arrays say: its title is",
    ),
    "a stage": (lambda f: edited(f, lambda s: s.replace('"holds": true', '"holds": false')), "three-stage mechanism"),
    "a letter": (lambda f: edited(f, lambda s: s.replace('"D2": {', '"Z": {')), "section Z is unknown"),
    "a file more": (
        lambda f: edited(f, lambda s: s.replace('"report.html"', '"report.htm"')),
        "files are audit.npz, report.htm, expected audit.npz and report.html",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_named_in_one_line(folder: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(folder)
    with pytest.raises((ValueError, OSError), match=message) as raised:
        verify(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["settings"].update(seed=1),
        lambda record: record["subject"].update(name="another"),
        lambda record: record["environment"].update(machine="another"),
        lambda record: record["sections"]["B"].update(reason="another"),
    ],
)
def test_what_nothing_recomputes_is_what_the_page_was_made_from(
    folder: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    record = json.loads((folder / "audit.json").read_text())
    change(record)
    (folder / "audit.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"audit\.json: it is not the one that report\.html was made from$"):
        verify(folder)


def test_a_quantity_that_stands_there_twice(folder: Path) -> None:
    record = json.loads((folder / "audit.json").read_text())
    quantities = record["sections"]["A"]["quantities"]
    quantities.append(quantities[1])
    (folder / "audit.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="section A is not what its arrays say: largest <value> stands there twice"):
        verify(folder)


def test_changed_arrays_are_found_behind_new_hashes(folder: Path) -> None:
    arrays = read_arrays(folder / "audit.npz")
    write_arrays(folder / "audit.npz", arrays | {"D2.values": arrays["D2.values"] / 2})
    resealed(folder)
    with pytest.raises(ValueError, match=r"section D2 is not what its arrays say: value of values \(instances\) is \["):
        verify(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda arrays: arrays.pop("A.scale"),
            r"section A cannot be summarized \(section A: the array A.scale is miss",
        ),
        (lambda arrays: arrays.update({"A.values": np.array(["x"])}), "section A cannot be summarized"),
        (lambda arrays: arrays.update({"A.values": np.zeros(0)}), "section A cannot be summarized"),
        (lambda arrays: arrays.update({"B.values": np.zeros(3)}), "the array B.values is of no measured section"),
    ],
)
def test_arrays_that_no_measurement_gave(
    folder: Path, change: Callable[[dict[str, np.ndarray]], object], message: str
) -> None:
    arrays = read_arrays(folder / "audit.npz")
    change(arrays)
    write_arrays(folder / "audit.npz", arrays)
    resealed(folder)
    with pytest.raises(ValueError, match=message):
        verify(folder)


def test_another_last_digit_is_no_tampering_but_nothing_more(
    folder: Path, tiny: dict[str, Section], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another processor makes of the same arrays: the last digits of a value, never a count."""
    section_a = tiny["A"]
    for factor, message in ((1 + 4e-16, None), (1 + 1e-9, "value of values"), (1 - 1e-9, "value of values")):
        off = replace(section_a, quantities=partial(nudged, section_a, factor))
        with monkeypatch.context() as patched:
            patched.setitem(tiny, "A", off)
            if message is None:
                verify(folder)
                compare([folder, folder], tmp_path / "both")
            else:
                with pytest.raises(ValueError, match=message):
                    verify(folder)
                with pytest.raises(ValueError, match=message):
                    compare([folder, folder], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def nudged(of: Section, factor: float, raw: Any) -> list[Quantity]:
    """The quantities of a section with every real number multiplied by a factor."""
    return [
        replace(q, value=[value * factor for value in q.value])
        if isinstance(q.value, list)
        else replace(q, value=q.value * factor if isinstance(q.value, float) else q.value)
        for q in of.quantities(raw)
    ]


def test_another_version_is_named_where_summaries_differ(folder: Path) -> None:
    edited(folder, lambda s: re.sub(r'"plga": "[^"]*"', '"plga": "0.0.1"', s))
    with pytest.raises(ValueError, match=r"made from \(written by plga 0\.0\.1, this is"):
        verify(folder)
    edited(folder, lambda s: s.replace('"value": 5,', '"value": 6,'))
    with pytest.raises(ValueError, match=r"\(written by plga 0\.0\.1, this is"):
        verify(folder)


def test_what_is_there_is_replaced_only_if_it_is_an_audit(
    folder: Path, tiny: dict[str, Section], tmp_path: Path
) -> None:
    with pytest.raises(FileExistsError, match="exists, expected a new or empty directory, or --overwrite"):
        audit(folder, tiny, seed=1)
    before = (folder / "audit.npz").read_bytes()
    audit(folder, tiny, seed=1, overwrite=True)
    assert (folder / "audit.npz").read_bytes() != before
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not an audit alone"):
        audit(folder, tiny, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_full_disk_leaves_nothing(tiny: dict[str, Section], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plga.audit.files.page", full)
    with pytest.raises(OSError, match="No space left"):
        audit(tmp_path / "out", tiny)
    assert [path.name for path in tmp_path.iterdir()] == ["work of out 0"]


def test_several_audits_side_by_side(folder: Path, tiny: dict[str, Section], tmp_path: Path) -> None:
    audit(tmp_path / "other", {"A": tiny["A"]}, seed=1)
    compare([folder, tmp_path / "other"], tmp_path / "both")
    assert [path.name for path in (tmp_path / "both").iterdir()] == ["report.html"]
    page = (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    assert "<th>out</th><th>other</th>" in page
    with pytest.raises(FileExistsError, match="or --overwrite"):
        compare([folder, tmp_path / "other"], tmp_path / "both")
    compare([tmp_path / "other", folder], tmp_path / "both", overwrite=True)
    assert "<th>other</th><th>out</th>" in (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(FileExistsError, match="is not a comparison of audits alone"):
        compare([folder, tmp_path / "other"], folder, overwrite=True)
    kept = (folder / "audit.json").read_text(encoding="utf-8")
    edited(folder, lambda s: s.replace('"value": 5,', '"value": 6,', 1))
    with pytest.raises(ValueError, match=r"value of count \(pooled\) is 6, expected 5"):
        compare([tmp_path / "other", folder], tmp_path / "third")
    (folder / "audit.json").write_text(kept, encoding="utf-8")
    halve(folder / "audit.npz")
    with pytest.raises(ValueError, match="SHA-256"):
        compare([folder, tmp_path / "other"], tmp_path / "third")
    assert not (tmp_path / "third").exists()
