"""``plga eval`` killed in the middle, and two of them over one cache."""

import json
import signal
from pathlib import Path

import pytest

from tests.cli.runner import fresh, plga

TASK = (Path(__file__).parents[1] / "scoring" / "tasks" / "library_text.yaml").read_text()
# The first text is answered, and the process killed where it would score the second.
KILLED = """
import os, signal
from plga.cli.main import main
from plga.scoring.harness import PlgaLM
plain, calls = PlgaLM._scored, []
def scored(self, items, protocol):
    calls.append(items)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, items, protocol)
PlgaLM._scored = scored
main()
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    texts = (f"def f{number}(x):\n    return x + {number}\n" for number in range(4))
    (tmp_path / "library_text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "text.yaml").write_text(TASK)
    return tmp_path / "text.yaml"


def test_a_killed_evaluation_goes_on_to_the_same_file(checkpoint: Path, task: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    command = ("eval", checkpoint, "--tasks", task, "--protocol", "both", "--device", "cpu", "--out")
    whole, killed = tmp_path / "whole.json", tmp_path / "killed.json"
    assert plga(*command, whole).code == 0
    process = fresh(*command, killed, code=KILLED)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not killed.exists() and list((tmp_path / "killed.cache").glob("block-*.db"))
    ending = plga(*command, killed)
    assert ending.code == 0, ending
    assert killed.read_bytes() == whole.read_bytes()


def test_two_evaluations_share_a_cache(checkpoint: Path, task: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    command = ("eval", checkpoint, "--tasks", task, "--protocol", "both", "--device", "cpu")
    shared = ("--cache", tmp_path / "shared")
    both = [fresh(*command, *shared, "--out", tmp_path / f"{number}.json") for number in range(2)]
    for process in both:
        _, error = process.communicate()
        assert process.returncode == 0, error
    alone = tmp_path / "alone.json"
    assert plga(*command, "--out", alone).code == 0
    assert all((tmp_path / f"{number}.json").read_bytes() == alone.read_bytes() for number in range(2))
