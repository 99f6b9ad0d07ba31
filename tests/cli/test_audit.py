"""``plga audit``: what it measures, what it writes, and what it says of bad input."""

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from plga.audit.sections import SECTIONS
from tests.cli.runner import Ending, fresh, plga
from tests.cli.test_errors import change_tensor

QUICK = "A,B,C,D2,H"
NAMES = {"audit.json", "audit.npz", "report.html"}


def audit(checkpoint: Path, out: Path, *options: object) -> Ending:
    return plga("audit", checkpoint, "--out", out, *options)


def parts(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "audit.json").read_text())["sections"]
    return found


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("import os\ndef f(x):\nreturn x + 1\n")
    return file


def test_all_sections_of_both_reference_checkpoints(reference: Path, tmp_path: Path) -> None:
    tokenizer = reference / "tokenizer.json"
    for name in ("critical", "subcritical"):
        ending = audit(reference / f"{name}.pth", tmp_path / name, "--tokenizer", tokenizer)
        assert (ending.code, ending.err) == (0, ""), ending
        assert {path.name for path in (tmp_path / name).iterdir()} == NAMES
        assert {letter: part["status"] for letter, part in parts(tmp_path / name).items()} == dict.fromkeys(
            SECTIONS, "measured"
        )
    ending = plga("audit", "--verify", tmp_path / "critical", tmp_path / "subcritical")
    assert ending.code == 0 and ending.out.count("are what the arrays say") == 2
    ending = plga("audit", "--compare", tmp_path / "critical", tmp_path / "subcritical", "--out", tmp_path / "both")
    assert ending.code == 0
    page = (tmp_path / "both" / "report.html").read_text()
    assert "critical" in page and "subcritical" in page
    # No hidden folder with sections is left.
    assert {path.name for path in tmp_path.iterdir()} == {"critical", "subcritical", "both"}


def test_two_runs_are_the_same_bytes(checkpoint: Path, lines: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert audit(checkpoint, tmp_path / name, "--prompts", lines, "--sections", QUICK).code == 0
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in NAMES)


def test_the_twirl_needs_no_checkpoint(tmp_path: Path) -> None:
    assert plga("audit", "--sections", "A", "--out", tmp_path / "out").code == 0
    assert list(parts(tmp_path / "out")) == ["A"]


def test_operators_alone(reference: Path, tmp_path: Path) -> None:
    ending = plga("audit", "--operators", reference / "G_LM_PLDRv51-110M-1.pkl", "--out", tmp_path / "out")
    assert ending.code == 0
    found = parts(tmp_path / "out")
    assert list(found) == ["A", "B2", "D2"]
    (residual,) = [q for q in found["D2"]["quantities"] if q["name"].startswith("commutant residual")][:1]
    assert all(0 <= value <= 1 for value in residual["value"])


