"""A new file or directory appears whole, or not at all, and takes nobody else's place."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plga.model import atomic
from plga.model.atomic import check_new_directory, new_directory, new_file

# Replaces the directory argv[1] for ever, each time by files that say the same number.
REPLACING = """
import itertools, json, sys
from pathlib import Path
from plga.model.atomic import new_directory
for number in itertools.count():
    with new_directory(Path(sys.argv[1]), overwrite=True) as folder:
        (folder / "config.json").write_text(json.dumps({"model_type": "pldr", "number": number}))
        (folder / "weights").write_text(str(number))
    print(number, flush=True)
"""


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_file_that_appears_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    target = tmp_path / "f"
    with pytest.raises(FileExistsError, match="f exists, expected a new file, or --overwrite"):  # noqa: SIM117
        with new_file(target, overwrite=False) as temporary:
            temporary.write_text("ours")
            target.write_text("theirs")
    assert target.read_text() == "theirs" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    for text, overwrite in (("first", False), ("second", True)):
        with new_file(tmp_path / "f", overwrite) as temporary:
            temporary.write_text(text)
        assert (tmp_path / "f").read_text() == text and list(tmp_path.iterdir()) == [tmp_path / "f"]


def _no_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def checkpoint(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "pldr"}')
    (folder / "weights").write_text(text)


def test_a_reader_finds_one_or_the_other_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    checkpoint(target, "first")
    for reads in (1, 3, 9, 27, 81, 243):
        process = subprocess.Popen([sys.executable, "-c", REPLACING, target], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        for _ in range(reads):
            assert (target / "weights").read_text().isdigit()  # never missing, never half
        process.kill()
        process.communicate()
        # Of one and the same writing.
        assert (target / "config.json").read_text().endswith(f"{(target / 'weights').read_text()}}}")
    for left in set(tmp_path.iterdir()) - {target}:
        assert left.name.startswith(".target.") and left.name.endswith(".tmp")


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "no exchange"])
def test_a_directory_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:
        monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)
    target = tmp_path / "target"
    checkpoint(target, "old")
    with new_directory(target, overwrite=True) as folder:
        checkpoint(folder, "new")
    assert (target / "weights").read_text() == "new" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_directory_that_appears_meanwhile(tmp_path: Path, overwrite: bool) -> None:
    """Two runs into one place: of two that may replace, the later one stays; else the earlier one."""
    target = tmp_path / "target"
    try:
        with new_directory(target, overwrite) as folder:
            checkpoint(folder, "ours")
            checkpoint(target, "theirs")
    except FileExistsError as error:
        assert str(error) == f"{target} exists, expected a new or empty directory, or --overwrite"
    assert (target / "weights").read_text() == ("ours" if overwrite else "theirs")
    with pytest.raises(FileExistsError, match="is not a checkpoint"):  # noqa: SIM117
        with new_directory(target, overwrite=True) as folder:
            checkpoint(folder, "ours")
            shutil.rmtree(target)
            target.mkdir()
            (target / "thesis.tex").write_text("theirs")
    assert (target / "thesis.tex").read_text() == "theirs" and list(tmp_path.iterdir()) == [target]


def test_the_umask_says_who_may_read(tmp_path: Path) -> None:
    """Not the library that writes the weights, which lets nobody but their owner."""
    before = os.umask(0o022)
    try:
        with new_directory(tmp_path / "d", overwrite=False) as folder:
            (folder / "weights").touch(0o600)
        with new_file(tmp_path / "f", overwrite=False) as file:
            file.touch(0o600)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "d" / "weights", tmp_path / "f")} == {0o644}


def test_the_root_of_the_file_system_is_no_new_directory() -> None:
    with pytest.raises(FileExistsError, match=r"^/ exists, expected a new or empty directory, or --overwrite$"):
        check_new_directory(Path("/"), overwrite=False)
    with pytest.raises(FileExistsError, match=r"^/ exists and is not an audit alone, so it is not overwritten$"):
        check_new_directory(Path("/"), overwrite=True, kind="an audit")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # root may write anywhere
    for target in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(
            PermissionError, match=f"{tmp_path} cannot be written to, expected a folder for {target.name}"
        ):
            check_new_directory(target, overwrite=False)
