"""What a file to be scored may hold, and what is said of one that holds something else."""

import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from plga.scoring.choices import Choice
from plga.scoring.exposure import Text
from plga.scoring.files import Asked, encode_pair, read_file
from plga.scoring.protocols import Scores
from plga.training.data.tokenizer import train_tokenizer
from tests.training import runs


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(runs.texts(), 300, 24)


def write(file: Path, *lines: object) -> Path:
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return file


def test_one_text_is_counted_in_bytes_after_its_first_token(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (text,) = read_file(write(tmp_path / "a.txt", "aé b\n"), tokenizer)
    assert isinstance(text, Text)
    assert tokenizer.decode(text.ids) == "aé b\n"
    assert tokenizer.decode(text.ids[:1]) == "a"
    assert (text.name, text.bytes) == ("a.txt", 5)


def test_line_ends_are_scored_as_they_are(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\0\n")
    (text,) = read_file(tmp_path / "a.txt", tokenizer)
    assert isinstance(text, Text)
    assert tokenizer.decode(text.ids) == "a\r\nb\0\n"
    assert text.bytes == 5
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\r\n{"text": "two"}\r\n')
    assert [tokenizer.decode(text.ids) for text in read_file(tmp_path / "a.jsonl", tokenizer)] == ["one", "two"]  # type: ignore[union-attr]


def test_lines_of_texts(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    found = read_file(write(tmp_path / "a.jsonl", {"text": "one\u2028two"}, "", {"text": "three"}), tokenizer)
    assert [text.name for text in found] == ["a.jsonl line 1", "a.jsonl line 3"]
    assert tokenizer.decode(found[0].ids) == "one\u2028two"  # type: ignore[union-attr]


QUESTION = {"context": "def f(x):", "candidates": [" return é", " x"], "true": [1]}


def test_lines_of_questions(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (asked,) = read_file(write(tmp_path / "q.jsonl", QUESTION), tokenizer)
    assert isinstance(asked, Asked)
    assert (asked.name, asked.true, asked.candidates) == ("q.jsonl line 1", (1,), (" return é", " x"))
    assert [item.name for item in asked.items] == ["q.jsonl line 1, candidate 0", "q.jsonl line 1, candidate 1"]
    for item, candidate in zip(asked.items, asked.candidates, strict=True):
        assert tokenizer.decode(item.context) == "def f(x):"
        assert tokenizer.decode([*item.context, *item.candidate]) == "def f(x):" + candidate
    scores = [Scores(torch.tensor([-1.0, -0.5]), torch.tensor([True, False]), 0)] * 2
    assert asked.scored(scores).choices == (Choice(-1.5, 8, 9), Choice(-1.5, 1, 1))


def test_spaces_at_the_end_of_a_context_go_to_the_candidate(tokenizer: PreTrainedTokenizerFast) -> None:
    assert encode_pair(tokenizer, "def f: ", "return") == encode_pair(tokenizer, "def f:", " return")
    given, asked = encode_pair(tokenizer, "def f:", " return")
    assert tokenizer.decode(given) == "def f:" and tokenizer.decode(asked) == " return"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "q.jsonl: no lines, expected a text or a question on each"),
        ([{"text": "ab"}, QUESTION], "1 texts and 1 questions, expected one kind a file"),
        ([{"text": "ab"}, "{"], "q.jsonl line 2: not JSON"),
        (["[1]"], "q.jsonl line 1: list, expected a JSON object"),
        ([{"text": 3}], "q.jsonl line 1: text is 3, expected a str, not empty"),
        ([{"text": ""}], 'q.jsonl line 1: text is "", expected a str'),
        ([{"text": "a"}], "q.jsonl line 1: the text has 1 tokens, expected at least 2"),
        ([QUESTION, {"context": "a", "true": [0]}], "q.jsonl line 2: no field 'candidates', expected text, or context"),
        ([{"candidates": ["a"], "true": [0]}], "q.jsonl line 1: no field 'context'"),
        ([QUESTION | {"candidates": ["a", " "]}], "q.jsonl line 1: candidate 1 is empty, expected at least one"),
        ([QUESTION | {"candidates": ["a", 2]}], "q.jsonl line 1: candidates are .*, expected a list of texts"),
        ([{"text": "ab"}, '{"text": "a\\ud800b"}'], r"q.jsonl line 2: '\\ud800' is half of a character"),
        (
            ['{"context": "a", "candidates": ["\\udfff", "b"], "true": [0]}'],
            "q.jsonl line 1: '.*' is half of a character",
        ),
        (
            [{"context": "de", "candidates": ["f", "x"], "true": [0]}],
            "q.jsonl line 1: candidate 0 has no token of its own, as the tokenizer joins it to the end of the context",
        ),
        ([QUESTION | {"true": [True]}], r"q.jsonl line 1: true is \[true\], expected a list of indices"),
        ([QUESTION | {"true": []}], r"q.jsonl line 1: true is \[\], expected a list, not empty"),
    ],
)
def test_files_that_are_none(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, lines: list[object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_file(write(tmp_path / "q.jsonl", *lines), tokenizer)


def test_bytes_that_are_no_text(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\xff")
    with pytest.raises(ValueError, match=r"a\.txt: not UTF-8 text"):
        read_file(tmp_path / "a.txt", tokenizer)
