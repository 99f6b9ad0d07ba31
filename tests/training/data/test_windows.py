"""Windows from memory: separation of training and validation, and what a batch depends on."""

import pytest
import torch

from plga.training.data import encoding
from plga.training.data.tokenizer import train_tokenizer
from plga.training.data.windows import Windows, pack

TEXTS = ["def f(x):\n    return x\n" * 5, "import os\n", "", "while True:\n    pass\n" * 5]
TOKENIZER = train_tokenizer(TEXTS, vocab_size=280, context=16)


@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_pack_puts_the_end_token_after_each_text(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(encoding, "TEXTS", at_once)
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
