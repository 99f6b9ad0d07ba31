"""``plga seal`` and ``plga verify``, and what other commands make of a seal."""

import json
import shutil
from pathlib import Path

import pytest

from plga.model.seal import TRUST
from plga.model.signing import create_keys, read_public_key
from tests.cli.runner import Ending, fresh, plga


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "key.pem"
    create_keys(file)
    return file


@pytest.fixture
def sealed(frozen: Path, key: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(frozen, tmp_path / "model"))
    (tmp_path / "text.txt").write_text("calibration")
    ending = plga("seal", folder, "--key", key, "--calibration", tmp_path / "text.txt", "--calibration", __file__)
    assert ending.code == 0, ending
    assert f"wrote {folder / 'seal.json'}" in ending.out
    assert "name: model, serial: " in ending.out
    assert "tensors in 1 files, and 4 other files" in ending.out
    assert "calibration: text.txt, SHA-256 " in ending.out
    assert "calibration: test_seal.py, SHA-256 " in ending.out
    return folder


def test_seal_and_verify(sealed: Path, key: Path) -> None:
    public = key.with_suffix(".pub")
    ending = plga("verify", sealed, "--public-key", public, "--name", "model", "--at-least", "1")
    assert ending.code == 0, ending
    assert f"{sealed}: as sealed" in ending.out
    assert f"signed by: {read_public_key(public)}" in ending.out
    assert "excludes accidents" not in ending.out
    assert "this excludes accidents, not forgery" in plga("verify", sealed).out
    assert "expected 'other'" in plga("verify", sealed, "--name", "other").error()
    assert "an older seal of model" in plga("verify", sealed, "--at-least", 10**15).error()
    assert "seal.json exists" in plga("seal", sealed, "--key", key).error()
    assert plga("seal", sealed, "--key", key, "--overwrite").code == 0


def test_other_commands_refuse_what_differs(sealed: Path) -> None:
    arguments = (("info", sealed), ("generate", sealed, "--prompt", "a", "--max-new-tokens", "1"))
    for command in arguments:
        assert plga(*command).code == 0
    (sealed / "generation_config.json").write_text("{}")
    for command in (*arguments, ("verify", sealed), ("convert", sealed, sealed.parent / "other")):
        assert plga(*command).error() == f"{sealed}: generation_config.json differs: not what was sealed"
    assert not (sealed.parent / "other").exists()


def under_policy(*arguments: object) -> Ending:
    """Run a command in an interpreter that has the environment of this one, which the server of ``plga`` has not."""
    process = fresh(*arguments)
    out, err = process.communicate()
    return Ending(process.returncode, out, err)


def test_a_policy(sealed: Path, frozen: Path, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PLGA_TRUST names no file" in plga("verify", sealed, "--remember").error()
    trust = tmp_path / "trust.json"
    monkeypatch.setenv(TRUST, str(trust))
    trust.write_text("{}")
    assert "--remember is given without a trusted key" in under_policy("verify", sealed, "--remember").error()
    trust.write_text(json.dumps({"public_keys": [read_public_key(key.with_suffix(".pub"))]}))
    older = Path(shutil.copytree(sealed, tmp_path / "older"))
    assert plga("seal", sealed, "--key", key, "--overwrite").code == 0
    ending = under_policy("verify", sealed, "--remember")
    assert "older seals of model are refused from now on" in ending.out, ending
    assert "an older seal of model" in under_policy("info", older).error()
    assert f"{frozen}: no seal.json, but a seal is required" in under_policy("info", frozen).error()


def test_what_is_not_sealed(frozen: Path, tmp_path: Path, key: Path) -> None:
    assert f"{frozen}: no seal.json, but a seal is required" in plga("verify", frozen).error()
    assert "expected the directory of a checkpoint" in plga("seal", tmp_path / "absent", "--key", key).error()
    assert "absent.pem" in plga("seal", frozen, "--key", tmp_path / "absent.pem").error()
    assert not (frozen / "seal.json").exists()


def test_a_full_disk(frozen: Path, key: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(frozen, tmp_path / "model"))
    assert "File too large" in plga("seal", folder, "--key", key, file_limit=1000).error()
    assert {path.name for path in folder.iterdir()} == {path.name for path in frozen.iterdir()}
