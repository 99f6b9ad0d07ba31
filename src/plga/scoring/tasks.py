"""Tasks of lm-evaluation-harness in files of one's own: YAML, and JSON lines beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta
from lm_eval.tasks._yaml_loader import load_yaml

from plga.scoring.files import require_text

_NEEDED = ("task", "dataset_path", "output_type", "doc_to_text", "doc_to_target")
_TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice")


def read_task(file: Path) -> dict[str, Any]:
    """A task file as lm-evaluation-harness takes it, once all of its documents have what it reads of them.

    ``data_files`` that are not absolute are looked for beside the task file.

    Raises:
        ValueError: not a task file; a missing field of it, or of a document, which is named by its file and line.
        OSError: missing or unreadable.
    """
    try:
        task = load_yaml(file, resolve_func=True)
    except OSError:
        raise
    except Exception as error:  # a parser's, or whatever a function that it names raises when it is imported
        raise ValueError(f"{file}: not a task file ({' '.join(str(error).split())[:120]})") from error
    if missing := [name for name in _NEEDED if name not in task]:
        raise ValueError(f"{file}: no field {missing[0]!r}, expected {', '.join(_NEEDED)}")
    if "test_split" not in task and "validation_split" not in task:
        raise ValueError(f"{file}: no field 'test_split', expected it or 'validation_split'")
    settings = dict(task.get("dataset_kwargs") or {})
    if task["dataset_path"] != "json" or "data_files" not in settings:
        return task
    settings["data_files"] = _beside(file, settings["data_files"])
    for data in _files(settings["data_files"]):
        _require_fields(Path(data), task)
    return task | {"dataset_kwargs": settings}


def _beside(file: Path, names: Any) -> Any:
    """Absolute names in the structure that Datasets takes: one, several, or either by split."""
    if isinstance(names, dict):
        return {split: _beside(file, each) for split, each in names.items()}
    if isinstance(names, list):
        return [_beside(file, each) for each in names]
    return str(file.resolve().parent / str(names))


def _files(names: Any) -> Iterator[str]:
    if isinstance(names, str):
        yield names
    else:
        for each in names.values() if isinstance(names, dict) else names:
            yield from _files(each)


def _require_fields(data: Path, task: dict[str, Any]) -> None:
    """Every document has the fields that the task reads: Datasets would fill in a null, and a template print it."""
    documents = list(_documents(data))
    if not documents:
        raise ValueError(f"{data}: no documents, expected a JSON object on each line")
    known = {field for _, document in documents for field in document}
    for name in _TEMPLATES:
        for field in _read_by(task.get(name), known):
            for line, document in documents:
                if document.get(field) is None:
                    raise ValueError(
                        f"{data.name} line {line}: no field {field!r}, which {name} of task {task['task']} reads"
                    )


def _documents(data: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        lines = data.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{data}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{data.name} line {number}: not JSON ({error})") from error
        if not isinstance(document, dict):
            raise ValueError(f"{data.name} line {number}: {type(document).__name__}, expected a JSON object")
        require_text(f"{data.name} line {number}", document)
        yield number, document


def _read_by(template: Any, known: set[str]) -> list[str]:
    """Fields that a template reads; the name of a field is one too, and a function says nothing."""
    if not isinstance(template, str):
        return []
    if template in known:
        return [template]
    environment = Environment()
    environment.filters["regex_replace"] = str  # of lm-evaluation-harness; that it is there is all that counts here
    try:
        return sorted(meta.find_undeclared_variables(environment.parse(template)))
    except TemplateSyntaxError as error:
        raise ValueError(f"{template!r}: not a template ({error})") from error
