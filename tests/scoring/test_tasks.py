"""Task files of one's own: what they need, and their documents."""

import json
from pathlib import Path

import pytest
import yaml

pytest.importorskip("lm_eval", reason="needs the extra eval")

from plga.scoring.tasks import read_task  # after it is known to be there

TASKS = Path(__file__).parent / "tasks"
CHOICES = yaml.safe_load((TASKS / "library_choices.yaml").read_text())
DOCUMENT = {"code": "a", "choices": ["b", "c"], "answers": [0]}


def write(folder: Path, documents: list[object], **changes: object) -> Path:
    lines = (document if isinstance(document, str) else json.dumps(document) for document in documents)
    (folder / "library_choices.jsonl").write_text("\n".join(lines))
    task = {name: value for name, value in (CHOICES | changes).items() if value is not None}
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    return folder / "task.yaml"


@pytest.mark.parametrize("name", ["library_choices", "library_text", "library_lines"])
def test_data_lie_beside_the_task(name: str) -> None:
    task = read_task(TASKS / f"{name}.yaml")
    assert task["dataset_kwargs"]["data_files"] == {"test": str(TASKS / f"{name}.jsonl")}


@pytest.mark.parametrize("kind", [str, lambda name: [name], lambda name: {"test": [name]}])
def test_data_files_in_any_form(tmp_path: Path, kind: object) -> None:
    files = kind("library_choices.jsonl")  # type: ignore[operator]
    task = read_task(write(tmp_path, [DOCUMENT], dataset_kwargs={"data_files": files}))
    assert task["dataset_kwargs"]["data_files"] == kind(str(tmp_path / "library_choices.jsonl"))  # type: ignore[operator]


@pytest.mark.parametrize("missing", ["code", "choices", "answers"])
def test_a_document_without_a_field(tmp_path: Path, missing: str) -> None:
    short = {name: value for name, value in DOCUMENT.items() if name != missing}
    for documents in ([DOCUMENT, "", short], [DOCUMENT, "", DOCUMENT | {missing: None}]):
        with pytest.raises(ValueError, match=rf"library_choices\.jsonl line 3: no field '{missing}', which doc_to_"):
            read_task(write(tmp_path, documents))
    with pytest.raises(ValueError, match=rf"library_choices\.jsonl line 1: no field '{missing}'"):
        read_task(write(tmp_path, [short]))
    with pytest.raises(ValueError, match=r"line 2: no field 'code', which doc_to_text of task library_choices reads"):
        read_task(write(tmp_path, [DOCUMENT, {"choices": ["b", "c"], "answers": [0]}], doc_to_text="code"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": None}, "no field 'task', expected task, dataset_path"),
        ({"doc_to_target": None}, "no field 'doc_to_target'"),
        ({"test_split": None}, "no field 'test_split', expected it or 'validation_split'"),
        ({"doc_to_text": "{{code"}, "'{{code': not a template"),
        ({"include": "missing.yaml"}, "missing.yaml"),
    ],
)
def test_a_task_without_a_field(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        read_task(write(tmp_path, [DOCUMENT], **changes))


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "no documents, expected a JSON object on each line"),
        ([DOCUMENT, "{"], "line 2: not JSON"),
        ([DOCUMENT, json.dumps(DOCUMENT | {"code": "\ud800"})], "line 2: .* is half of a character"),
        (["[]"], "line 1: list, expected a JSON object"),
    ],
)
def test_documents_that_are_none(tmp_path: Path, documents: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_task(write(tmp_path, documents))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        read_task(tmp_path / "missing.yaml")
    (tmp_path / "a.yaml").write_text("task: [")
    with pytest.raises(ValueError, match=r"a\.yaml: not a task file"):
        read_task(tmp_path / "a.yaml")
    with pytest.raises(OSError, match=r"nowhere\.jsonl"):
        read_task(write(tmp_path, [DOCUMENT], dataset_kwargs={"data_files": "nowhere.jsonl"}))
