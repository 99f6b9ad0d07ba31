"""``plga eval``: tables, files, the order parameter, and what it says of bad input."""

import json
from pathlib import Path

import pytest

from tests.cli.runner import plga

TASKS = Path(__file__).parents[1] / "scoring" / "tasks"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Choices that fit a context of 24."""
    documents = [
        {"code": "import os", "choices": [".path", "x"], "answers": [0]},
        {"code": "def f(x):", "choices": [" x", " y", "z"], "answers": [1, 0]},
    ]
    (tmp_path / "library_choices.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "choices.yaml").write_text((TASKS / "library_choices.yaml").read_text())
    return tmp_path / "choices.yaml"


def test_both_protocols_are_printed_and_written(checkpoint: Path, task: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    out = tmp_path / "results.json"
    command = ("eval", checkpoint, "--tasks", f"{task},{TASKS / 'library_lines.yaml'}", "--protocol", "both")
    ending = plga(*command, "--device", "cpu", "--out", out, "--order-parameter", "--batch-size", "auto")
    assert ending.code == 0, ending
    results = json.loads(out.read_text())
    assert (results["checkpoint"], results["context"], results["dtype"]) == ("learned", 24, "float32")
    value = results["protocols"]["sequential"]["tasks"]["library_choices"]["acc,none"]
    assert f"{value:.4f}" in ending.out
    assert "library_lines" in ending.out and "exact_match" in ending.out
    changes = results["comparison"]["library_choices"]["choices"]["argmax_changes"]
    assert f"library_choices: argmax changes {changes} of 2" in ending.out
    order = results["order_parameter"]["rmse_1c_over_abs_mean"]
    assert f"order parameter: RMSE_1C / |mean| of G_LM {order:.1e} over 8 prompts" in ending.out
    assert len(list((tmp_path / "results.cache").glob("*.db"))) == 2
    assert "results.json exists, expected a new file, or --overwrite" in plga(*command, "--out", out).error()


def test_a_constant_has_no_order_parameter(frozen: Path, task: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    ending = plga("eval", frozen, "--tasks", task, "--order-parameter", "--device", "cpu")
    assert ending.code == 0, ending
    assert "order parameter: none, as a constant operator does not fluctuate" in ending.out
    assert "differ by at most" not in ending.out


def test_auto_says_what_it_measured(checkpoint: Path, task: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    for threshold, protocol in (("0", "sequential"), ("9", "block")):
        ending = plga("eval", checkpoint, "--tasks", task, "--threshold", threshold, "--device", "cpu")
        assert f"auto, continuations: {protocol}, as both differ by at most" in ending.out
    (task.parent / "library_choices.jsonl").write_text(
        json.dumps({"code": "import os, " * 9, "choices": ["a", "b"], "answers": [0]})
    )
    ending = plga("eval", checkpoint, "--tasks", task, "--device", "cpu")
    assert "auto: 2 requests lost the beginning of their context" in ending.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--protocol", "online"), "--protocol is 'online', expected one of auto, block, sequential, both"),
        (("--batch-size", "0"), "--batch-size is '0', expected a number >= 1, or auto"),
        (("--tasks", ","), "--tasks is ',', expected names with commas between"),
        (("--tasks", "/missing.yaml"), "/missing.yaml: no such file, expected a task file"),
        (("--out", "/tmp/results.txt"), "--out is /tmp/results.txt, expected a name that ends in .json"),
    ],
)
def test_bad_options_are_one_line(checkpoint: Path, task: Path, options: tuple[str, str], message: str) -> None:
    assert message in plga("eval", checkpoint, "--tasks", task, *options).error()


def test_bad_tasks_are_one_line(checkpoint: Path, task: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    (task.parent / "library_choices.jsonl").write_text('{"code": "a", "answers": [0]}\n')
    error = plga("eval", checkpoint, "--tasks", task).error()
    assert "library_choices.jsonl line 1: no field 'choices', which doc_to_choice of task library_choices" in error
    assert "'nothing' is unknown to lm-evaluation-harness" in plga("eval", checkpoint, "--tasks", "nothing").error()
    assert "no such file or directory" in plga("eval", "/missing", "--tasks", task).error()
