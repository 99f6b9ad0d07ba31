"""SHA-256 of files and tensors: every byte counts, and what is no safetensors file is refused."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plga.model.digests import difference, digest_directory, digest_file, digest_safetensors, digest_tensor

TENSORS = {
    "half": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "none": torch.zeros(0, 4),
    "scalar": torch.tensor(3.0),
    "truth": torch.tensor([True, False]),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "t.safetensors", {"who": "us"})
    return tmp_path / "t.safetensors"


def raw(header: object, content: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def test_a_tensor_on_disk_and_in_memory(file: Path) -> None:
    on_disk = digest_safetensors(file)["tensors"]
    in_memory = {name: digest_tensor(tensor) for name, tensor in TENSORS.items()}
    assert {name: entry["sha256"] for name, entry in on_disk.items()} == {
        name: entry["sha256"] for name, entry in in_memory.items()
    }
    assert on_disk["half"] == {"dtype": "BF16", "shape": [2, 3], "sha256": in_memory["half"]["sha256"]}
    assert in_memory["half"]["dtype"] == "bfloat16"
    assert in_memory["scalar"]["sha256"] == hashlib.sha256(b"\x00\x00\x40\x40").hexdigest()


def test_a_tensor_that_is_a_view() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    assert digest_tensor(tensor.T) == digest_tensor(tensor.T.clone(memory_format=torch.contiguous_format))
    assert digest_tensor(tensor[:, 1:]) != digest_tensor(tensor[:, :-1])


def test_every_byte_of_a_safetensors_file_counts(file: Path) -> None:
    before, content = digest_safetensors(file), file.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        file.write_bytes(changed)
        try:
            after = digest_safetensors(file)
        except ValueError as error:
            assert str(file) in str(error)
        else:
            assert after != before, position


def test_every_truncation_is_refused(file: Path) -> None:
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"t\.safetensors: truncated, or not a safetensors file"):
            digest_safetensors(file)
    file.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match="1 bytes belong to no tensor"):
        digest_safetensors(file)


@pytest.mark.parametrize(
    "content",
    [
        raw([]),
        raw(3),
        raw({"a": 1}),
        raw({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}, b"1234"),
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0.0, 4.5]}}, b"1234"),
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"123"),
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}}, b"12345"),
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, -4]}}, b""),
        raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 60]}}, b"1234"),
        raw(b"[" * 100_000),
        raw(b"\xff"),
        (1 << 63).to_bytes(8, "little"),
    ],
)
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.safetensors: truncated, or not a safetensors file"):
        digest_safetensors(tmp_path / "t.safetensors")


def test_a_directory_holds_files_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "left out").symlink_to("a")
    assert digest_directory(tmp_path, "left out") == {"a": digest_file(tmp_path / "a")}
    assert digest_file(tmp_path / "a") == {"sha256": hashlib.sha256(b"a").hexdigest()}
    for make, kind in (
        (lambda path: path.symlink_to("a"), "a symbolic link"),
        (lambda path: path.symlink_to("nowhere"), "a symbolic link"),
        (Path.mkdir, "a folder"),
        (os.mkfifo, "a special file"),
    ):
        make(tmp_path / "b")
        with pytest.raises(ValueError, match=f"b: {kind}, expected only files"):
            digest_directory(tmp_path, "left out")
        (tmp_path / "b").rmdir() if kind == "a folder" else (tmp_path / "b").unlink()


def test_a_difference_is_named() -> None:
    a, b = {"sha256": "a"}, {"sha256": "b"}
    assert difference({"x": a}, {"x": a}) is None
    assert difference({"x": a}, {}) == "x is missing"
    assert difference({}, {"x": a}) == "x is not in the seal"
    assert difference({"x": a}, {"x": b}) == "x differs"
    assert difference({"x": {"header": "1", "tensors": {"t": a}}}, {"x": {"header": "2", "tensors": {"t": a}}}) == (
        "x differs in its header"
    )
    tensors = {"header": "1", "tensors": {"t": a, "u": a}}
    assert difference({"x": tensors}, {"x": {"header": "1", "tensors": {"t": a, "u": b}}}) == "x differs in u"
    assert (
        difference({"x": tensors}, {"x": {"header": "2", "tensors": {"v": b}}}) == "x differs in t and 2 more tensors"
    )
    assert difference({"x": tensors}, {"x": a}) == "x differs"
