"""``proofs/check`` lets pass what is proved, and catches what is not."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "proofs" / "check"
GOOD = "Theorem fine (n : nat) : n = n.\nProof. reflexivity. Qed.\n"


@pytest.fixture(autouse=True)
def _coq() -> None:
    """Skips where Coq is not installed, except under CI, where that is a failure."""
    if shutil.which("coqc") is None:
        reason = "no coqc: the proofs are checked with Coq (make proofs says what to install)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def check(folder: Path, text: str, compiled: bool = True, listed: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the check on a project of one file, planted.v."""
    (folder / "planted.v").write_text(text, encoding="utf-8")
    (folder / "_CoqProject").write_text("-Q . plga\n" + "planted.v\n" * listed)
    if compiled:
        subprocess.run(["coqc", "-q", "-Q", ".", "plga", "planted.v"], cwd=folder, check=True, capture_output=True)
    return subprocess.run([CHECK, folder], capture_output=True, text=True)


def test_a_proof_passes(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD + "(* Admitted (* nor any Axiom *) in a comment *)\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "planted.fine: no axiom\n1 theorems in 1 files\n"
    assert not list(tmp_path.glob("*assumptions_of_all*"))


def test_classical_logic_passes(tmp_path: Path) -> None:
    text = "Require Import Classical.\nTheorem middle (P : Prop) : P \\/ ~ P.\nProof. apply classic. Qed.\n"
    done = check(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    assert "planted.middle: classic\n" in done.stdout


def test_a_planted_admitted_fails(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD + "Theorem wrong : 0 = 1.\nAdmitted.\n")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "check: planted.v has 'Admitted'",
        "check: planted.wrong assumes wrong",
    ] or done.stderr.splitlines() == ["check: planted.v has 'Admitted'", "check: planted.wrong assumes planted.wrong"]


def test_an_admitted_lemma_that_a_theorem_uses_fails(tmp_path: Path) -> None:
    text = "Lemma gap : 0 = 1.\nAdmitted.\nTheorem stands_on : 1 = 0.\nProof. symmetry. exact gap. Qed.\n"
    done = check(tmp_path, text)
    assert done.returncode == 1
    assert "planted.stands_on assumes" in done.stderr
    assert "gap" in done.stderr


def test_an_admitted_lemma_that_nothing_uses_fails(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD + "Lemma gap : 0 = 1.\nAdmitted.\n")
    assert done.returncode == 1
    assert done.stderr == "check: planted.v has 'Admitted'\n"


@pytest.mark.parametrize(
    "assumption",
    ["Axiom wish : 0 = 1.", "Parameter wish : 0 = 1.", "Hypothesis wish : 0 = 1.", "Variable wish : 0 = 1."],
)
def test_an_axiom_of_our_own_fails(tmp_path: Path, assumption: str) -> None:
    done = check(tmp_path, f"{assumption}\nTheorem stands_on : 1 = 0.\nProof. symmetry. exact wish. Qed.\n")
    assert done.returncode == 1
    assert "planted.stands_on assumes" in done.stderr


def test_an_axiom_with_an_allowed_name_fails(tmp_path: Path) -> None:
    done = check(tmp_path, "Variable classic : 0 = 1.\nTheorem wrong : 0 = 1.\nProof. exact classic. Qed.\n")
    assert done.returncode == 1
    assert "planted.wrong assumes" in done.stderr


def test_a_file_that_is_not_compiled_fails(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD, compiled=False)
    assert done.returncode == 1
    assert "are the proofs compiled" in done.stderr


def test_a_file_that_is_not_in_the_project_fails(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD, listed=False)
    assert done.returncode == 1
    assert "planted.v is not in _CoqProject" in done.stderr
