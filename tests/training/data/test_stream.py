"""The training stream: whose tokens it has, and that it goes on from any place with the same bits."""

import json
import logging
import tempfile
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from plga.training.data import encoding
from plga.training.data.lines import TextLines
from tests.training.data import corpora
from tests.training.data.corpora import FIRST, opened, same, stream, take, write

KINDS = ("text", "jsonl", "parquet", "hub")
LENGTHS = [3, 5, 1, 9, 4, 4, 7, 2, 6, 30, 1, 8, 5]
ROWS = corpora.numbered(LENGTHS)
lengths = st.lists(st.integers(1, 12), min_size=8, max_size=24)


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TEXTS", 3)


def inputs(windows: list[dict[str, Any]]) -> list[int]:
    return [token for window in windows for token in window["input_ids"].tolist()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("process", [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_the_tokens_of_a_process_epoch_after_epoch(
    tmp_path: Path, tokenizer: Path, kind: str, process: tuple[int, int]
) -> None:
    data = opened(write(tmp_path / "corpus", kind, ROWS), tokenizer, kind, context=5, process=process)
    epoch = list(stream(ROWS, process))
    windows = take(data, 3 * len(epoch) // 5)
    assert inputs(windows) == (epoch * 3)[: len(windows) * 5]
    assert all(window.keys() == {"input_ids", "labels"} for window in windows)
    for window, following in pairwise(windows):
        assert window["labels"].tolist() == [*window["input_ids"][1:].tolist(), int(following["input_ids"][0])]
        assert window["labels"].dtype == window["input_ids"].dtype == torch.int64


@given(lengths, st.integers(2, 5), st.integers(1, 3))
def test_shards_and_validation_are_disjoint_and_complete(tokenizer: Path, counts: list[int], n: int, k: int) -> None:
    rows = corpora.numbered(counts)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), "text", rows)
        share = {"validation": 1 / n, "context": 1}
        shards = []
        for index in range(k):
            count = len(list(stream(rows, (index, k), n)))
            shards.append(inputs(take(opened(paths, tokenizer, process=(index, k), **share), count)))
        validating = [document for i, document in enumerate(rows) if i % n == 0]
        validation = opened(paths, tokenizer, **share).validation(sum(map(len, validating)) + len(validating) - 1)
    texts = [token for shard in (*shards, validation["input_ids"].flatten().tolist()) for token in shard]
    assert sorted(token for token in texts if token >= FIRST) == list(range(FIRST, FIRST + sum(counts)))


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_after_any_window_it_goes_on_with_the_same_bits(
    tmp_path: Path, tokenizer: Path, kind: str, packing: str
) -> None:
    paths = write(tmp_path / "corpus", kind, ROWS)
    choices: dict[str, Any] = {"kind": kind, "packing": packing, "process": (1, 2)}
    data = opened(paths, tokenizer, **choices)
    whole = take(data, 40)  # four epochs and more
    for consumed in range(0, 30, 1 if kind != "hub" else 5):
        state = json.loads(json.dumps(data.train.state(consumed)))
        resumed = opened(paths, tokenizer, **choices)
        resumed.train.load_state(state)
        assert resumed.train.consumed == consumed
        assert same(take(resumed, 10), whole[consumed : consumed + 10])
        again = opened(paths, tokenizer, **choices)
        again.train.load_state(json.loads(json.dumps(resumed.train.state(consumed + 7))))
        assert same(take(again, 3), whole[consumed + 7 : consumed + 10])


@given(lengths, st.integers(1, 6), st.lists(st.integers(0, 7), min_size=1, max_size=4), st.booleans())
def test_any_number_of_resumptions_at_any_batch(
    tokenizer: Path, counts: list[int], batch: int, steps: list[int], padded: bool
) -> None:
    packing = "padded" if padded else "packed"
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), "jsonl", corpora.numbered(counts))
        whole = take(opened(paths, tokenizer, "jsonl", packing=packing), sum(steps) * batch)
        found, state = [], None
        for count in steps:
            train = opened(paths, tokenizer, "jsonl", packing=packing).train
            if state is not None:
                train.load_state(state)
            loader = DataLoader(train, batch_size=batch)
            found += [{name: x[i] for name, x in b.items()} for b in islice(loader, count) for i in range(batch)]
            state = json.loads(json.dumps(train.state(len(found))))
    assert same(found, whole)


def test_a_second_iteration_begins_where_the_first_did(tmp_path: Path, tokenizer: Path) -> None:
    data = opened(write(tmp_path, "text", ROWS), tokenizer)
    first = take(data, 9)
    assert same(take(data, 9), first)
    data.train.load_state(data.train.state(4))
    assert same(take(data, 5), first[4:])
    assert same(take(data, 5), first[4:])


def test_states_are_remembered_so_far_back_as_a_loader_may_be_ahead(tmp_path: Path, tokenizer: Path) -> None:
    data = opened(write(tmp_path, "text", ROWS), tokenizer)
    take(data, 1500)
    assert data.train.state(1500 - 1023)["consumed"] == 477
    for forgotten in (0, 476, 1501):
        with pytest.raises(
            ValueError, match=f"after {forgotten} windows is not remembered.*last 1024 windows until 1500"
        ):
            data.train.state(forgotten)


