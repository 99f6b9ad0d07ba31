"""The corpus: order, round trip, separation of training and validation."""

import sysconfig
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.training.corpus import SPECIAL_TOKENS, Windows, pack, standard_library, train_tokenizer

TEXTS = ["def f(x):\n    return x\n" * 5, "import os\n", "", "while True:\n    pass\n" * 5]
TOKENIZER = train_tokenizer(TEXTS, vocab_size=280, context=16)


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


def test_special_tokens_have_the_first_ids() -> None:
    assert TOKENIZER.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    special = (TOKENIZER.pad_token_id, TOKENIZER.unk_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id)
    assert special == (0, 1, 2, 3)
    assert len(TOKENIZER) <= 280
    assert TOKENIZER.model_max_length == 16


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text
    assert not set(ids) & {0, 1, 2, 3}


@pytest.mark.parametrize("name", SPECIAL_TOKENS)
def test_the_name_of_a_special_token_in_a_text_is_text(name: str, tmp_path: Path) -> None:
    text = f"x = '{name}'"
    packed = pack([text], TOKENIZER)
    assert (packed < 4).nonzero().flatten().tolist() == [len(packed) - 1]  # the end-of-sequence token alone
    assert TOKENIZER.decode(packed[:-1], skip_special_tokens=True) == text


def test_training_a_tokenizer_is_deterministic() -> None:
    again = train_tokenizer(iter(TEXTS), vocab_size=280, context=16)
    assert again.backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()


def test_a_vocabulary_without_room_for_every_byte_is_refused() -> None:
    assert len(train_tokenizer(TEXTS, vocab_size=260, context=8)) == 260
    with pytest.raises(ValueError, match="vocab_size is 259, expected >= 260"):
        train_tokenizer(TEXTS, vocab_size=259, context=8)


def test_pack_puts_the_end_token_after_each_text() -> None:
    packed = pack(TEXTS, TOKENIZER)
    pieces = [TOKENIZER(text, add_special_tokens=False).input_ids for text in TEXTS]
    assert packed.tolist() == [token for piece in pieces for token in (*piece, TOKENIZER.eos_token_id)]
    assert packed.dtype == torch.int64
    assert pack([], TOKENIZER).shape == (0,)


def test_no_window_of_training_reaches_into_validation() -> None:
    windows = Windows(torch.arange(1000), context=9, held_out=0.1)
    drawn = torch.cat([windows.batch(seed=0, step=step, size=50) for step in range(50)])
    assert drawn.min() == 0
    assert drawn.max() == 899  # every training token can be drawn, and no other
    held_out = torch.cat(windows.held_out(5, 5))
    assert held_out.min() >= 900
    assert (drawn[:, 1:] - drawn[:, :-1] == 1).all()  # consecutive tokens
    assert drawn.shape == (2500, 10)


def test_held_out_windows_share_no_token() -> None:
    windows = Windows(torch.arange(1000), context=9, held_out=0.1)
    sets = windows.held_out(3, 4, 2)
    assert [len(windows) for windows in sets] == [3, 4, 2]
    tokens = torch.cat(sets).flatten()
    assert len(tokens.unique()) == len(tokens)
    assert all(torch.equal(a, b) for a, b in zip(sets, windows.held_out(3, 4, 2), strict=True))
    with pytest.raises(ValueError, match="has 10 validation windows of 9, expected >= 11"):
        windows.held_out(10, 1)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    first, second = (Windows(torch.arange(1000), context=9) for _ in range(2))
    first.batch(0, 0, 4), torch.rand(5)  # nothing drawn before matters
    assert torch.equal(first.batch(3, 7, 4), second.batch(3, 7, 4))
    others = [first.batch(3, 8, 4), first.batch(4, 7, 4)]
    assert not any(torch.equal(first.batch(3, 7, 4), other) for other in others)


@pytest.mark.parametrize(("tokens", "held_out"), [(0, 0.05), (100, 0.05), (100, 0.95), (100, 0.0), (100, 1.0)])
def test_a_corpus_too_short_for_a_window_on_either_side_is_refused(tokens: int, held_out: float) -> None:
    with pytest.raises(ValueError, match=f"corpus has {tokens} tokens, too few"):
        Windows(torch.arange(tokens), context=9, held_out=held_out)


def test_the_digest_tells_data_apart() -> None:
    tokens = torch.arange(200)
    same, other = Windows(tokens.clone(), 9, 0.2), tokens.clone()
    other[-1] = 0
    assert Windows(tokens, 9, 0.2).digest == same.digest
    assert len({same.digest, Windows(other, 9, 0.2).digest, Windows(tokens, 8, 0.2).digest}) == 3
