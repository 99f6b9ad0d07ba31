"""The registry of claims: the paper's (arXiv:2608.10288) and this project's, their labels, and where to check each.

The data are in ``claims.json``. A theorem of ``proofs/`` is checked by Coq, ``proofs/check`` says what it assumes; what
its statement leaves out stands beside it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

LABELS = ("theorem", "conditional theorem", "measurement", "conjecture")
_BAR = r"\|"  # a bar inside a cell of a Markdown table


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        number: of this registry, as "11.2", not of the paper; comments in ``proofs/`` cite the part before the point.
        source: who makes it: "paper" or "project".
        statement: in one sentence.
        label: one of LABELS.
        condition: the hypothesis of a conditional theorem, or a remark that belongs to the label.
        proofs: theorems of ``proofs/``, as "softmax.softmax_shift" (file and name).
        tests: files of this repository that test it, or pages that report it.
        commands: command lines that measure it.
        evidence: what is to be seen there.
        not_covered: what the formal statements do not cover, or what is still to be measured.
    """

    number: str
    source: str
    statement: str
    label: str
    condition: str = ""
    proofs: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    evidence: str = ""
    not_covered: str = ""

    def __post_init__(self) -> None:
        if self.label not in LABELS:
            raise ValueError(f"claim {self.number} has the label {self.label!r}, expected one of {', '.join(LABELS)}")
        if self.label == "conditional theorem" and not self.condition:
            raise ValueError(f"claim {self.number} is a conditional theorem without its condition")
        if self.proofs and not self.not_covered:
            raise ValueError(f"claim {self.number} is proved, but does not say what the formal statement leaves out")
        if not (self.proofs or self.tests or self.commands or self.label == "conjecture"):
            raise ValueError(f"claim {self.number} is a {self.label} that nothing checks")

    @property
    def full_label(self) -> str:
        """Label and condition."""
        return f"{self.label}; {self.condition}" if self.condition else self.label

    @property
    def where(self) -> list[str]:
        """Where to check it: theorems as "proofs/FILE.v: NAME, NAME", then tests, then commands."""
        by_file: dict[str, list[str]] = {}
        for proof in self.proofs:
            file, _, name = proof.partition(".")
            by_file.setdefault(file, []).append(name)
        return [
            *(f"proofs/{file}.v: {', '.join(names)}" for file, names in by_file.items()),
            *self.tests,
            *self.commands,
        ]


def read_claims() -> list[Claim]:
    """Every claim of the registry, in its order.

    Raises:
        ValueError: a claim that is incomplete, or a number that occurs twice.
    """
    text = resources.files("plga.audit").joinpath("claims.json").read_text(encoding="utf-8")
    lists = ("proofs", "tests", "commands")
    entries: list[dict[str, Any]] = json.loads(text)
    claims = [Claim(**entry | {key: tuple(entry.get(key, ())) for key in lists}) for entry in entries]
    numbers = [claim.number for claim in claims]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"a number occurs twice among the claims: {', '.join(numbers)}")
    return claims


def markdown(claims: Iterable[Claim]) -> str:
    """The table of ``docs/claims.md``."""
    lines = [
        "| number | claim | label | where to check it | what the proof does not cover |",
        "|---|---|---|---|---|",
    ]
    for claim in claims:
        where = "; ".join(f"`{place}`" for place in claim.where)
        if claim.evidence:
            where = f"{where}: {claim.evidence}" if where else claim.evidence
        cells = (claim.number, claim.statement, claim.full_label, where, claim.not_covered or "no proof")
        lines.append(f"| {' | '.join(cell.replace('|', _BAR) for cell in cells)} |")
    return "\n".join(lines) + "\n"
