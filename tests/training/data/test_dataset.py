"""Data opened from settings: validation, and an identity that a changed corpus does not have."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from plga.training.data.tokenizer import train_tokenizer
from tests.training.data import corpora
from tests.training.data.corpora import opened, write

ROWS = corpora.numbered([3, 5, 1, 9, 4, 4, 7, 2, 6, 30])


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "hub"])
def test_validation_by_hand(tmp_path: Path, tokenizer: Path, kind: str) -> None:
    # Documents 0, 4 and 8 of lengths 3, 4 and 6.
    paths = write(tmp_path / "corpus", kind, ROWS)
    held_out = [token for row in ROWS[::4] for token in (*row, corpora.END)]
    for process in ((0, 1), (1, 2)):
        data = opened(paths, tokenizer, kind, context=3, process=process, validation=0.25)
        validation = data.validation(5)
        assert validation["input_ids"].tolist() == [held_out[i : i + 3] for i in range(0, 15, 3)]
        assert validation["labels"].tolist() == [held_out[i + 1 : i + 4] for i in range(0, 15, 3)]
        assert {name: x.tolist() for name, x in data.validation(2).items()} == {
            name: x[:2].tolist() for name, x in validation.items()
        }
        with pytest.raises(ValueError, match="corpus has 5 validation windows of 3, expected >= 6; ask for fewer"):
            data.validation(6)
        with pytest.raises(ValueError, match="count is 0, expected >= 1"):
            data.validation(0)


def test_validation_that_is_padded(tmp_path: Path, tokenizer: Path) -> None:
    data = opened(write(tmp_path, "text", ROWS), tokenizer, packing="padded", validation=0.25)
    validation = data.validation(4)
    assert validation.keys() == {"input_ids", "labels", "attention_mask"}
    assert validation["attention_mask"].sum(1).tolist() == [3, 4, 4, 2]
    assert torch.equal(validation["labels"] == -100, validation["attention_mask"] == 0)


def test_validation_does_not_disturb_training(tmp_path: Path, tokenizer: Path) -> None:
    paths = write(tmp_path / "corpus", "hub", ROWS)
    undisturbed = [x["input_ids"].tolist() for x in corpora.take(opened(paths, tokenizer, "hub"), 12)]
    data = opened(paths, tokenizer, "hub")
    found = []
    for window in data.train:
        found.append(window["input_ids"].tolist())
        if len(found) == 12:
            break
        data.validation(1)
    assert found == undisturbed


def test_the_identity_is_that_of_data_and_settings(tmp_path: Path, tokenizer: Path) -> None:
    paths = write(tmp_path / "a", "text", ROWS)
    elsewhere = write(tmp_path / "b", "text", ROWS)
    other = write(tmp_path / "c", "text", ROWS[:-1])
    train_tokenizer(corpora.texts(ROWS), 300, 8).save_pretrained(tmp_path / "bytes")
    alike: list[dict[str, Any]] = [{}, {"process": (1, 2)}, {"bad_rows": 7}, {"paths": elsewhere}]
    different: list[dict[str, Any]] = [
        {"context": 5},
        {"packing": "padded"},
        {"validation": 0.25},
        {"tokenizer": tmp_path / "bytes"},
        {"paths": other},
        {"paths": [*paths, f"{tmp_path}/c/0.txt"]},
    ]

    def identity(changes: dict[str, Any]) -> str:
        return opened(**({"paths": paths, "tokenizer": tokenizer} | changes)).identity

    assert len({identity(changes) for changes in alike}) == 1
    assert len({identity(changes) for changes in [{}, *different]}) == 1 + len(different)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"context": 5}, "settings"),
        ({"tokenizer": "bytes", "packing": "padded"}, "tokenizer, settings"),
        ({"paths": "grown"}, "corpus"),
    ],
)
def test_a_resumption_with_other_data_is_refused(
    tmp_path: Path, tokenizer: Path, changes: dict[str, Any], names: str
) -> None:
    paths = write(tmp_path / "a", "text", ROWS)
    state = json.loads(json.dumps(opened(paths, tokenizer).train.state(0)))
    if "tokenizer" in changes:
        train_tokenizer(corpora.texts(ROWS), 300, 8).save_pretrained(tmp_path / "bytes")
        changes = changes | {"tokenizer": tmp_path / "bytes"}
    if "paths" in changes:
        with (tmp_path / "a" / "1.txt").open("a") as file:
            file.write("7\n")
        changes = {}
    with pytest.raises(ValueError) as error:
        opened(**({"paths": paths, "tokenizer": tokenizer} | changes)).train.load_state(state)
    assert str(error.value) == (
        f"the data have changed since the checkpoint: another {names}; go on with the data it was made with, or begin "
        "a new run"
    )
