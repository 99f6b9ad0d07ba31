"""A new file appears whole, or not at all, and takes nobody else's place."""

import errno
import os
from pathlib import Path

import pytest

from plga.model.atomic import new_file


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
