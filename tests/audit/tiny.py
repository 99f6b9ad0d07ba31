"""Sections that measure next to nothing, for the tests of what is around the real ones."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pytest
import torch

from plga.audit import figures, files, mechanism, sections, source
from plga.audit.run import run, working_folder
from plga.audit.section import NotMeasurable, Quantity, Section, spread
from plga.audit.subject import Subject


@dataclass(frozen=True)
class Numbers:
    values: np.ndarray
    scale: np.ndarray


def numbers(subject: Subject) -> Numbers:
    generator = torch.Generator().manual_seed(subject.seed)
    return Numbers(torch.rand(5, generator=generator).numpy(), np.array(2.0))


def quantities(raw: Numbers) -> list[Quantity]:
    values = raw.values.astype(np.float64)
    return [
        Quantity("values", spread(values), "instances", published=[0.0, 0.5, 1.0]),
        Quantity("largest <value>", float(values.max() * raw.scale), "pooled", kind="bound", formula="2 max & more"),
        Quantity("count", len(values), "pooled", claim="theorem"),
        Quantity("ratio to zero", None, "pooled"),
        Quantity("infinite", [0.0, 1.0, float("inf")], "instances"),
        Quantity("all are below one", bool((values < 1).all()), "pooled"),
    ]


def section(
    letter: str,
    measure: Callable[[Subject], Any] = numbers,
    needs: Literal["nothing", "operators", "model"] = "nothing",
    summary: Callable[[Any], list[Quantity]] = quantities,
) -> Section:
    return Section(letter, f"Section {letter} & <others>", needs, Numbers, measure, summary)


def not_measurable(subject: Subject) -> NoReturn:
    raise NotMeasurable("one prompt only, expected two")


def broken(subject: Subject) -> NoReturn:
    raise FloatingPointError("G_LM of layer 1 is not finite")


def stages(found: Any) -> list[mechanism.Stage]:
    return [mechanism.Stage("averaging", "twirl averages", f"{len(found)} sections", "A" in found, "<tiny>")]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, Section]:
    """Sections A, B and D2 in the place of the real ones."""
    found = {s.letter: s for s in (section("A"), section("B", needs="model"), section("D2", needs="operators"))}
    install(found, monkeypatch.setattr)
    return found


def install(found: dict[str, Section], setattr: Callable[[Any, str, Any], None] = setattr) -> None:
    for module in (sections, files):
        setattr(module, "SECTIONS", found)
        setattr(module, "mechanism", stages)
    setattr(files, "MECHANISM", ("A",))
    setattr(figures, "FIGURES", {})


def measured_by(letter: str, log: Path, ready: Any = None) -> Section:
    """A section that writes down each measurement; one with ``ready`` says when it begins and then never ends."""

    def measure(subject: Subject) -> Numbers:
        with log.open("a") as file:
            file.write(letter)
        if ready is not None:
            ready.send(os.getpid())
            while True:
                pass
        return numbers(subject)

    return section(letter, measure)


def audit(out: Path, log: Path, ready: Any = None) -> None:
    """A whole audit in a process of its own, which stays in its third section if it has to say that it is there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background job of a shell ignores it
    found = [measured_by(letter, log, ready if letter == "C" else None) for letter in "ABCD"]
    install({s.letter: s for s in found})
    task = source.of_nothing(seed=0)
    results = run(task.subject, found, working_folder(out, task.identity))
    files.write(task, results, out)
