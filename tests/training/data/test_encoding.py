"""Any Transformers tokenizer will do, and the texts decide nothing but their own tokens."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from plga.training.data import encoding
from plga.training.data.encoding import Encoder, open_tokenizer
from plga.training.data.tokenizer import train_tokenizer
from tests.training.data import corpora
from tests.training.data.corpora import END, VOCABULARY, opened, take, write


def test_what_a_tokenizer_was_saved_to_do_changes_nothing() -> None:
    tokenizer = corpora.tokenizer()
    expected = [ids.tolist() for ids in Encoder(tokenizer)(["3 4 5", "6"])]
    assert expected == [[3, 4, 5], [6]]
    tokenizer.backend_tokenizer.enable_padding(length=8)
    tokenizer.backend_tokenizer.enable_truncation(2)
    encode = Encoder(tokenizer)
    assert [ids.tolist() for ids in encode(["3 4 5", "6"])] == expected
    tokenizer(["3 4 5", "6"], padding=True, truncation=True, max_length=1)
    assert [ids.tolist() for ids in encode(["3 4 5", "6"])] == expected
    assert encode.digest() == Encoder(corpora.tokenizer()).digest()


def test_the_name_of_a_special_token_in_a_text_is_text() -> None:
    tokenizer = train_tokenizer(["def f(x): return x"], 300, 8)
    tokenizer.backend_tokenizer.encode_special_tokens = False
    text = "x = '<eos>'"
    assert tokenizer.eos_token_id in tokenizer.backend_tokenizer.encode(text).ids
    (ids,) = Encoder(tokenizer)([text])
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("at_once", [1, 2, 5, 100])
def test_one_after_the_other(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(encoding, "TEXTS", at_once)
    rows = corpora.numbered([3, 0, 5, 1, 1, 2, 4])
    assert [ids.tolist() for ids in Encoder(corpora.tokenizer()).each(iter(corpora.texts(rows)))] == rows


def test_a_tokenizer_that_is_not_a_fast_one(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(tmp_path / "bytes")
    paths = write(tmp_path / "corpus", "text", [[1], [345, 6]])
    data = opened(paths, tmp_path / "bytes", context=5)
    (window,) = take(data, 1)
    letters = [3 + byte for byte in b"345 6"]
    assert [*window["input_ids"], window["labels"][-1]] == [*letters, 1]
    encode = Encoder(data.tokenizer)
    assert data.tokenizer.eos_token_id not in encode(["</s>"])[0]
    assert encode.digest() == Encoder(ByT5Tokenizer()).digest()
    assert encode.digest() != Encoder(ByT5Tokenizer(extra_ids=3)).digest()


def test_files_that_load_tokenizer_knows(tmp_path: Path, tokenizer: Path) -> None:
    bare = tmp_path / "tokenizer.json"
    Tokenizer.from_file(str(tokenizer / "tokenizer.json")).save(str(bare))
    assert open_tokenizer(str(bare), VOCABULARY, padded=True).eos_token_id == END


@pytest.mark.parametrize(
    ("absent", "padded", "message"),
    [
        ("eos_token", False, "no eos token, expected one to end each document with"),
        ("pad_token", True, "no pad token, expected one with packing 'padded'; 'packed' needs none"),
    ],
)
def test_tokens_that_are_needed(tmp_path: Path, absent: str, padded: bool, message: str) -> None:
    corpora.tokenizer(**{absent: None}).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"^tokenizer {tmp_path}: {message}$"):
        open_tokenizer(str(tmp_path), VOCABULARY, padded)


def test_no_pad_token_is_needed_to_pack(tmp_path: Path) -> None:
    corpora.tokenizer(pad_token=None).save_pretrained(tmp_path)
    assert open_tokenizer(str(tmp_path), VOCABULARY, padded=False).pad_token_id is None


def test_ids_that_the_model_does_not_have(tmp_path: Path, tokenizer: Path) -> None:
    message = f"{tokenizer}: its largest id is 999, expected < 999, the model's vocab_size$"
    with pytest.raises(ValueError, match=message):
        open_tokenizer(str(tokenizer), 999, padded=False)


def test_what_is_no_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for name, message in {
        f"{tmp_path}/missing": "no file or folder that holds one, nor one of the hub (",
        f"{tmp_path}/tokenizer.json": "truncated, or not a tokenizer (",
        f"{tmp_path}/empty": "expected a tokenizer.json or one .model in it; set data.tokenizer to",
    }.items():
        with pytest.raises((ValueError, OSError)) as error:
            open_tokenizer(name, 300, padded=False)
        assert name in str(error.value)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_digests_tell_tokenizers_apart() -> None:
    texts = ["def f(x): return x"] * 9
    tokenizers: list[PreTrainedTokenizerFast] = [train_tokenizer(texts, size, 8) for size in (260, 265, 265)]
    first, second, third = (Encoder(tokenizer).digest() for tokenizer in tokenizers)
    assert first != second == third
