"""Sealing: what goes into a manifest, and what cannot be sealed."""

import hashlib
import json
import time
from pathlib import Path

import pytest
import torch

from plga.collapse.seal import seal
from plga.model.checkpoint import save_model
from plga.model.seal import SEAL, check_seal
from plga.model.signing import create_keys, read_public_key
from tests.model.conftest import constant


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "key.pem"
    create_keys(file)
    return file


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_model(constant(torch.float32), tmp_path / "model")
    return tmp_path / "model"


def test_a_manifest(checkpoint: Path, key: Path, tmp_path: Path) -> None:
    (checkpoint / "collapse_report.json").write_text('{"fidelity": {"agreement": 0.5, "worst": 1e-07}}')
    (tmp_path / "text.txt").write_text("calibration")
    before = time.time_ns() // 1_000_000
    sealed = seal(checkpoint, key, calibration=[tmp_path / "text.txt"])
    manifest = json.loads((checkpoint / SEAL).read_text())
    assert before <= sealed.serial <= time.time_ns() // 1_000_000
    assert manifest["name"] == "model"
    assert manifest["fidelity"] == {"agreement": 0.5, "worst": 1e-07}
    assert manifest["calibration"] == {"text.txt": hashlib.sha256(b"calibration").hexdigest()}
    assert manifest["public_key"] == read_public_key(key.with_suffix(".pub"))
    content = (checkpoint / "config.json").read_bytes()
    assert manifest["files"]["config.json"] == {"sha256": hashlib.sha256(content).hexdigest()}
    tensor = constant(torch.float32).state_dict()["model.layers.1.self_attn.operator.curvature"]
    assert manifest["files"]["model.safetensors"]["tensors"]["model.layers.1.self_attn.operator.curvature"] == {
        "dtype": "F32",
        "shape": [2, 4, 4],
        "sha256": hashlib.sha256(tensor.numpy().tobytes()).hexdigest(),
    }
    assert sorted(path.name for path in checkpoint.iterdir()) == sorted([*manifest["files"], SEAL])


@pytest.mark.parametrize(
    ("report", "figures"),
    [
        ({}, None),
        ({"fidelity": [1]}, [1]),
        ({"written": {"fidelity": {"float32": 0.5}}, "frozen": {"fidelity": {}}}, {"float32": 0.5}),
        ({"written": "no"}, None),
    ],
)
def test_the_fidelity_of_the_operator_that_was_written(
    checkpoint: Path, key: Path, report: object, figures: object
) -> None:
    (checkpoint / "collapse_report.json").write_text(json.dumps(report))
    assert seal(checkpoint, key).fidelity == figures


def test_serial_numbers_rise_even_when_the_clock_falls(checkpoint: Path, key: Path) -> None:
    first = seal(checkpoint, key, name="another name")
    assert first.name == "another name"
    with pytest.raises(FileExistsError, match=r"seal\.json exists"):
        seal(checkpoint, key)
    manifest = json.loads((checkpoint / SEAL).read_text())
    (checkpoint / SEAL).write_text(json.dumps({**manifest, "serial": first.serial + 10**9}))
    assert seal(checkpoint, key, overwrite=True).serial == first.serial + 10**9 + 1


def test_what_cannot_be_sealed(checkpoint: Path, key: Path, tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="expected the directory of a checkpoint"):
        seal(tmp_path / "model.pth", key)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"config\.json: no such file"):
        seal(tmp_path / "empty", key)
    with pytest.raises(FileNotFoundError):
        seal(checkpoint, tmp_path / "absent.pem")
    with pytest.raises(ValueError, match=r"key\.pub: expected an unencrypted Ed25519"):
        seal(checkpoint, key.with_suffix(".pub"))
    with pytest.raises(ValueError, match=r"--calibration names key\.pem twice"):
        seal(checkpoint, key, calibration=[key, key])
    with pytest.raises(FileNotFoundError):
        seal(checkpoint, key, calibration=[tmp_path / "absent.txt"])
    (checkpoint / "collapse_report.json").write_text("[]")
    with pytest.raises(ValueError, match=r"collapse_report\.json: holds list"):
        seal(checkpoint, key)
    (checkpoint / "collapse_report.json").write_text('{"fidelity": {"worst": NaN}}')
    with pytest.raises(ValueError, match=r"collapse_report\.json: fidelity holds a number that is not finite"):
        seal(checkpoint, key)
    (checkpoint / "collapse_report.json").unlink()
    (checkpoint / "folder").mkdir()
    with pytest.raises(ValueError, match="folder: a folder, expected only files"):
        seal(checkpoint, key)
    (checkpoint / "folder").rmdir()
    assert not (checkpoint / SEAL).exists()
    assert check_seal(checkpoint) is None


def test_a_link_in_the_place_of_the_seal_is_not_written_through(checkpoint: Path, key: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (checkpoint / SEAL).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match=r"seal\.json: a symbolic link"):
        seal(checkpoint, key, overwrite=True)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "a\nplga: as sealed", "\x1b[31m", "\udcff"])
def test_a_name_that_nobody_can_read_is_refused(tmp_path: Path, name: str) -> None:
    save_model(constant(), tmp_path / "c")
    create_keys(tmp_path / "k.pem")
    with pytest.raises(ValueError, match=r"--name is .*, expected printable text"):
        seal(tmp_path / "c", tmp_path / "k.pem", name)
    assert not (tmp_path / "c" / "seal.json").exists()


def test_a_missing_calibration_file_is_named(tmp_path: Path) -> None:
    save_model(constant(), tmp_path / "c")
    create_keys(tmp_path / "k.pem")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        seal(tmp_path / "c", tmp_path / "k.pem", calibration=[tmp_path / "nowhere.txt"])
