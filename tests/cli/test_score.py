"""``plga score``: texts and questions under each protocol, and what it says of bad input."""

import json
from pathlib import Path

import pytest

from tests.cli.runner import plga

TEXT = "import os\n\n\ndef read(self, name):\n    return self.files[name].read(1)\n"
QUESTIONS = [
    {"context": "def f(x):", "candidates": [" return x", " import", "é"], "true": [0, 1]},
    {"context": "import ", "candidates": ["os", "def"], "true": [0]},
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.py").write_text(TEXT)
    return tmp_path / "text.py"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    return tmp_path / "questions.jsonl"


def test_both_protocols_of_a_text(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    ending = plga("score", checkpoint, text, "--protocol", "both", "--stride", 5, "--out", out)
    assert (ending.code, ending.err) == (0, "")
    assert "Target exposure by the tokens before" in ending.out
    figures = json.loads(out.read_text())
    assert (figures["checkpoint"], figures["file"], figures["context"]) == ("learned", "text.py", 24)
    (found,) = figures["texts"]
    assert f"{found['sequential']['nats_per_token']:.6f}" in ending.out
    assert f"{found['block']['bits_per_byte']:.6f}" in ending.out
    assert len(found["tokenwise"]["block"]) == found["tokens"] == figures["all"]["tokens"] > 24
    assert found["bytes"] == len(TEXT) - 1
    assert found["gap"]["largest_magnitude"] > 0
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    again = ("score", checkpoint, text, "--protocol", "both", "--out", out)
    assert "scores.json exists, expected a new file, or --overwrite" in plga(*again).error()
    assert plga(*again, "--overwrite").code == 0


def test_auto_says_why(checkpoint: Path, frozen: Path, text: Path, tmp_path: Path) -> None:
    ending = plga("score", frozen, text)
    assert "protocol: block (constant operator: both protocols are one (theorem))" in ending.out
    for threshold, protocol in ((0, "sequential"), (9, "block")):
        out = tmp_path / f"{protocol}.json"
        ending = plga("score", checkpoint, text, "--threshold", threshold, "--out", out)
        assert f"protocol: {protocol} (block and sequential differ by at most" in ending.out
        figures = json.loads(out.read_text())
        assert figures["protocol"] == protocol
        assert figures["check"]["passed"] == (protocol == "block")
        assert f"{figures['all']['nats_per_token']:.6f}" in ending.out


def test_block_of_a_learned_operator_comes_with_a_warning(checkpoint: Path, text: Path) -> None:
    ending = plga("score", checkpoint, text, "--protocol", "block", "--threshold", 0)
    assert "warning: these scores have seen their targets" in ending.out
    assert "warning" not in plga("score", checkpoint, text, "--protocol", "sequential").out


def test_questions(checkpoint: Path, questions: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    ending = plga("score", checkpoint, questions, "--protocol", "both", "--out", out)
    assert (ending.code, ending.err) == (0, "")
    figures = json.loads(out.read_text())
    assert figures["comparison"]["questions"] == figures["block"]["metrics"]["questions"] == 2
    assert f"argmax changes: {figures['comparison']['argmax_changes']} of 2" in ending.out
    assert f"{figures['sequential']['metrics']['mc2']:.4f}" in ending.out
    assert [len(found["logprobs"]) for found in figures["block"]["questions"]] == [3, 2]
    ending = plga("score", checkpoint, questions, "--protocol", "sequential")
    assert f"{figures['sequential']['metrics']['mc2']:.4f}" in ending.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--protocol", "online"), "--protocol is 'online', expected one of auto, block, sequential, both"),
        (("--stride", "25"), "stride is 25, expected from 1 to the context of 24"),
        (("--out", "/tmp/scores.txt"), "--out is /tmp/scores.txt, expected a name that ends in .json"),
        (("--device", "abacus"), "device is 'abacus', which is not here"),
        (("--device", "meta"), "device is 'meta', which is not here (it holds no numbers)"),
        (("--tokenizer", "/missing"), "/missing: no such file"),
    ],
)
def test_bad_options_are_one_line(checkpoint: Path, text: Path, options: tuple[str, str], message: str) -> None:
    assert message in plga("score", checkpoint, text, *options).error()


def test_bad_files_are_one_line(checkpoint: Path, tmp_path: Path) -> None:
    assert "No such file" in plga("score", checkpoint, tmp_path / "missing.txt").error()
    (tmp_path / "q.jsonl").write_text('{"context": "a"}\n')
    assert "q.jsonl line 1: no field 'candidates'" in plga("score", checkpoint, tmp_path / "q.jsonl").error()
    (tmp_path / "long.jsonl").write_text(json.dumps(QUESTIONS[1] | {"candidates": ["x " * 60, "y"]}))
    error = plga("score", checkpoint, tmp_path / "long.jsonl").error()
    assert "long.jsonl line 1, candidate 0: the candidate has" in error
    assert "expected at most the context of 24" in error