def test_tampering_is_named(checkpoint: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    audit(checkpoint, out, "--prompts", lines, "--sections", "A,C")
    file = out / "audit.json"
    record = json.loads(file.read_text())
    changed = next(q for q in record["sections"]["C"]["quantities"] if isinstance(q["value"], list))
    changed["value"][1] += 1e-9
    file.write_text(json.dumps(record))
    assert changed["name"] in plga("audit", "--verify", out).error()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sections", "A,X"), "'X' is unknown"),
        (("--sections", ","), "expected letters"),
        (("--sections", "B"), "B needs a checkpoint"),
        ((), "nothing to audit"),
        (("--sections", "A", "--dtype", "float32"), "--dtype is given without a checkpoint"),
        (("--verify",), "--verify got 0 folders"),
        (("--compare",), "--compare got 0 folders"),
        (("--verify", "--compare"), "--verify and --compare are both given"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    out = () if "--verify" in options else ("--out", tmp_path / "out")
    assert message in plga("audit", *options, *out).error()
    assert not (tmp_path / "out").exists()


def test_mechanism_only_where_all_that_it_reads_was_asked_for(tmp_path: Path) -> None:
    ending = plga("audit", "--sections", "A", "--out", tmp_path / "out")
    assert "Three-stage mechanism" not in ending.out
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["mechanism"] is None


def test_prompts_that_do_not_fit_the_context(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("x = 1\n" + "word " * 200 + "\n")
    assert "prompt 2" in audit(checkpoint, tmp_path / "out", "--prompts", file).error()


def test_the_same_prompt_counts_once(checkpoint: Path, tmp_path: Path) -> None:
    """Else the audit would find, over prompts, that nothing depends on the prompt."""
    file, out = tmp_path / "prompts.txt", tmp_path / "out"
    file.write_text("import os\n" * 3)
    assert audit(checkpoint, out, "--prompts", file, "--sections", "K,I").code == 0
    record = json.loads((out / "audit.json").read_text())
    assert len(record["prompts"]["tokens"]) == 1
    assert {parts(out)[letter]["status"] for letter in ("E2", "I")} == {"not measurable"}
    assert [stage["holds"] for stage in record["mechanism"]][1] is None


@pytest.mark.parametrize("text", ["import os\n", "x\n"])
def test_one_prompt_and_one_token_leave_sections_unmeasured(checkpoint: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text(text)
    out = tmp_path / "out"
    ending = audit(checkpoint, out, "--prompts", file)
    if not out.exists():  # refused as a whole, in one line
        assert ending.error()
        return
    assert ending.code == 0, ending
    statuses = {letter: part["status"] for letter, part in parts(out).items()}
    assert statuses["A"] == "measured" and "not measurable" in statuses.values() and "failed" not in statuses.values()
    assert all(part["reason"] for part in parts(out).values() if part["status"] != "measured")


@pytest.mark.parametrize(
    ("tensor", "value"),
    [("model.layers.0.self_attn.q_proj.weight", "nan"), ("model.layers.1.self_attn.operator.exponent", "-inf")],
)
def test_a_weight_that_is_not_finite_is_named(
    checkpoint: Path, lines: Path, tmp_path: Path, tensor: str, value: str
) -> None:
    spoiled, out = tmp_path / "spoiled", tmp_path / "out"
    shutil.copytree(checkpoint, spoiled)
    change_tensor(
        spoiled,
        tensor,
        lambda weights: torch.where(torch.arange(weights.numel()).view(weights.shape) == 1, float(value), weights),
    )
    error = audit(spoiled, out, "--prompts", lines).error()
    assert f"{spoiled}: {tensor} has 1 of " in error and "not finite in float32" in error
    assert not out.exists()


def test_finite_weights_whose_outputs_are_not_lose_no_other_section(
    checkpoint: Path, lines: Path, tmp_path: Path
) -> None:
    spoiled, out = tmp_path / "spoiled", tmp_path / "out"
    shutil.copytree(checkpoint, spoiled)
    change_tensor(spoiled, "model.layers.1.self_attn.operator.coupling_weight", lambda tensor: tensor.fill_(3e38))
    ending = audit(spoiled, out, "--prompts", lines)
    assert (ending.code, ending.err) == (0, "")
    found = parts(out)
    assert {letter for letter, part in found.items() if part["status"] == "measured"} == {"A"}
    of_model = {part["reason"] for letter, part in found.items() if letter != "A"}
    assert of_model == {"G_LM of layer 1 is not finite in heads [0, 1]"}


def test_another_architecture(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    assert "llama" in audit(folder, tmp_path / "out").error()


def test_killed_it_goes_on_with_the_same_bytes(reference: Path, tmp_path: Path) -> None:
    options = (reference / "subcritical.pth", "--tokenizer", reference / "tokenizer.json", "--sections", "A,B,H,I")
    whole, stopped = tmp_path / "a" / "out", tmp_path / "b" / "out"
    for out in (whole, stopped):
        out.parent.mkdir()
    process = fresh("audit", *options, "--out", stopped)
    while process.poll() is None and not list(stopped.parent.glob(".out.audit-*/H.npz")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not stopped.exists()
    assert plga("audit", *options, "--out", whole).code == 0
    assert plga("audit", *options, "--out", stopped).code == 0
    assert all((whole / name).read_bytes() == (stopped / name).read_bytes() for name in NAMES)
    assert list(stopped.parent.iterdir()) == [stopped]