def test_a_resumption_reads_nothing_before_its_place(tmp_path: Path, tokenizer: Path) -> None:
    (path,) = write(tmp_path, "text", ROWS, files=1)
    data = opened(path, tokenizer)
    whole = take(data, 12)
    state = data.train.state(9)
    file = tmp_path / "0.txt"
    content = file.read_bytes()
    _, byte, line = state["position"]
    assert content[:byte].count(b"\n") == line - 1 == state["document"]
    source = TextLines([file])
    file.write_bytes(b"\xff" * byte + content[byte:])
    assert [row.number for row in source.rows(state["position"])] == list(range(line, len(ROWS) + 1))
    resumed = opened(path, tokenizer, bad_rows=0)
    resumed.train.load_state(state | {"data": resumed.train.data})
    assert same(take(resumed, 3), whole[9:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("counts", [(1, 2), (2, 1), (3, 2)])
def test_another_number_of_processes_goes_on_after_the_document(
    tmp_path: Path, tokenizer: Path, kind: str, counts: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    paths = write(tmp_path / "corpus", kind, ROWS)
    before, after = counts
    data = opened(paths, tokenizer, kind, process=(0, before))
    take(data, 1)
    state = json.loads(json.dumps(data.train.state(1)))
    reached = state["document"]
    found = []
    for index in range(after):
        train = opened(paths, tokenizer, kind, context=1, process=(index, after)).train
        with caplog.at_level(logging.WARNING):
            train.load_state(state | {"data": train.data})
        assert caplog.messages[-1] == (
            f"the data were dealt to {before} processes and are now dealt to {after}: going on after document "
            f"{reached} of epoch 0, without the rest of its window"
        )
        again = opened(paths, tokenizer, kind, context=1, process=(index, after)).train
        again.load_state(json.loads(json.dumps(train.state(1))))  # saved before a window was taken
        rest = [t for i, row in enumerate(ROWS) if i > reached and i % 2 and (i - 1) // 2 % after == index for t in row]
        windows = list(islice(train, len(rest) + 4))
        assert [token for token in inputs(windows) if token >= FIRST][: len(rest)] == rest
        assert same(list(islice(again, 5)), windows[:5])
        found += rest
    assert sorted(found) == [token for i, row in enumerate(ROWS) if i > reached and i % 2 for token in row]


def test_other_processes_before_the_first_window_begin_at_the_beginning(tmp_path: Path, tokenizer: Path) -> None:
    paths = write(tmp_path, "text", ROWS)
    state = opened(paths, tokenizer, process=(1, 2)).train.state(0)
    data = opened(paths, tokenizer)
    data.train.load_state(state)
    assert same(take(data, 5), take(opened(paths, tokenizer), 5))


def test_a_state_of_another_process_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    paths = write(tmp_path, "text", ROWS)
    state = opened(paths, tokenizer, process=(0, 2)).train.state(0)
    with pytest.raises(ValueError, match="state of process 0, expected that of process 1"):
        opened(paths, tokenizer, process=(1, 2)).train.load_state(state)


def test_a_process_that_is_none_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(ValueError, match="process is 2 of 2, expected 0 <= index < count"):
        opened(write(tmp_path, "text", ROWS), tokenizer, process=(2, 2))


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_a_process_without_a_document_stops_instead_of_searching_for_ever(
    tmp_path: Path, tokenizer: Path, packing: str
) -> None:
    paths = write(tmp_path, "text", corpora.numbered([3, 4, 5]))  # one of them is training
    assert take(opened(paths, tokenizer, packing=packing, process=(0, 2)), 1)
    with pytest.raises(ValueError, match="no training document for process 1 of 2; expected a larger corpus"):
        take(opened(paths, tokenizer, packing=packing, process=(1, 2)), 1)


def test_a_corpus_shorter_than_a_window_is_read_again_to_fill_it(tmp_path: Path, tokenizer: Path) -> None:
    data = opened(write(tmp_path, "text", corpora.numbered([1, 2])), tokenizer, context=7)
    (window,) = take(data, 1)
    assert window["input_ids"].tolist() == [4, 5, 2, 4, 5, 2, 4]
    assert data.train.state(1)["epoch"] == 2


def test_padded_examples_by_hand(tmp_path: Path, tokenizer: Path) -> None:
    data = opened(write(tmp_path, "text", corpora.numbered([1, 6, 1, 1])), tokenizer, packing="padded")
    first, second, third = take(data, 3)  # documents 1 (4 ... 9) and 3 (11)
    assert {name: x.tolist() for name, x in first.items()} == {
        "input_ids": [4, 5, 6, 7],
        "attention_mask": [1, 1, 1, 1],
        "labels": [5, 6, 7, 8],
    }
    assert {name: x.tolist() for name, x in second.items()} == {
        "input_ids": [8, 9, 0, 0],
        "attention_mask": [1, 1, 0, 0],
        "labels": [9, 2, -100, -100],
    }
    assert {name: x.tolist() for name, x in third.items()} == {
        "input_ids": [11, 0, 0, 0],
        "attention_mask": [1, 0, 0, 0],
        "labels": [2, -100, -100, -100],
    }
    assert all(x.dtype == torch.int64 for window in (first, second, third) for x in window.values())


def test_workers_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    data = opened(write(tmp_path, "text", ROWS), tokenizer)
    with pytest.raises(ValueError, match="num_workers is 1, expected 0"):
        next(iter(DataLoader(data.train, num_workers=1)))
