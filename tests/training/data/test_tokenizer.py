"""Training tokenizers: any text comes back, and the same texts give the same tokenizer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plga.model.tokenizer import load_tokenizer
from plga.training.data import encoding
from plga.training.data.tokenizer import SPECIAL_TOKENS, Kind, train_tokenizer
from plga.training.data.windows import pack

TEXTS = ["def f(x):\n    return x\n" * 5, "import os\n", "", "while True:\n    pass\n" * 5]
KINDS: tuple[Kind, ...] = ("bpe", "unigram")
TOKENIZERS = {kind: train_tokenizer(TEXTS, vocab_size=280, context=16, kind=kind) for kind in KINDS}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_special_tokens_have_the_first_ids(kind: Kind) -> None:
    tokenizer = TOKENIZERS[kind]
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    special = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert special == (0, 1, 2, 3)
    assert len(tokenizer) == len(tokenizer.get_vocab()) <= 280
    assert tokenizer.model_max_length == 16


@each_kind
@given(text=st.text())
def test_any_text_comes_back(kind: Kind, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert not set(ids) & {0, 1, 2, 3}


@each_kind
@pytest.mark.parametrize("name", SPECIAL_TOKENS)
def test_the_name_of_a_special_token_in_a_text_is_text(name: str, kind: Kind) -> None:
    tokenizer = TOKENIZERS[kind]
    text = f"x = '{name}'"
    packed = pack([text], tokenizer)
    assert (packed < 4).nonzero().flatten().tolist() == [len(packed) - 1]  # the end-of-sequence token alone
    assert tokenizer.decode(packed[:-1], skip_special_tokens=True) == text


@each_kind
def test_a_saved_tokenizer_is_the_same(kind: Kind, tmp_path: Path) -> None:
    TOKENIZERS[kind].save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "def <eos> été 世界 \U0001f600\r\n\t x"
    ids = TOKENIZERS[kind](text, add_special_tokens=False).input_ids
    assert loaded(text, add_special_tokens=False).input_ids == ids
    assert loaded.decode(ids) == text
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2, 3)


@each_kind
def test_training_a_tokenizer_is_deterministic(kind: Kind) -> None:
    again = train_tokenizer(iter(TEXTS), vocab_size=280, context=16, kind=kind)
    assert again.backend_tokenizer.to_str() == TOKENIZERS[kind].backend_tokenizer.to_str()


@each_kind
def test_it_learns_the_words_of_its_texts(kind: Kind) -> None:
    text = "def function(argument): return argument\n"
    tokenizer = train_tokenizer([text] * 50, vocab_size=300, context=16, kind=kind)
    assert {"Ġfunction", "Ġreturn", "Ġargument"} <= tokenizer.get_vocab().keys()
    assert len(tokenizer(text, add_special_tokens=False).input_ids) <= 10


@each_kind
def test_a_vocabulary_without_room_for_every_byte_is_refused(kind: Kind) -> None:
    assert len(train_tokenizer(TEXTS, vocab_size=260, context=8, kind=kind)) == 260
    with pytest.raises(ValueError, match="vocab_size is 259, expected >= 260"):
        train_tokenizer(TEXTS, vocab_size=259, context=8, kind=kind)


@each_kind
def test_few_texts_give_few_pieces(kind: Kind) -> None:
    assert 260 < len(train_tokenizer(["aaaa bbbb aaaa bbbb"], vocab_size=10_000, context=8, kind=kind)) < 300


@each_kind
def test_a_long_text_is_taken_in_parts(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(x):\n    return x if x else None\n" * 50
    whole = train_tokenizer([text], 300, 8, kind).backend_tokenizer.to_str()
    monkeypatch.setattr(encoding, "CHARACTERS", 37)
    assert train_tokenizer([text], 300, 8, kind).backend_tokenizer.to_str() == whole


@each_kind
@pytest.mark.parametrize("text", ["x" * 20_000, "▁ \t\n▁", "\x00\x01\x7f", "▅" * 50])
def test_hostile_texts_can_be_trained_on(kind: Kind, text: str) -> None:
    tokenizer = train_tokenizer([text], vocab_size=300, context=8, kind=kind)
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False, verbose=False).input_ids) == text
