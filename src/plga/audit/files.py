"""A finished audit as a folder: written whole or not at all, read strictly, and every summary recomputed."""

from collections.abc import Sequence
from pathlib import Path

from plga.audit.arrays import read_arrays, unpack, write_arrays
from plga.audit.page import Audit, page
from plga.audit.record import ARRAYS, JSON, MEASURED, PAGE, Record, StageRecord, difference, digest, read, text
from plga.audit.run import Result, by_letter
from plga.audit.sections import MECHANISM, SECTIONS, mechanism
from plga.audit.source import Task, environment, versions
from plga.model.atomic import new_directory
from plga.model.digests import digest_file

AUDIT, COMPARISON = "an audit", "a comparison of audits"  # kinds of folder, for plga.model.atomic


def write(task: Task, results: Sequence[Result], out: Path, overwrite: bool = False) -> Record:
    """Write ``audit.json``, ``audit.npz`` and ``report.html``.

    Args:
        out: new or empty, or with ``overwrite`` an audit, which is replaced.

    Raises:
        FileExistsError, OSError: as ``new_directory``.
    """
    with new_directory(out, overwrite, AUDIT) as folder:
        write_arrays(folder / ARRAYS, {name: array for result in results for name, array in result.arrays.items()})
        record = Record(
            subject=task.source,
            prompts=task.prompts,
            settings=task.settings,
            versions=versions(),
            environment=environment(),
            sections={result.section.letter: result.part for result in results},
            mechanism=_stages(results),
            files={ARRAYS: _sha256(folder / ARRAYS)},
        )
        raw = {result.section.letter: result.raw for result in results if result.status == MEASURED}
        (folder / PAGE).write_text(page([Audit(task.source.name, record, raw)], digest(record)), encoding="utf-8")
        record = record.model_copy(update={"files": record.files | {PAGE: _sha256(folder / PAGE)}})
        (folder / JSON).write_text(text(record), encoding="utf-8")
    return record


def load(folder: Path) -> tuple[Record, list[Result]]:
    """What :func:`write` wrote, its summaries recomputed from the arrays; sections without arrays are left out.

    Raises:
        ValueError: a file is truncated or is not the one that ``audit.json`` names, or arrays that are not those of
            their section.
        OSError: missing or unreadable.
    """
    record = read(folder / JSON)
    if record.files.keys() != {ARRAYS, PAGE}:
        raise ValueError(f"{folder / JSON}: files are {', '.join(record.files)}, expected {ARRAYS} and {PAGE}")
    for name, expected in record.files.items():
        found = _sha256(folder / name)
        if found != expected:
            raise ValueError(f"{folder / name}: SHA-256 is {found}, but {JSON} says {expected}")
    arrays = read_arrays(folder / ARRAYS)
    results = []
    for letter, part in record.sections.items():
        if letter not in SECTIONS:
            raise ValueError(f"{folder / JSON}: section {letter} is unknown, expected one of {', '.join(SECTIONS)}")
        if part.status == MEASURED:
            section = SECTIONS[letter]
            try:
                raw = unpack(letter, section.raw, arrays)
                results.append(Result(section, MEASURED, None, raw, section.quantities(raw)))
            except Exception as error:  # arrays that no measurement gave may end in any
                raise ValueError(f"{folder / ARRAYS}: section {letter} cannot be summarized ({error})") from error
    measured = [result.section.letter for result in results]
    if stray := [name for name in arrays if name.partition(".")[0] not in measured]:
        raise ValueError(f"{folder / ARRAYS}: the array {stray[0]} is of no measured section")
    return record, results


def verify(folder: Path) -> Record:
    """Recompute every summary of an audit from its arrays.

    Returns:
        The record, with which they agree up to rounding.

    Raises:
        ValueError: as :func:`load`; the section and quantity that differ; or a record other than that of the page.
        OSError: missing or unreadable.
    """
    return _verified(folder)[0]


def _verified(folder: Path) -> tuple[Record, list[Result]]:
    """As :func:`load`, all of it checked as :func:`verify` does."""
    record, results = load(folder)
    for result in results:
        letter = result.section.letter
        if (why := difference(result.part, record.sections[letter])) is not None:
            raise ValueError(f"{folder / JSON}: section {letter} is not what its arrays say: {why}{_other(record)}")
    if record.mechanism != _stages(results, list(record.sections)):
        raise ValueError(f"{folder / JSON}: the three-stage mechanism is not what its sections say{_other(record)}")
    # Last, as it says only that something differs: what nothing can be recomputed from, the seed or the prompts.
    if f'content="{digest(record)}"' not in (folder / PAGE).read_text(encoding="utf-8"):
        raise ValueError(f"{folder / JSON}: it is not the one that {PAGE} was made from{_other(record)}")
    return record, results


def compare(folders: Sequence[Path], out: Path, overwrite: bool = False) -> None:
    """Write ``report.html`` with several audits side by side.

    Args:
        folders: each with an audit of its own; their names head the columns.
        out: new or empty, or with ``overwrite`` a comparison, which is replaced.

    Raises:
        ValueError, OSError: as :func:`verify`, so that nothing is compared that is not what its arrays say.
        FileExistsError, OSError: as ``new_directory``.
    """
    audits = []
    for folder, name in zip(folders, _names(folders), strict=True):
        record, results = _verified(folder)
        audits.append(Audit(name, record, {result.section.letter: result.raw for result in results}))
    with new_directory(out, overwrite, COMPARISON) as new:
        (new / PAGE).write_text(page(audits), encoding="utf-8")


def _stages(results: Sequence[Result], letters: Sequence[str] | None = None) -> list[StageRecord] | None:
    """The three-stage mechanism, where every section that it reads was asked for."""
    asked = letters if letters is not None else [result.section.letter for result in results]
    if not set(MECHANISM) <= set(asked):
        return None
    return [
        StageRecord(name=s.name, hypothesis=s.hypothesis, measured=s.measured, holds=s.holds, why=s.why)
        for s in mechanism(by_letter(results))
    ]


def _names(folders: Sequence[Path]) -> list[str]:
    """Names of folders, or their paths where two have the same name."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _other(record: Record) -> str:
    """A hint where another version wrote the audit."""
    theirs, ours = record.versions.get("plga"), versions()["plga"]
    return "" if theirs == ours else f" (written by plga {theirs}, this is {ours})"


def _sha256(file: Path) -> str:
    digest: str = digest_file(file)["sha256"]
    return digest
