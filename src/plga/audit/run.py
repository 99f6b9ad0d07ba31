"""The sections of an audit, one after the other; what is finished outlives an error, an interruption and a kill."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plga.audit.arrays import pack, read_arrays, unpack, write_arrays
from plga.audit.record import FAILED, MEASURED, NOT_MEASURABLE, Part, figure
from plga.audit.section import NotMeasurable, Quantity, Section
from plga.audit.subject import Subject
from plga.model.atomic import locked, new_file


@dataclass(frozen=True)
class Result:
    """What came of a section.

    Attributes:
        status: "measured", "not measurable" or "failed".
        reason: why there is nothing; None for a measured one.
        raw: the arrays of a measured one.
        quantities: of a measured one.
        seconds: that it took; 0 where it was finished before.
    """

    section: Section
    status: str
    reason: str | None = None
    raw: Any = None
    quantities: list[Quantity] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def part(self) -> Part:
        """The same in JSON."""
        figures = [figure(quantity) for quantity in self.quantities]
        return Part.model_validate(
            {"title": self.section.title, "status": self.status, "reason": self.reason, "quantities": figures}
        )

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The raw arrays by ``LETTER.field``."""
        return {} if self.raw is None else pack(self.section.letter, self.raw)


def run(
    subject: Subject,
    sections: Sequence[Section],
    work: Path,
    on_start: Callable[[Section], None] = lambda section: None,
    on_end: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run sections; the arrays of each are on the disk before the next one starts.

    Args:
        subject: what is audited.
        sections: in this order.
        work: folder of this audit alone (:func:`working_folder`). What it holds already is not measured again.
        on_start, on_end: called around each section.

    Raises:
        OSError: ``work`` cannot be written to. Whatever a section raises becomes its result.
    """
    work.mkdir(parents=True, exist_ok=True)
    results = []
    for section in sections:
        on_start(section)
        results.append(_run(section, subject, work / f"{section.letter}.npz"))
        on_end(results[-1])
    return results


def _run(section: Section, subject: Subject, kept: Path) -> Result:
    start = time.perf_counter()
    raw, measured = _finished(section, kept), None
    try:
        if raw is None:
            if section.needs == "model" and subject.model is None:
                raise NotMeasurable("it needs a model with a learned operator")
            measured = pack(section.letter, section.measure(subject))
            # From the packed arrays, so that what is summarized is exactly what is stored.
            raw = unpack(section.letter, section.raw, measured)
        quantities = section.quantities(raw)
    except NotMeasurable as reason:
        return Result(section, NOT_MEASURABLE, _line(reason), seconds=time.perf_counter() - start)
    except Exception as error:  # whatever it is, the other sections are not lost for it
        return Result(section, FAILED, _line(error), seconds=time.perf_counter() - start)
    if measured is not None:
        with new_file(kept, overwrite=True) as file:
            write_arrays(file, measured)
    return Result(section, MEASURED, None, raw, quantities, time.perf_counter() - start)


def _finished(section: Section, file: Path) -> Any:
    """The raw dataclass of a section that an earlier run has finished; None: it is to be measured."""
    try:
        return unpack(section.letter, section.raw, read_arrays(file))
    except (FileNotFoundError, ValueError):  # damaged, or of other code
        return None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError | FloatingPointError) and text else f"{type(error).__name__}: {text}"


def working_folder(out: Path, identity: str) -> Path:
    """Where an audit keeps its finished sections: beside ``out``, hidden, and of its own for every ``identity``."""
    out = out.resolve()
    return out.with_name(f"{_prefix(out)}{identity[:16]}")


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Let no other audit work for ``out``: the two would take each other's sections away.

    Raises:
        ValueError: another one does.
        OSError: the folder of ``out`` cannot be made or written to.
    """
    out = out.resolve()
    lock = out.with_name(f"{_prefix(out)}lock")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OSError(f"{out.parent}: {why}, expected a folder that can be written to") from error
    with locked(lock, f"{out}: another audit is on its way there; wait for it, or choose another --out"):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def clear(out: Path) -> None:
    """Remove the working folders of all audits for ``out``."""
    out = out.resolve()
    for path in out.parent.iterdir():
        if path.name.startswith(_prefix(out)) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _prefix(out: Path) -> str:
    return f".{out.name}.audit-"


def by_letter(results: Sequence[Result]) -> Mapping[str, list[Quantity]]:
    """Quantities of the measured sections."""
    return {result.section.letter: result.quantities for result in results if result.status == MEASURED}
