"""Settings from YAML and the command line: what is wrong is named with its value and what is allowed."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from plga.training.settings import Settings, overridden, read_yaml


class Inner(Settings):
    rate: float = Field(1e-3, gt=0)
    kind: Literal["a", "b"] = "a"


class Outer(Settings):
    inner: Inner = Inner()
    count: int = 3
    name: str = "plain"
    folder: Path = Path("here")


def test_values_by_name() -> None:
    settings = Outer.checked({"inner": {"kind": "b"}, "count": 4}, "file.yaml")
    assert settings == Outer(inner=Inner(kind="b"), count=4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("inner.rate=-1", "file.yaml: inner.rate is -1, expected greater than 0"),
        ("inner.rate=.nan", "file.yaml: inner.rate is nan, expected a finite number"),
        ("inner.kind=c", "file.yaml: inner.kind is 'c', expected 'a' or 'b'"),
        ("inner.knd=a", "file.yaml: inner.knd is not a setting, expected one of rate, kind"),
        ("other=1", "file.yaml: other is not a setting, expected one of inner, count, name, folder"),
        ("count=2.5", "file.yaml: count is 2.5, expected a valid integer, got a number with a fractional part"),
        ("count=x", "file.yaml: count is 'x', expected a valid integer, unable to parse string as an integer"),
        ("count=true", "file.yaml: count is True, expected no truth value"),
        ("inner.rate=yes", "file.yaml: inner.rate is 'yes', expected a valid number, unable to parse"),
        ("inner.rate=1e39", "file.yaml: inner.rate is 1e+39, expected a number up to 3.4e+38 in magnitude"),
        ("count=-9223372036854775809", "file.yaml: count is -9223372036854775809, expected a number up to 9.2e+18"),
        ("count=1:30", "file.yaml: count is '1:30', expected a valid integer"),
        ("inner=", "file.yaml: inner is None, expected a section with settings by name"),
        ("name=2024", "file.yaml: name is 2024, expected text; a number is text in quotes"),
        ("folder=1e5", "file.yaml: folder is 100000.0, expected a path; one that reads as a number goes in quotes"),
    ],
)
def test_what_is_wrong_is_named(override: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Outer.checked(overridden({}, [override]), "file.yaml")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_every_wrong_key_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"inner\.rate is 0.*; count is 'x'"):
        Outer.checked({"inner": {"rate": 0}, "count": "x"}, "file.yaml")


def test_overrides() -> None:
    before = {"inner": {"rate": 1.0}, "count": 1}
    after = overridden(before, ["inner.rate=1e-2", "inner.kind=b", "count=2", "count=3", "new.deep.key=[1, x]"])
    assert after == {"inner": {"rate": 0.01, "kind": "b"}, "count": 3, "new": {"deep": {"key": [1, "x"]}}}
    assert before == {"inner": {"rate": 1.0}, "count": 1}


@pytest.mark.parametrize(
    "override",
    ["count", "=1", "inner..rate=1", "count.deep=1", "count=[1", "inner.=2", "count=!!bool x", "count={a: 1, a: 2}"],
)
def test_an_override_that_is_none_is_named(override: str) -> None:
    with pytest.raises(ValueError) as raised:
        overridden({"count": 1}, [override])
    assert str(raised.value).startswith(repr(override))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [b"[1, 2]", b"a: [", b"\xff\xfe\x00", b"1: 2", b"just text", b"- - -" * 3, b"count: 1\ncount: 2"]
)
def test_a_file_that_is_no_mapping_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.yaml"):
        read_yaml(file)


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "file.yaml") == {}
    with pytest.raises(FileNotFoundError, match=r"none\.yaml: no such file"):
        read_yaml(tmp_path / "none.yaml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read_yaml(tmp_path)


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("count: 1", encoding="utf-8-sig")
    assert read_yaml(tmp_path / "file.yaml") == {"count": 1}
