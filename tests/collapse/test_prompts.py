"""Texts to measure on: two sets that share none, from the package, a file or a corpus."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from plga.collapse import prompts as module
from plga.collapse.prompts import Prompts, neutral_prompts, prompts_of_data, prompts_of_file
from plga.training.data.tokenizer import train_tokenizer
from tests.training import runs


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(runs.texts(), 300, 24)


def decoded(tokenizer: PreTrainedTokenizerFast, prompts: Prompts) -> list[list[str]]:
    return [[tokenizer.decode(row) for row in rows] for rows in (prompts.calibration, prompts.held_out)]


def test_the_neutral_prompts_are_two_disjoint_sets(tokenizer: PreTrainedTokenizerFast) -> None:
    found = neutral_prompts(tokenizer, 10_000)
    calibration, held_out = decoded(tokenizer, found)
    assert (len(calibration), len(held_out)) == (16, 16)
    assert len({*calibration, *held_out}) == 32
    assert any("def " in text and "\n    " in text for text in calibration)  # programs have real line ends
    assert not any("\\n" in text for text in calibration + held_out)
    cut = neutral_prompts(tokenizer, 7)
    assert all(len(row) == 7 for row in cut.calibration + cut.held_out)
    assert len({tuple(row.tolist()) for row in cut.calibration + cut.held_out}) == 32


def test_the_lines_of_a_file_alternate(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one two\n\nthree four\nfive six\none two\nseven eight\nnine ten\n")
    found = prompts_of_file(file, tokenizer, 20)
    assert decoded(tokenizer, found) == [["one two", "five six", "nine ten"], ["three four", "seven eight"]]
    assert found.origin == str(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "0 prompts, expected at least 4, one a line"),
        ("a b\nc d\ne f\n", "3 prompts, expected at least 4, one a line"),
        ("a b\na b\na b\nc d\n", "2 different texts, expected at least 4"),
        ("a b\nc d\ne f\n" + "g h " * 40, "prompt 4 has 160 tokens, expected 2 to 20, the context less the new tokens"),
        ("a b\nc\ne f\ng h\n", "prompt 2 has 1 tokens, expected 2 to 20"),
    ],
)
def test_prompts_that_cannot_be(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"prompts\.txt: ") as error:
        prompts_of_file(file, tokenizer, 20)
    assert message in str(error.value)
    with pytest.raises(FileNotFoundError):
        prompts_of_file(tmp_path / "missing", tokenizer, 20)


def test_beginnings_of_documents(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    documents = [f"document {number} " + "and more of it " * 30 for number in range(40)]
    lines = [documents[0], *documents, "x"]  # a beginning that comes twice, and one that is too short
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    found = prompts_of_data([str(file)], tokenizer, 1000)
    assert (len(found.calibration), len(found.held_out)) == (16, 16)
    assert all(len(row) == 64 for row in found.calibration + found.held_out)
    calibration, held_out = decoded(tokenizer, found)
    assert calibration[1].startswith("document 2 ") and held_out[0].startswith("document 1 ")
    assert len({*calibration, *held_out}) == 32
    assert all(len(row) == 9 for row in prompts_of_data([str(file)], tokenizer, 9).held_out)


def test_the_standard_library(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "standard_library", lambda: iter(runs.texts()))
    found = prompts_of_data(["standard-library"], tokenizer, 12)
    assert found.origin == "standard-library"
    assert decoded(tokenizer, found)[0][0].startswith("def f_0(x):")


def test_data_that_cannot_be(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        prompts_of_data([str(tmp_path / "missing.txt")], tokenizer, 12)
    (tmp_path / "few.txt").write_text("a b\nc d\n")
    with pytest.raises(ValueError, match="2 different texts, expected at least 4"):
        prompts_of_data([str(tmp_path / "few.txt")], tokenizer, 12)
