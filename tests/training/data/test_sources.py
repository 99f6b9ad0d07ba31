"""Files as people have them: what is read of them, and what is refused with one line."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from plga.training.data.files import find
from plga.training.data.lines import JsonLines, TextLines
from plga.training.data.parquet import ParquetRows
from plga.training.data.sources import open_source, read_texts
from tests.training.data import corpora
from tests.training.data.corpora import opened, write

ROWS = corpora.numbered([3, 5, 1, 9, 4, 4, 7, 2])


def read(kind: Any, path: str | list[str], column: str = "text") -> list[str]:
    source = open_source(kind, path, column)
    return [source.text(row.raw) for row in source.rows()]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),  # no newline at the end
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),  # a byte order mark
        (b"\xef\xbb\xbf\na\n", ["a"]),
        (b"\n\n a \n \t\r\n\nb\n\n", [" a ", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r\r\n", ["a\r"]),
        (b"a\x00b\n\x0c\n", ["a\x00b"]),
        ("é\u2028世\x85\x1d\n".encode(), ["é\u2028世\x85\x1d"]),  # what Python alone takes for the end of a line
    ],
)
def test_lines_of_a_text(tmp_path: Path, content: bytes, texts: list[str]) -> None:
    (tmp_path / "a").write_bytes(content)
    assert read("text", str(tmp_path / "a")) == texts


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_of_json(tmp_path: Path, ending: str, mark: str) -> None:
    lines = ['{"text": "a\\nb\\u00e9"}', '  {"x": [1], "text": ""}  ', '{"text": "c", "text": "d"}']
    (tmp_path / "a").write_text(mark + ending.join(lines), newline="")
    assert read("jsonl", str(tmp_path / "a")) == ["a\nbé", "", "d"]


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "hub"])
def test_from_any_row_on(tmp_path: Path, kind: Any) -> None:
    paths = write(tmp_path / "corpus", kind, ROWS)
    source = open_source(kind, paths if kind != "hub" else paths[0], "text")
    rows = list(source.rows())
    assert [source.text(row.raw) for row in rows] == corpora.texts(ROWS)
    if kind == "hub":
        assert [row.number for row in rows] == list(range(1, 9))
        assert {row.file for row in rows} == set(paths)
    else:
        assert [row.number for row in rows] == [1, 2, 3, 4] * 2
        assert [Path(row.file).name[0] for row in rows] == list("00001111")
    for index, row in enumerate(rows):
        rest = list(source.rows(json.loads(json.dumps(row.position))))
        for later, after in enumerate(rest):
            again = next(source.rows(json.loads(json.dumps(after.position))))  # from a row of a resumed reading
            expected = rows[index + later]
            assert (after.raw, after.file, after.number) == (expected.raw, expected.file, expected.number)
            assert (again.raw, again.file, again.number) == (expected.raw, expected.file, expected.number)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_row_groups_of_any_size(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plga.training.data.parquet._ROWS", 2)
    file = tmp_path / "a.parquet"
    texts = corpora.texts(ROWS)
    parquet.write_table(pyarrow.table({"text": texts}), file, row_group_size=size)
    source = ParquetRows([file], "text")
    rows = list(source.rows())
    assert [row.position for row in rows] == [[0, i // size, i % size] for i in range(8)]
    for index, row in enumerate(rows):
        assert [source.text(r.raw) for r in source.rows(row.position)] == texts[index:]
        assert [r.number for r in source.rows(row.position)] == list(range(index + 1, 9))


def test_a_later_row_group_is_read_without_those_before(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    parquet.write_table(
        pyarrow.table({"text": ["a" * 1000, "b"]}), file, row_group_size=1, compression="none", use_dictionary=False
    )
    content = file.read_bytes()
    source = ParquetRows([file], "text")
    position = list(source.rows())[1].position
    file.write_bytes(content.replace(b"a" * 1000, b"\xff" * 1000).replace(content[4:20], b"\xff" * 16))
    assert [source.text(row.raw) for row in source.rows(position)] == ["b"]
    with pytest.raises(ValueError, match=rf"{file}: row group 0: truncated or damaged"):
        list(source.rows())


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.binary(),
        pyarrow.large_binary(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ],
    ids=str,
)
def test_columns_of_text(tmp_path: Path, kind: pyarrow.DataType) -> None:
    texts = pyarrow.array(["a", "é", "", "a"])
    column = texts.dictionary_encode() if pyarrow.types.is_dictionary(kind) else texts.cast(kind)
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a")
    assert read("parquet", str(tmp_path / "a")) == ["a", "é", "", "a"]


def test_globs_in_the_order_of_names_and_paths_as_given(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "[x].txt", "below/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read("text", f"{tmp_path}/[ab].txt") == ["a.txt", "b.txt"]
    assert read("text", [f"{tmp_path}/b.txt", f"{tmp_path}/a.txt"]) == ["b.txt", "a.txt"]
    assert read("text", f"{tmp_path}/[x].txt") == ["[x].txt"]  # a file's own name is no glob
    assert read("text", f"{tmp_path}/**/c.txt") == ["below/c.txt"]


def halved(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def socket(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


HOSTILE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "missing": ("text", lambda f: f.unlink(), "no such file, and no file matches it"),
    "empty": ("jsonl", lambda f: f.write_bytes(b""), "empty, leave it out"),
    "a folder": ("text", lambda f: (f.unlink(), f.mkdir()), "a folder, expected a file or a glob such as"),
    "a pipe": ("text", socket, "a pipe or device, expected a file"),
    "gzip": ("jsonl", lambda f: f.write_bytes(b"\x1f\x8b\x08rest"), "compressed (gzip), decompress it"),
    "zstandard": ("jsonl", lambda f: f.write_bytes(b"\x28\xb5\x2f\xfdrest"), "compressed (zstandard), decompress it"),
    "bzip2": ("text", lambda f: f.write_bytes(b"BZh91AY"), "compressed (bzip2), decompress it"),
    "xz": ("text", lambda f: f.write_bytes(b"\xfd7zXZ\x00"), "compressed (xz), decompress it"),
    "half a parquet": ("parquet", halved, "truncated, or not parquet ("),
    "no parquet": ("parquet", lambda f: f.write_text("hello, world"), "truncated, or not parquet ("),
    "an empty parquet": ("parquet", lambda f: f.write_bytes(b""), "empty, leave it out"),
    "another column": ("parquet", lambda f: table(f, {"content": ["a"], "id": [1]}), "no column 'text' but 'content'"),
    "numbers": ("parquet", lambda f: table(f, {"text": [1]}), "column 'text' is int64, expected text"),
    "lists": ("parquet", lambda f: table(f, {"text": [["a"]]}), "column 'text' is list<"),
    "nothing": ("parquet", lambda f: table(f, {"text": [None]}), "column 'text' is null, expected text"),
}


def table(file: Path, columns: dict[str, Any]) -> None:
    parquet.write_table(pyarrow.table(columns), file)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_refused_before_anything_is_read(tmp_path: Path, tokenizer: Path, name: str) -> None:
    kind, spoil, message = HOSTILE[name]
    write(tmp_path, kind, ROWS)
    file = sorted(tmp_path.iterdir())[1]
    spoil(file)
    with pytest.raises((ValueError, OSError)) as error:
        opened([str(tmp_path / sorted(os.listdir(tmp_path))[0]), str(file)], tokenizer, kind)
    assert str(error.value).startswith(f"{file}: {message}")
    assert "\n" not in str(error.value)


def test_a_file_named_twice(tmp_path: Path) -> None:
    write(tmp_path, "text", ROWS)
    (tmp_path / "link").symlink_to(tmp_path / "0.txt")
    for paths in (f"{tmp_path}/*", [f"{tmp_path}/0.txt", f"{tmp_path}/*.txt"]):
        with pytest.raises(ValueError, match="named twice, expected each file once"):
            find(paths)


def test_a_file_that_goes_while_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, "text", ROWS)
    rows = open_source("text", f"{tmp_path}/*", "text").rows()
    next(rows)
    (tmp_path / "1.txt").unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path}/1.txt")):
        list(rows)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"path": "/nowhere"}, "/nowhere: Datasets cannot open it (Couldn't find any data file at /nowhere."),
        ({"split": "test"}, "Datasets cannot open it (Bad split: test. Available splits: ['train'])"),
        ({"name": "none"}, "Datasets cannot open it (BuilderConfig 'none' not found"),
        ({"column": "content"}, "no column 'content' but 'id', 'text'; set column"),
    ],
)
def test_a_dataset_that_cannot_be_streamed(
    tmp_path: Path, tokenizer: Path, choice: dict[str, Any], message: str
) -> None:
    (folder,) = write(tmp_path, "hub", ROWS)
    with pytest.raises(ValueError) as error:
        opened(choice.get("path", folder), tokenizer, "hub", **{k: v for k, v in choice.items() if k != "path"})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_dataset_that_breaks_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "b"}\n{"text": "c\n')
    source = open_source("hub", str(tmp_path), "text")
    with pytest.raises(ValueError, match=rf"{tmp_path}: row \d: Datasets cannot read it \(") as error:
        list(source.rows())
    assert "\n" not in str(error.value)


def test_digests_tell_files_apart(tmp_path: Path) -> None:
    def source(**content: bytes) -> str:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        for name, data in content.items():
            (tmp_path / name).write_bytes(data)
        return JsonLines([tmp_path / name for name in content], "text").digest()

    long = b"x" * 200_000
    digests = [
        source(a=b"x"),
        source(b=b"x"),
        source(a=b"y"),
        source(a=b"x\n"),
        source(a=b"x", b=b"y"),
        source(b=b"y", a=b"x"),
        source(a=long),
        source(a=b"y" + long[1:]),
        source(a=long[1:] + b"y"),
    ]
    assert len(set(digests)) == len(digests)
    first = source(a=b"x")
    elsewhere = tmp_path / "folder"
    elsewhere.mkdir()
    (elsewhere / "a").write_bytes(b"x")
    assert TextLines([elsewhere / "a"]).digest() == first  # a corpus may move


def test_all_texts_of_files_of_several_kinds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "jsonl", ROWS[:3], files=1)
    write(tmp_path, "parquet", ROWS[3:6], files=1)
    write(tmp_path, "text", [ROWS[6]], files=1)
    assert list(read_texts([f"{tmp_path}/*"], "text", 0)) == corpora.texts(ROWS[:7])
    (tmp_path / "1.txt").write_bytes(b"\xff\na\n")
    assert list(read_texts([f"{tmp_path}/1.txt"], "text", 1)) == ["a"]
    with pytest.raises(ValueError, match=r"1.txt: row 1: not UTF-8"):
        list(read_texts([f"{tmp_path}/1.txt"], "text", 0))
    (tmp_path / "notes").write_text("a")
    with pytest.raises(ValueError, match=r"notes: the name says no kind, expected one that ends in .txt, .jsonl"):
        read_texts([f"{tmp_path}/0.txt", f"{tmp_path}/notes"], "text", 0)
