"""``plga tokenizer train``: a folder that holds a tokenizer, whole or not at all."""

import json
import os
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from plga.model.tokenizer import load_tokenizer
from plga.training.data.tokenizer import train_tokenizer
from tests.cli.runner import Ending, plga
from tests.training import runs

TEXTS = [f"def function_{i}(argument): return argument + {i}" for i in range(50)]


def train(out: Path, *arguments: object) -> Ending:
    return plga("tokenizer", "train", "--out", out, "--vocab-size", 300, *arguments)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with one corpus in three formats."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (folder / "a.jsonl").write_text("".join(json.dumps({"content": text}) + "\n" for text in TEXTS))
    parquet.write_table(pyarrow.table({"content": TEXTS}), folder / "a.parquet")
    return folder


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_every_format_gives_the_same_tokenizer(tmp_path: Path, files: Path, kind: str) -> None:
    expected = train_tokenizer(TEXTS, 300, 64, kind)  # type: ignore[arg-type]
    for name in ("a.txt", "a.jsonl", "a.parquet"):
        out = tmp_path / name
        ending = train(out, files / name, "--kind", kind, "--column", "content", "--context", 64)
        assert ending.code == 0, ending
        assert ending.err == ""
        pieces, characters = len(expected), sum(map(len, TEXTS))
        assert ending.out.startswith(
            f"wrote {out}: {kind}, {pieces} pieces, from 50 documents of {characters:,} characters\n"
        )
        assert ("the documents give no more pieces than that; --vocab-size was 300" in ending.out) == (pieces < 300)
        assert sorted(os.listdir(out)) == ["tokenizer.json", "tokenizer_config.json"]
        loaded = load_tokenizer(out, 300)
        assert loaded.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
        assert loaded.model_max_length == 64
        assert (loaded.pad_token_id, loaded.unk_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2, 3)


def test_without_files_it_reads_the_standard_library(tmp_path: Path) -> None:
    ending = plga("tokenizer", "train", "--out", tmp_path / "out", "--vocab-size", 300, small_library=True)
    assert ending.code == 0, ending
    texts = list(runs.texts())
    assert f"from {len(texts)} documents of {sum(map(len, texts)):,} characters" in ending.out


def test_several_files_and_globs(tmp_path: Path, files: Path) -> None:
    ending = train(tmp_path / "out", files / "a.txt", f"{files}/*.j*", "--column", "content")
    assert "from 100 documents" in ending.out


def test_an_existing_tokenizer_is_replaced_only_when_told_to(tmp_path: Path, files: Path, checkpoint: Path) -> None:
    out = tmp_path / "out"
    assert train(out, files / "a.txt").code == 0
    first = (out / "tokenizer.json").read_bytes()
    assert f"{out} exists, expected a new or empty directory, or --overwrite" in train(out, files / "a.txt").error()
    assert (out / "tokenizer.json").read_bytes() == first
    assert train(out, files / "a.txt", "--kind", "unigram", "--overwrite").code == 0
    assert (out / "tokenizer.json").read_bytes() != first
    (out / "notes").write_text("mine")
    for folder in (out, checkpoint, files):
        before = sorted(os.listdir(folder))
        error = train(folder, files / "a.txt", "--overwrite").error()
        assert f"{folder} exists and is not a tokenizer alone, so it is not overwritten" in error
        assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.txt", "--vocab-size", 259), "vocab_size is 259, expected >= 260 (special tokens and bytes)"),
        (("a.txt", "--kind", "wordpiece"), "--kind is 'wordpiece', expected one of bpe, unigram"),
        (("missing.txt",), "missing.txt: no such file, and no file matches it"),
        (("a.txt", "a.csv"), "a.csv: the name says no kind, expected one that ends in .txt, .jsonl"),
        (("empty.jsonl",), "empty.jsonl: empty, leave it out"),
        (("a.jsonl", "--bad-rows", 49), "a.jsonl: row 50: no column 'text' but 'content'; with it 50 rows are bad"),
        (("a.jsonl",), "a.jsonl: no document, and bad rows: no such column 50"),
        (("a.parquet",), "a.parquet: no column 'text' but 'content'; set column"),
        (("blank.txt",), "blank.txt: no document"),
        (("latin.txt", "--bad-rows", 0), "latin.txt: row 2: not UTF-8 (unexpected end of data at byte 3)"),
    ],
)
def test_one_line_and_nothing_written(tmp_path: Path, files: Path, arguments: tuple[object, ...], message: str) -> None:
    (files / "a.csv").write_text("hello")
    (files / "empty.jsonl").touch()
    (files / "blank.txt").write_text("\n \n")
    (files / "latin.txt").write_bytes(b"coffee\ncaf\xe9\n")
    names = [files / a if isinstance(a, str) and "." in a else a for a in arguments]
    ending = train(tmp_path / "out", *names)
    assert ending.code == 1
    assert ending.out == ""
    *warnings, line = ending.err.splitlines()
    assert line.startswith("plga: error: ")
    assert message in line
    assert all("skipped, as others like it will be" in warning for warning in warnings)
    assert not (tmp_path / "out").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, files: Path) -> None:
    ending = plga(
        "tokenizer", "train", files / "a.txt", "--out", tmp_path / "out", "--vocab-size", 300, file_limit=1000
    )
    assert ending.error() == f"{tmp_path}/out: File too large"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]
