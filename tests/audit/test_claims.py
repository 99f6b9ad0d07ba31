"""The registry of claims: what it names exists, and the documentation says the same."""

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from plga.audit import claims as registry
from plga.audit.claims import Claim, markdown, read_claims
from plga.cli.main import app
from tests.cli.runner import plga

ROOT = Path(__file__).resolve().parents[2]
PROOFS = ROOT / "proofs"
CLAIMS = read_claims()
PROVED = [proof for claim in CLAIMS for proof in claim.proofs]


def theorems(path: Path) -> set[str]:
    """Names of the theorems of a Coq file, those in comments left out."""
    text = re.sub(r"\(\*.*?\*\)", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return set(re.findall(r"^Theorem\s+([\w']+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("proof", PROVED)
def test_a_named_theorem_exists(proof: str) -> None:
    file, _, name = proof.partition(".")
    assert name in theorems(PROOFS / f"{file}.v")


def test_every_theorem_belongs_to_a_claim() -> None:
    """Except those of the standard reals, which state others again."""
    files = [path for path in PROOFS.glob("*.v") if path.stem != "standard_reals"]
    assert {f"{path.stem}.{name}" for path in files for name in theorems(path)} == set(PROVED)
    assert len(set(PROVED)) == len(PROVED)


def test_every_file_of_proofs_is_compiled() -> None:
    listed = (PROOFS / "_CoqProject").read_text().split()
    assert {path.name for path in PROOFS.glob("*.v")} == {name for name in listed if name.endswith(".v")}


def test_a_comment_cites_a_claim_of_the_registry() -> None:
    numbers = {claim.number.partition(".")[0] for claim in CLAIMS}
    cited = {n for path in PROOFS.glob("*.v") for n in re.findall(r"Claim (\w+)", path.read_text(encoding="utf-8"))}
    assert cited <= numbers
    assert len(cited) > 12


@pytest.mark.parametrize("command", sorted({command for claim in CLAIMS for command in claim.commands}))
def test_a_named_command_exists(command: str) -> None:
    program, name, *options = command.split()
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    known = group.commands
    assert program == "plga"
    accepted = {spelling for parameter in known[name].params for spelling in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= accepted


@pytest.mark.parametrize("path", sorted({path for claim in CLAIMS for path in claim.tests}))
def test_a_named_test_exists(path: str) -> None:
    assert "def test_" in (ROOT / path).read_text(encoding="utf-8")


def test_the_documentation_has_the_table() -> None:
    assert markdown(CLAIMS) in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_an_entry_has_no_cell_that_breaks_the_table() -> None:
    rows = markdown(CLAIMS).splitlines()
    assert len(rows) == len(CLAIMS) + 2
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "fact"}, "has the label 'fact'"),
        ({"label": "conditional theorem"}, "without its condition"),
        ({"not_covered": ""}, "does not say what the formal statement leaves out"),
        ({"proofs": ()}, "that nothing checks"),
    ],
)
def test_an_incomplete_claim_is_refused(change: dict[str, object], message: str) -> None:
    entry: dict[str, Any] = {"label": "theorem", "proofs": ("softmax.softmax_shift",), "not_covered": "rounding"}
    with pytest.raises(ValueError, match=message):
        Claim(**{"number": "1", "source": "paper", "statement": "one is one", **entry, **change})


def test_a_number_occurs_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = {"number": "1", "source": "paper", "statement": "one is one", "label": "conjecture"}
    (tmp_path / "claims.json").write_text(json.dumps([entry, entry]))
    monkeypatch.setattr(registry.resources, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match="occurs twice"):
        read_claims()


def test_the_command_prints_the_registry() -> None:
    ending = plga("claims", "--json")
    assert (ending.code, ending.err) == (0, "")
    printed = json.loads(ending.out)
    stored = json.loads(resources.files("plga.audit").joinpath("claims.json").read_text(encoding="utf-8"))
    assert [{key: value for key, value in claim.items() if value} for claim in printed] == stored
    assert plga("claims", "--markdown").out == markdown(CLAIMS)


def test_the_command_prints_a_table() -> None:
    ending = plga("claims")
    assert (ending.code, ending.err) == (0, "")
    everything = "".join(ending.out.split())
    assert all(claim.number in everything for claim in CLAIMS)
    assert "conditionaltheorem" in everything
    assert max(map(len, ending.out.splitlines())) <= 140


def test_one_format_at_a_time() -> None:
    assert "expected one of them" in plga("claims", "--json", "--markdown").error()
