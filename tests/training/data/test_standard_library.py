"""Python's own sources as a corpus: their order, and how windows are drawn from them."""

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from plga.training.data import dataset
from plga.training.data.dataset import Data, open_data
from plga.training.data.settings import DataSettings
from plga.training.data.standard_library import standard_library
from plga.training.data.windows import Windows, pack
from tests.training.data.corpora import VOCABULARY, same, take

TEXTS = [f"def function_{i}(x):\n    return x + {i}\n" for i in range(60)]
CONTEXT = 12


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the standard library."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def test_standard_library_is_read_in_the_order_of_its_paths(library: Path) -> None:
    for name in ("b.py", "a/z.py", "a.py", "a/test/x.py", "test/y.py", "__pycache__/c.py", "notes.txt"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(name)
    (library / "folder.py").mkdir()  # a folder with such a name is no module
    (library / "latin.py").write_bytes(b"# caf\xe9")
    assert list(standard_library()) == ["a.py", "a/z.py", "b.py", "# caf\ufffd"]


def test_standard_library_without_sources_is_an_error(library: Path) -> None:
    with pytest.raises(OSError, match="no Python sources"):
        list(standard_library())


def test_standard_library_of_this_python() -> None:
    texts = standard_library()
    first = [next(texts) for _ in range(5)]
    again = standard_library()
    assert first == [next(again) for _ in range(5)]
    assert any("import" in text for text in first)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "standard_library", lambda: iter(TEXTS))


def opened(process: tuple[int, int] = (0, 1), batch: int = 4, seed: int = 3, **changes: Any) -> Data:
    return open_data(DataSettings(**{"validation": 0.2, **changes}), 300, CONTEXT, seed, *process, batch)


def drawn(data: Data) -> Windows:
    return Windows(pack(TEXTS, data.tokenizer), CONTEXT, 0.2)


@pytest.mark.usefixtures("_small")
def test_the_windows_of_a_step_are_those_that_seed_and_step_draw() -> None:
    data = opened()
    assert len(data.tokenizer) == 300
    assert data.tokenizer.model_max_length == CONTEXT
    windows = drawn(data)
    for step, begin in enumerate(range(0, 20, 4)):
        batch = windows.batch(3, step, 4)
        found = take(data, 20)[begin : begin + 4]
        assert torch.equal(torch.stack([window["input_ids"] for window in found]), batch[:, :-1])
        assert torch.equal(torch.stack([window["labels"] for window in found]), batch[:, 1:])
    assert data.bad_rows == {}


@pytest.mark.usefixtures("_small")
def test_processes_share_the_windows_of_a_step() -> None:
    alone = take(opened(batch=6), 30)
    shares = [take(opened((index, 3), batch=2), 10) for index in range(3)]
    for step in range(5):
        together = [window for share in shares for window in share[2 * step : 2 * step + 2]]
        assert same(together, alone[6 * step : 6 * step + 6])


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("process", [(0, 1), (1, 2)])
def test_resumed_after_any_window_it_goes_on_with_the_same_bits(process: tuple[int, int]) -> None:
    data = opened(process)
    whole = take(data, 20)
    for consumed in range(12):
        resumed = opened(process)
        resumed.train.load_state(json.loads(json.dumps(data.train.state(consumed))))
        assert resumed.train.consumed == consumed
        assert same(take(resumed, 8), whole[consumed : consumed + 8])


@pytest.mark.usefixtures("_small")
def test_other_processes_go_on_with_the_same_step() -> None:
    alone = take(opened(batch=6), 30)
    state = opened(batch=6).train.state(12)
    shares = [opened((index, 3), batch=2) for index in range(3)]
    for share in shares:
        share.train.load_state(state)
        assert share.train.consumed == 4  # of its own, two steps
    assert same([window for share in shares for window in take(share, 2)], alone[12:18])


@pytest.mark.usefixtures("_small")
def test_validation_is_held_out_of_training() -> None:
    data = opened()
    (held_out,) = drawn(data).held_out(5)
    assert torch.equal(data.validation(5)["input_ids"], held_out[:, :-1])
    assert torch.equal(data.validation(5)["labels"], held_out[:, 1:])
    assert torch.equal(data.validation(3)["labels"], held_out[:3, 1:])
    with pytest.raises(ValueError, match=r"corpus has \d+ validation windows of 12, expected >= 10000"):
        data.validation(10_000)


@pytest.mark.usefixtures("_small")
def test_a_tokenizer_of_ones_own(tokenizer: Path) -> None:
    data = open_data(DataSettings(tokenizer=str(tokenizer), validation=0.2), VOCABULARY, CONTEXT, 0)
    assert len(data.tokenizer) == VOCABULARY
    assert next(iter(data.train))["input_ids"].max() < VOCABULARY


@pytest.mark.usefixtures("_small")
def test_the_identity_tells_draws_apart() -> None:
    same_data = [opened(), opened((1, 2), batch=2)]
    others = [opened(seed=4), opened(validation=0.3)]
    assert len({data.identity for data in same_data}) == 1
    assert len({data.identity for data in (same_data[0], *others)}) == 3
    with pytest.raises(ValueError, match="another settings; go on"):
        opened(seed=4).train.load_state(same_data[0].train.state(0))
