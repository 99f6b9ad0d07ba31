"""The .npz of an audit: its bytes, its names, and what is no such file."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from plga.audit.arrays import pack, read_arrays, unpack, write_arrays
from tests.audit.tiny import Numbers

ARRAYS = {
    "A.values": np.arange(6, dtype=np.float32).reshape(2, 3),
    "A.scale": np.array(2.0),
    "B.values": np.array([], dtype=np.int64),
    "B.flag": np.array([True, False]),
}


def test_the_same_arrays_are_the_same_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(tmp_path / "one.npz", ARRAYS)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e6)
    write_arrays(tmp_path / "two.npz", {name: np.array(array, order="F") for name, array in ARRAYS.items()})
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_numpy_reads_it(tmp_path: Path) -> None:
    write_arrays(tmp_path / "one.npz", ARRAYS)
    with np.load(tmp_path / "one.npz") as archive:
        found = dict(archive)
    assert list(found) == list(ARRAYS)
    for name, array in read_arrays(tmp_path / "one.npz").items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert np.array_equal(array, ARRAYS[name]) and np.array_equal(found[name], array)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello"])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "one.npz"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"one\.npz: truncated, or not an archive of arrays"):
        read_arrays(file)


def test_a_truncated_one_and_one_with_a_pickle(tmp_path: Path) -> None:
    write_arrays(tmp_path / "one.npz", ARRAYS)
    whole = (tmp_path / "one.npz").read_bytes()
    (tmp_path / "one.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "two.npz", a=np.array([{}], dtype=object))
    for name in ("one.npz", "two.npz"):
        with pytest.raises(ValueError, match="truncated, or not an archive of arrays"):
            read_arrays(tmp_path / name)
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(tmp_path / "three.npz", {"a": np.array([{}], dtype=object)})


def test_a_dataclass_goes_in_and_comes_out() -> None:
    raw = Numbers(np.arange(3.0), np.array(2.0))
    arrays = pack("D2", raw)
    assert list(arrays) == ["D2.values", "D2.scale"]
    again = unpack("D2", Numbers, arrays | pack("D", raw))
    assert np.array_equal(again.values, raw.values) and again.scale == 2
    del arrays["D2.scale"]
    with pytest.raises(ValueError, match=r"section D2: the array D2\.scale is missing"):
        unpack("D2", Numbers, arrays)

    @dataclass(frozen=True)
    class Fewer:
        values: np.ndarray

    with pytest.raises(ValueError, match=r"section D2: the array D2\.scale is not one of this section"):
        unpack("D2", Fewer, pack("D2", raw))
