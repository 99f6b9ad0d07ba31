"""Rows without text are counted, named, skipped, and too many of them stop the run."""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from plga.training.data import lines, rows
from tests.training.data.corpora import opened, same, take

# Everything is training of one process but the first row.
ALL = {"validation": 1e-9}


def jsonl(folder: Path, *lines: bytes | dict[str, Any]) -> str:
    file = folder / "corpus.jsonl"
    file.write_bytes(b"".join((json.dumps(x).encode() if isinstance(x, dict) else x) + b"\n" for x in lines))
    return str(file)


GOOD: list[dict[str, Any]] = [{"text": "3 4"}, {"text": "5 6 7"}, {"text": "8 9"}]
BAD: dict[str, tuple[bytes, str, str]] = {
    "null": (b'{"text": null}', "null", "text is null"),
    "a number": (b'{"text": 5}', "not text", "text is int, expected text"),
    "a list": (b'{"text": ["3"]}', "not text", "text is list, expected text"),
    "an object": (b'{"text": {"text": "3"}}', "not text", "text is dict, expected text"),
    "no column": (b'{"content": "3", "id": 1}', "no such column", "no column 'text' but 'content', 'id'"),
    "no column at all": (b"{}", "no such column", "no column 'text' but none"),
    "half a line": (b'{"text": "3', "not JSON", "not JSON (Unterminated string"),
    "no JSON": (b"3 4 5", "not JSON", "not JSON (Extra data"),
    "too deep": (b'{"text": ' + b"[" * 100_000, "not JSON", "not JSON (maximum recursion depth exceeded"),
    "too many digits": (b'{"text": ' + b"1" * 5000 + b"}", "not JSON", "not JSON (Exceeds the limit"),
    "no object": (b'["3"]', "not an object", "list, expected a JSON object on each line"),
    "latin 1": (b'{"text": "caf\xe9"}', "not UTF-8", "not UTF-8 (invalid continuation byte at byte 13)"),
    "half a character": (rb'{"text": "\ud83d"}', "not UTF-8", "text has half of a surrogate pair at character 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_of_json(tmp_path: Path, tokenizer: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    line, kind, reason = BAD[name]
    path = jsonl(tmp_path, GOOD[0], GOOD[1], line, GOOD[2], line)
    data = opened(path, tokenizer, "jsonl", bad_rows=2, **ALL)
    with caplog.at_level(logging.WARNING):
        (window,) = take(data, 1)
    assert window["input_ids"].tolist() == [5, 6, 7, 2]
    assert window["labels"].tolist() == [6, 7, 2, 8]
    assert data.bad_rows == {kind: 2}
    (message,) = caplog.messages  # the first of its kind alone
    assert message.startswith(f"{path}: row 3: {reason}")
    assert message.endswith("; skipped, as others like it will be")
    data = opened(path, tokenizer, "jsonl", bad_rows=1, **ALL)
    with pytest.raises(ValueError) as error:
        take(data, 1)
    assert str(error.value).startswith(f"{path}: row 5: {reason}")
    assert str(error.value).endswith(
        f"; with it 2 rows are bad ({kind} 2), expected at most 1: mend them or raise bad_rows"
    )
    assert "\n" not in str(error.value)


def test_bad_rows_are_counted_by_kind_and_none_may_be_allowed(
    tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = jsonl(tmp_path, *GOOD, *(line for line, _, _ in BAD.values()))
    data = opened(path, tokenizer, "jsonl", **ALL)
    take(data, 1)
    assert data.bad_rows == {
        "null": 1,
        "not text": 3,
        "no such column": 2,
        "not JSON": 4,
        "not an object": 1,
        "not UTF-8": 2,
    }
    assert len(caplog.messages) == 6
    with pytest.raises(ValueError, match=r"row 4: text is null; with it 1 rows are bad \(null 1\), expected at most 0"):
        take(opened(path, tokenizer, "jsonl", bad_rows=0, **ALL), 1)


def test_bad_rows_of_a_text(tmp_path: Path, tokenizer: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"3 4\n5 6 7\n\xff\xfe\n8 9\n")
    data = opened(str(file), tokenizer, **ALL)
    (window,) = take(data, 1)
    assert [*window["input_ids"], window["labels"][-1]] == [5, 6, 7, 2, 8]
    assert data.bad_rows == {"not UTF-8": 1}
    with pytest.raises(ValueError, match=rf"{file}: row 3: not UTF-8 \(invalid start byte at byte 0\)"):
        take(opened(str(file), tokenizer, bad_rows=0, **ALL), 1)


def test_bad_rows_of_parquet(tmp_path: Path, tokenizer: Path) -> None:
    cells = [b"3 4", b"5 6 7", None, b"\xff", b"8 9", b"\xe9 10"]
    column = pyarrow.array(cells, pyarrow.binary())
    strings = pyarrow.Array.from_buffers(pyarrow.string(), len(column), column.buffers(), column.null_count)
    file = tmp_path / "corpus.parquet"
    parquet.write_table(pyarrow.table({"text": strings}), file, row_group_size=2)
    data = opened(str(file), tokenizer, "parquet", **ALL)
    (window,) = take(data, 1)
    assert [*window["input_ids"], window["labels"][-1]] == [5, 6, 7, 2, 8]
    assert data.bad_rows == {"null": 1, "not UTF-8": 2}
    with pytest.raises(ValueError, match=rf"{file}: row 6: not UTF-8 .*\(null 1, not UTF-8 2\), expected at most 2"):
        take(opened(str(file), tokenizer, "parquet", bad_rows=2, **ALL), 1)


def test_bad_rows_of_a_streamed_dataset(tmp_path: Path, tokenizer: Path) -> None:
    jsonl(tmp_path, *GOOD[:2], {"text": None}, GOOD[2])
    data = opened(str(tmp_path), tokenizer, "hub", **ALL)
    (window,) = take(data, 1)
    assert [*window["input_ids"], window["labels"][-1]] == [5, 6, 7, 2, 8]
    assert data.bad_rows == {"null": 1}
    with pytest.raises(ValueError, match=rf"{tmp_path}: row 3: text is null"):
        take(opened(str(tmp_path), tokenizer, "hub", bad_rows=0, **ALL), 1)


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_a_line_longer_than_the_limit_is_never_held(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, ending: bytes
) -> None:
    for module in (lines, rows):
        monkeypatch.setattr(module, "LONGEST", 10)
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"3 4\n" + b"5 6 7 8 90" + ending)  # as long as it may be
    if ending:
        (window,) = take(opened(str(file), tokenizer, bad_rows=0, **ALL), 1)
        assert window["input_ids"].tolist() == [5, 6, 7, 8]
    for length in (11, 12, 13, 20, 23, 24, 25, 100):
        file.write_bytes(b"3 4\n5 6\n" + b"5" * length + ending)
        held = [row.raw for row in lines.TextLines([file]).rows()]
        assert all(raw is None or len(raw) <= 12 for raw in held)
        if ending:
            file.write_bytes(b"3 4\n5 6\n" + b"5" * length + ending + b"7 8 9")
            data = opened(str(file), tokenizer, **ALL)
            (window,) = take(data, 1)
            assert [*window["input_ids"], window["labels"][-1]] == [5, 6, 2, 7, 8]
            assert data.bad_rows == {"too long": 1}


@pytest.mark.parametrize("kind", ["parquet", "hub"])
def test_a_long_cell_is_a_bad_row(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(rows, "LONGEST", 10)
    file = tmp_path / "corpus.parquet"
    parquet.write_table(pyarrow.table({"text": ["3 4", "5 6 7", "5 6 7 8 9 0", "5 6 7 8 90"]}), file)
    data = opened(str(file if kind == "parquet" else tmp_path), tokenizer, kind, **ALL)
    (window,) = take(data, 1)
    assert [*window["input_ids"], window["labels"][-1]] == [5, 6, 7, 2, 5]
    assert data.bad_rows == {"too long": 1}


def test_counts_go_on_with_a_resumed_run(tmp_path: Path, tokenizer: Path) -> None:
    bad: list[bytes] = [b"{}", b"[]"]
    path = jsonl(tmp_path, GOOD[0], GOOD[1], bad[0], GOOD[2], bad[1], *([GOOD[1]] * 300), bad[0])
    data = opened(path, tokenizer, "jsonl", bad_rows=3, **ALL)
    take(data, 302)
    assert data.bad_rows == {"no such column": 2, "not an object": 1}  # and no more in the second epoch
    assert data.train.state(0)["bad_rows"] == {}
    assert data.train.state(1)["bad_rows"] == {"no such column": 1}
    assert data.train.state(5)["bad_rows"] == {"no such column": 1, "not an object": 1}
    for consumed in (0, 1, 5, 301):
        resumed = opened(path, tokenizer, "jsonl", bad_rows=3, **ALL)
        resumed.train.load_state(data.train.state(consumed))
        assert resumed.bad_rows == data.train.state(consumed)["bad_rows"]
        take(resumed, 320 - consumed)
        assert resumed.bad_rows == data.bad_rows
    strict = opened(path, tokenizer, "jsonl", bad_rows=2, **ALL)
    strict.train.load_state(data.train.state(5))
    with pytest.raises(ValueError, match=r"row 306: .*with it 3 rows are bad"):
        take(strict, 300)


def test_raising_the_limit_lets_a_stopped_run_go_on(tmp_path: Path, tokenizer: Path) -> None:
    path = jsonl(tmp_path, *([GOOD[1]] * 300), b"{}", *([GOOD[1]] * 300))
    stopped = opened(path, tokenizer, "jsonl", bad_rows=0, **ALL)
    windows = iter(stopped.train)
    found = []
    with pytest.raises(ValueError, match="row 301"):
        found.extend(next(windows) for _ in range(400))
    state = stopped.train.state(200)
    on = opened(path, tokenizer, "jsonl", bad_rows=1, **ALL)
    on.train.load_state(state)
    assert same(take(on, 300), take(opened(path, tokenizer, "jsonl", **ALL), 500)[200:])


def test_a_process_counts_its_own_bad_rows(tmp_path: Path, tokenizer: Path) -> None:
    # Row 1 is of process 0, row 2 of process 1, ...
    path = jsonl(tmp_path, *GOOD, b"{}", GOOD[1], b"[]", GOOD[1], b"1", GOOD[1])
    for process, counts in (((0, 2), {"no such column": 1, "not an object": 2}), ((1, 2), {})):
        data = opened(path, tokenizer, "jsonl", process=process, **ALL)
        take(data, 1)
        assert data.bad_rows == counts


def test_bad_rows_of_validation_have_their_own_limit(tmp_path: Path, tokenizer: Path) -> None:
    path = jsonl(tmp_path, b"{}", GOOD[0], GOOD[1], GOOD[0], b"[]", GOOD[0], GOOD[1], GOOD[0])
    data = opened(path, tokenizer, "jsonl", bad_rows=2)
    assert data.validation(1)["input_ids"].tolist() == [[5, 6, 7, 2]]
    take(data, 1)
    assert data.bad_rows == {}
    with pytest.raises(ValueError, match="row 5: list, expected a JSON object"):
        opened(path, tokenizer, "jsonl", bad_rows=1).validation(1)


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_a_corpus_of_bad_rows_alone(tmp_path: Path, tokenizer: Path, kind: str) -> None:
    file = tmp_path / "corpus"
    file.write_bytes(b"\xff\n" * 9)
    with pytest.raises(ValueError, match="no training document for process 0 of 1 and bad rows: not UTF-8 8; expected"):
        take(opened(str(file), tokenizer, kind, **ALL), 1)


def test_rows_of_others_are_not_parsed(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jsonl(tmp_path, *GOOD)  # two of them are training
    data = opened(path, tokenizer, "jsonl", process=(2, 3), **ALL)
    monkeypatch.setattr(lines.JsonLines, "text", None)
    with pytest.raises(ValueError, match="no training document for process 2"):
        take(data, 1)
