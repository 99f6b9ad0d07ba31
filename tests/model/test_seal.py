"""A sealed checkpoint loads as it was sealed or not at all: every field, tensor and file is changed once."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from plga.collapse.seal import seal
from plga.model.checkpoint import load_model, load_released, save_model, save_pth
from plga.model.modeling import PldrForCausalLM
from plga.model.released_models import PldrllmForCausalLM
from plga.model.seal import SEAL, TRUST, SealPolicy, check_seal, default_policy, read_policy, remember_serial
from plga.model.signing import create_keys, read_private_key, read_public_key, render, sign
from plga.model.tokenizer import load_tokenizer
from plga.training.data.tokenizer import train_tokenizer
from tests.model.conftest import constant, tiny
from tests.training import runs

TENSORS = sorted(constant().state_dict())
LOADERS = (load_model, PldrForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        create_keys(folder / f"{name}.pem")
    return folder


@pytest.fixture(scope="module")
def ours(keys: Path) -> str:
    return read_public_key(keys / "ours.pub")


@pytest.fixture(scope="module")
def original(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed checkpoint with a tokenizer and a report. Not to be written to."""
    folder = tmp_path_factory.mktemp("sealed") / "model"
    save_model(constant(torch.float32, vocab_size=300), folder, tokenizer=train_tokenizer(runs.texts(), 300, 24))
    (folder / "collapse_report.json").write_text('{"fidelity": {"agreement": 1.0}, "verdict": "collapsed"}')
    calibration = folder.parent / "calibration.txt"
    calibration.write_text("some text")
    seal(folder, keys / "ours.pem", calibration=[calibration])
    return folder


