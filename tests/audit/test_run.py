"""Sections one after the other: what one of them raises, an interruption, a kill, and going on."""

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from plga.audit import run as runs
from plga.audit.arrays import write_arrays
from plga.audit.run import alone, clear, run, working_folder
from plga.audit.section import Section
from plga.audit.subject import Subject
from tests.audit.tiny import audit, broken, measured_by, not_measurable, quantities, section
from tests.training.processes import CONTEXT


def unexpected(subject: Subject) -> None:
    return {}["nothing"]


def test_what_a_section_raises_is_its_result_and_the_others_are_measured(tmp_path: Path) -> None:
    def no_summary(raw: object) -> NoReturn:
        raise RuntimeError("out of\nmemory")

    asked = [
        section("A"),
        section("B", needs="model"),
        section("C", not_measurable),
        section("D", broken),
        section("E", unexpected),
        section("F", summary=no_summary),
        section("G"),
    ]
    ended: list[str] = []
    results = run(Subject(), asked, tmp_path / "work", on_end=lambda result: ended.append(result.section.letter))
    assert ended == list("ABCDEFG")
    assert [(r.status, r.reason) for r in results] == [
        ("measured", None),
        ("not measurable", "it needs a model with a learned operator"),
        ("not measurable", "one prompt only, expected two"),
        ("failed", "G_LM of layer 1 is not finite"),
        ("failed", "KeyError: 'nothing'"),
        ("failed", "RuntimeError: out of memory"),
        ("measured", None),
    ]
    assert results[0].quantities == quantities(results[0].raw)
    assert [r.part.status for r in results] == [r.status for r in results]
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["A.npz", "G.npz"]


def test_finished_sections_are_not_measured_again(tmp_path: Path) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    sections = [measured_by(letter, log) for letter in "AB"]
    first = run(Subject(), sections[:1], work)
    again = run(Subject(), sections, work)
    assert log.read_text() == "AB"
    assert again[0].part == first[0].part
    (work / "A.npz").write_bytes((work / "A.npz").read_bytes()[:100])  # damaged: measured again
    write_arrays(work / "B.npz", {"B.values": np.zeros(5)})  # without one of its arrays: too
    assert run(Subject(), sections, work)[0].part == first[0].part
    assert log.read_text() == "ABAB"


def test_an_interruption_keeps_what_is_finished(tmp_path: Path) -> None:
    def interrupt(subject: Subject) -> None:
        raise KeyboardInterrupt

    work, log = tmp_path / "work", tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        run(Subject(), [measured_by("A", log), section("B", interrupt)], work)
    run(Subject(), [measured_by("A", log), section("B")], work)
    assert log.read_text() == "A"


def test_every_audit_has_a_working_folder_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folders = [working_folder(out, "1" * 64), working_folder(out, "2" * 64)]
    assert len(set(folders)) == 2
    for folder in folders:
        assert folder.parent == tmp_path and folder.name.startswith(".out.audit-")
        folder.mkdir()
        (folder / "A.npz").write_text("")
    other = working_folder(tmp_path / "out2", "1" * 64)
    other.mkdir()
    clear(out)
    assert list(tmp_path.iterdir()) == [other]


def test_an_audit_works_alone(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    refused = pytest.raises(ValueError, match="new/out: another audit is on its way there; wait for it, or choose")
    with alone(out), alone(tmp_path / "new" / "other"), refused, alone(out):
        pass
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "new" / ".out.audit-lock").touch()  # of a killed one
    with alone(out):
        clear(out)
    (tmp_path / "file").touch()
    unwritable = pytest.raises(OSError, match=f"{tmp_path}/file: .*expected a folder that can be written to")
    with unwritable, alone(tmp_path / "file" / "out"):
        pass


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        run(Subject(), [section("A")], working_folder(tmp_path / "file" / "out", "1" * 64))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stopped_in_a_section_it_goes_on_after_the_last_one_with_the_same_bytes(tmp_path: Path, number: int) -> None:
    def start(out: Path, log: Path, ready: Connection | None = None) -> Callable[[], int | None]:
        process = CONTEXT.Process(target=audit, args=(out, log, ready))
        process.start()

        def end() -> int | None:
            process.join()
            return process.exitcode

        return end

    whole, stopped = tmp_path / "a" / "out", tmp_path / "b" / "out"
    assert start(whole, tmp_path / "whole")() == 0
    receiver, sender = CONTEXT.Pipe(duplex=False)
    end = start(stopped, tmp_path / "stopped", sender)
    os.kill(receiver.recv(), number)
    assert end() not in (0, None)
    assert not stopped.exists()
    assert start(stopped, tmp_path / "stopped")() == 0
    assert (tmp_path / "stopped").read_text() == "ABCCD"
    names = sorted(path.name for path in whole.iterdir())
    assert names == ["audit.json", "audit.npz", "report.html"]
    assert all((whole / name).read_bytes() == (stopped / name).read_bytes() for name in names)


def test_the_line_of_an_error_is_one_line() -> None:
    assert runs._line(ValueError("a\n b")) == "a b"
    assert runs._line(ValueError()) == "ValueError: "


def test_sections_are_what_the_registry_holds() -> None:
    assert isinstance(section("A"), Section)