@pytest.fixture
def sealed(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def refused(sealed: Path, message: str, policy: SealPolicy | None = None) -> None:
    """Every way to load says the same, in one line."""
    for load in LOADERS:
        with pytest.raises((ValueError, OSError), match=message) as error:
            load(sealed, seal=policy)
        assert "\n" not in str(error.value)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all leaves of a JSON value; an empty object or list is one."""
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def flipped(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return ("b" if value[:1] == "a" else "a") + value[1:]
    return {None: 0}.get(value) if value is None else [value]


def changed(text: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """A JSON value with one leaf after the other changed."""
    for path in leaves(json.loads(text)):
        value = json.loads(text)
        place = value
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = flipped(place[path[-1]])
        yield path, value


def resign(sealed: Path, key: Path, **changes: Any) -> None:
    """Sign a manifest with some fields changed, as the holder of a key can."""
    manifest = json.loads((sealed / SEAL).read_text())
    unsigned = {name: value for name, value in manifest.items() if name not in ("public_key", "signature")}
    unsigned |= changes
    kept = {name: value for name, value in unsigned.items() if value is not ...}
    (sealed / SEAL).write_text(render(sign(kept, read_private_key(key))))


def test_what_was_sealed_loads(original: Path, ours: str) -> None:
    policy = SealPolicy((ours,), required=True, name="model", at_least=1)
    expected = load_file(original / "model.safetensors")
    for load in LOADERS:
        for seal_policy in (None, policy):
            state = load(original, seal=seal_policy).state_dict()
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[name], expected[name]) for name in expected)
    found = check_seal(original, policy)
    assert found is not None
    assert (found.name, found.public_key, found.tensors) == ("model", ours, len(TENSORS))
    assert found.fidelity == {"agreement": 1.0}
    assert found.calibration.keys() == {"calibration.txt"}
    assert found.files.keys() == {path.name for path in original.iterdir()} - {SEAL}
    assert len(load_tokenizer(original)) == 300


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("place", [0, -1])
def test_one_byte_of_a_tensor(sealed: Path, name: str, place: int) -> None:
    file = sealed / "model.safetensors"
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    offsets = json.loads(content[8:start])[name]["data_offsets"]
    content[start + (offsets[0] if place == 0 else offsets[1] - 1)] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"model\.safetensors differs in {name}: not what was sealed"):
        check_seal(sealed)


def test_one_byte_of_the_operator_stops_every_loader(sealed: Path) -> None:
    file = sealed / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.self_attn.operator.curvature"
    content = file.read_bytes()
    entry = tensors[name].numpy().tobytes()
    assert content.count(entry) == 1
    file.write_bytes(content.replace(entry, entry[:-1] + bytes([entry[-1] ^ 1])))
    refused(sealed, f"model.safetensors differs in {name}: not what was sealed")


def test_every_byte_of_the_header_of_the_weights(sealed: Path) -> None:
    file = sealed / "model.safetensors"
    content = bytearray(file.read_bytes())
    for position in range(0, 8 + int.from_bytes(content[:8], "little"), 7):
        spoiled = bytearray(content)
        spoiled[position] ^= 1
        file.write_bytes(spoiled)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            check_seal(sealed)


def test_truncated_weights(sealed: Path) -> None:
    file = sealed / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    refused(sealed, r"model\.safetensors: truncated, or not a safetensors file")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "collapse_report.json", "tokenizer.json"])
def test_every_leaf_of_every_json_file(sealed: Path, name: str) -> None:
    file, count = sealed / name, 0
    for path, value in changed(file.read_text()):
        file.write_text(json.dumps(value))
        with pytest.raises(ValueError, match=f"{name} differs: not what was sealed"):
            load_model(sealed)
        count += 1
        assert path
        if count == 60:  # of the many pieces of the tokenizer
            break
    assert count > 1


def test_every_leaf_of_the_manifest(sealed: Path) -> None:
    count = 0
    for path, value in changed((sealed / SEAL).read_text()):
        (sealed / SEAL).write_text(render(value))
        with pytest.raises(ValueError, match=r"seal\.json: (the signature does not|format is|public_key is no)"):
            load_model(sealed)
        assert path
        count += 1
    assert count > 3 * len(TENSORS)


def test_every_field_of_the_manifest_removed_or_added(sealed: Path) -> None:
    manifest = json.loads((sealed / SEAL).read_text())
    for name in manifest:
        (sealed / SEAL).write_text(render({key: value for key, value in manifest.items() if key != name}))
        with pytest.raises(ValueError, match=r"seal\.json: "):
            check_seal(sealed)
    (sealed / SEAL).write_text(render({**manifest, "more": 1}))
    refused(sealed, r"seal\.json: the signature does not fit")


def test_any_byte_of_the_manifest(sealed: Path) -> None:
    content = (sealed / SEAL).read_bytes()
    for position in range(0, len(content), 37):
        (sealed / SEAL).write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(ValueError, match=r"seal\.json: "):
            check_seal(sealed)


def test_a_manifest_that_is_huge_or_no_json(sealed: Path) -> None:
    text = (sealed / SEAL).read_text()
    os.truncate(sealed / SEAL, (64 << 20) + 1)
    refused(sealed, r"seal\.json: 67,108,865 bytes, expected at most 67,108,864")
    (sealed / SEAL).write_text(text.replace("{", '{\n "serial": 9,', 1))
    refused(sealed, r"seal\.json: .*the key 'serial' twice")
    (sealed / SEAL).write_text(text.replace("\n", "\r\n"))
    refused(sealed, r"seal\.json: its text was changed")
    (sealed / SEAL).write_bytes(text.encode() + "é".encode())
    refused(sealed, r"seal\.json: its text was changed, expected ASCII")
    (sealed / SEAL).write_text(text[:-100])
    refused(sealed, r"seal\.json: truncated")


def test_every_file_removed(original: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in original.iterdir() if path.name not in (SEAL, "config.json"))
    for index, name in enumerate(names):
        copy = Path(shutil.copytree(original, tmp_path / str(index)))
        (copy / name).unlink()
        refused(copy, f"{name} is missing: not what was sealed")
    copy = Path(shutil.copytree(original, tmp_path / "config"))
    (copy / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json is missing: not what was sealed"):
        load_model(copy)


@pytest.mark.parametrize(
    "name", ["adapter_config.json", "model-2.safetensors", "model.safetensors.index.json", ".hidden", "modeling.py"]
)
def test_a_file_added(sealed: Path, name: str) -> None:
    if name.endswith(".safetensors"):
        shutil.copy(sealed / "model.safetensors", sealed / name)
    else:
        (sealed / name).write_text("{}")
    refused(sealed, f"{name} is not in the seal: not what was sealed")


def test_links_and_folders(sealed: Path, tmp_path: Path) -> None:
    (sealed / "folder").mkdir()
    refused(sealed, "folder: a folder, expected only files in a sealed directory")
    (sealed / "folder").rmdir()
    for name in ("model.safetensors", SEAL, "generation_config.json"):
        (sealed / name).rename(tmp_path / name)
        (sealed / name).symlink_to(tmp_path / name)
        refused(sealed, f"{name}: a symbolic link, expected only files in a sealed directory")
        (sealed / name).unlink()
        (tmp_path / name).rename(sealed / name)
    (tmp_path / "link").symlink_to(sealed)  # of the whole directory: what it is now is looked at
    load_model(tmp_path / "link")


def test_the_seal_of_another_model(sealed: Path, keys: Path, ours: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_model(constant(torch.float32, seed=1, vocab_size=300), other, tokenizer=train_tokenizer(runs.texts(), 300, 24))
    (other / "collapse_report.json").write_bytes((sealed / "collapse_report.json").read_bytes())
    seal(other, keys / "ours.pem")
    refused(other, "name is 'other', expected 'model': the seal of another model", SealPolicy(name="model"))
    shutil.copy(other / SEAL, sealed / SEAL)
    refused(sealed, rf"model\.safetensors differs in lm_head\.bias and {len(TENSORS) - 1} more tensors")


def test_a_forged_seal(sealed: Path, keys: Path, ours: str) -> None:
    """Without a trusted key anybody can seal anew what he has changed; with one, he cannot."""
    (sealed / "config.json").write_text((sealed / "config.json").read_text() + "\n")
    seal(sealed, keys / "theirs.pem", overwrite=True)
    load_model(sealed)
    load_model(sealed, seal=SealPolicy(required=True))
    refused(sealed, "public_key is [0-9a-f]{64}, expected one that is trusted", SealPolicy((ours,)))


def test_a_removed_seal(sealed: Path, ours: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (sealed / SEAL).unlink()
    for load in LOADERS:
        load(sealed)
    for policy in (SealPolicy(required=True), SealPolicy((ours,))):
        refused(sealed, r"model: no seal\.json, but a seal is required", policy)
    (tmp_path / "trust.json").write_text('{"required": true}')
    monkeypatch.setenv(TRUST, str(tmp_path / "trust.json"))
    refused(sealed, r"model: no seal\.json, but a seal is required")
    with pytest.raises(FileNotFoundError, match=r"organization/model: no seal\.json"):  # a name on the hub
        PldrForCausalLM.from_pretrained("organization/model")
    save_pth(constant(), tmp_path / "model.pth")
    with pytest.raises(FileNotFoundError, match=r"model\.pth: no seal\.json"):
        load_model(tmp_path / "model.pth")


def test_an_older_seal(sealed: Path, keys: Path, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = Path(shutil.copytree(sealed, tmp_path / "older"))
    (sealed / "generation_config.json").write_text((sealed / "generation_config.json").read_text() + "\n")
    newer = seal(sealed, keys / "ours.pem", overwrite=True)
    trust = tmp_path / "trust.json"
    trust.write_text(json.dumps({"public_keys": [ours]}))
    monkeypatch.setenv(TRUST, str(trust))
    load_model(older)
    remember_serial(trust, newer)
    assert default_policy() == SealPolicy((ours,), newest={"model": newer.serial})
    load_model(sealed)
    refused(older, rf"seal\.json: serial is \d+, expected at least {newer.serial}: an older seal of model")
    refused(older, "an older seal of model", SealPolicy(at_least=newer.serial))
    # A seal that is older is not remembered in its place.
    found = check_seal(older, SealPolicy())
    assert found is not None and found.serial < newer.serial
    remember_serial(trust, found)
    assert read_policy(trust).newest == {"model": newer.serial}


REMEMBERING = """
import sys
from pathlib import Path
from plga.model.seal import Seal, remember_serial
for serial in range(1, 31):
    remember_serial(Path(sys.argv[1]), Seal(sys.argv[2], serial, "", {}, {}, None))
"""


def test_processes_that_remember_at_once_all_do(tmp_path: Path) -> None:
    trust = tmp_path / "trust.json"
    trust.write_text('{"required": true}')
    names = ["a", "b", "c", "d"]
    started = [subprocess.Popen([sys.executable, "-c", REMEMBERING, trust, name]) for name in names]
    assert [process.wait() for process in started] == [0] * len(names)
    assert read_policy(trust) == SealPolicy(required=True, newest=dict.fromkeys(names, 30))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "plga prefix 1"}, "format is 'plga prefix 1', expected 'plga seal 1'"),
        ({"serial": "9"}, 'serial is "9", expected int'),
        ({"serial": True}, "serial is true, expected int"),
        ({"name": None}, "name is null, expected str"),
        ({"files": []}, r"files is \[\], expected dict"),
        ({"files": {"config.json": 3}}, "files holds something else than an object a file"),
        ({"calibration": 1}, "calibration is 1, expected dict"),
        ({"fidelity": ...}, "differs in the field fidelity"),
        ({"more": 1}, "differs in the field more"),
        ({"files": {}}, "model: collapse_report.json is not in the seal"),
        ({"files": {"model.safetensors": {"tensors": 3}}}, "model: collapse_report.json is not in the seal"),
    ],
)
def test_a_signed_manifest_of_another_form(sealed: Path, keys: Path, changes: Any, message: str) -> None:
    resign(sealed, keys / "ours.pem", **changes)
    refused(sealed, message)


def test_the_published_format(keys: Path, tmp_path: Path) -> None:
    save_model(PldrllmForCausalLM.from_plga(constant(torch.float32)), tmp_path / "published")
    seal(tmp_path / "published", keys / "ours.pem")
    loaders: tuple[Callable[..., Any], ...] = (load_released, PldrllmForCausalLM.from_pretrained)
    for load in (*loaders, *LOADERS[::2]):
        load(tmp_path / "published", seal=SealPolicy(required=True))
    (tmp_path / "published" / "generation_config.json").unlink()
    for load in (*loaders, *LOADERS[::2]):
        with pytest.raises(ValueError, match=r"generation_config\.json is missing: not what was sealed"):
            load(tmp_path / "published")


def test_a_learned_operator_can_be_sealed_too(keys: Path, tmp_path: Path) -> None:
    save_model(tiny(torch.float32), tmp_path / "learned")
    seal(tmp_path / "learned", keys / "ours.pem")
    load_model(tmp_path / "learned", seal=SealPolicy(required=True))


def test_a_sealed_folder_inside_another(sealed: Path, tmp_path: Path) -> None:
    load_model(sealed)
    assert type(PldrForCausalLM.from_pretrained(tmp_path, subfolder="model")) is PldrForCausalLM
    (sealed / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=r"generation_config\.json is missing"):
        PldrForCausalLM.from_pretrained(tmp_path, subfolder="model")
    with pytest.raises(ValueError, match=r"generation_config\.json is missing"):
        PldrForCausalLM.from_pretrained(pretrained_model_name_or_path=sealed)


def test_a_tokenizer_is_read_as_it_was_sealed(sealed: Path, ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trust = sealed.parent / "trust.json"
    trust.write_text('{"public_keys": ["' + "0" * 64 + '"]}')
    monkeypatch.setenv(TRUST, str(trust))
    with pytest.raises(ValueError, match="expected one that is trusted"):
        load_tokenizer(sealed)
    trust.write_text(json.dumps({"public_keys": [ours]}))
    load_tokenizer(sealed)
    (sealed / "tokenizer.json").write_text((sealed / "tokenizer.json").read_text() + " ")
    with pytest.raises(ValueError, match=r"tokenizer\.json differs: not what was sealed"):
        load_tokenizer(sealed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected a JSON object"),
        ('{"key": 1}', "key is unknown, expected public_keys, required and newest"),
        ('{"public_keys": "00"}', "public_keys is '00', expected a list of strings"),
        ('{"public_keys": [1]}', r"public_keys is \[1\], expected a list of strings"),
        ('{"public_keys": ["00"]}', "public_keys holds '00', expected 64 hexadecimal digits"),
        ('{"required": 0}', "required is 0, expected true or false"),
        ('{"newest": {"a": "1"}}', "expected serial numbers by name of a model"),
        ('{"newest": null}', "expected serial numbers by name of a model"),
    ],
)
def test_a_policy_that_says_something_else(
    original: Path, tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trust.json").write_text(text)
    monkeypatch.setenv(TRUST, str(tmp_path / "trust.json"))
    for load in LOADERS:
        with pytest.raises(ValueError, match=rf"trust\.json: .*{message}"):
            load(original)


def test_a_policy_that_is_missing_lets_nothing_through(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, "/nowhere/trust.json")
    for load in LOADERS:
        with pytest.raises(FileNotFoundError, match="PLGA_TRUST names it"):
            load(original)
