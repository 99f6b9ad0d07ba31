"""Tokenizers: a SentencePiece model as a fast tokenizer gives SentencePiece's own ids."""

import argparse
import json
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from plga.model.tokenizer import NoTokenizerError, load_tokenizer

CORPUS = [Path(argparse.__file__).with_name(name) for name in ("argparse.py", "textwrap.py", "optparse.py")]


def train(folder: Path, **options: Any) -> Path:
    """A small SentencePiece model with the special pieces of the published one."""
    settings = {
        "model_type": "unigram",
        "vocab_size": 800,
        "byte_fallback": True,
        "character_coverage": 1.0,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": 2,
        "eos_id": 3,
        "pad_piece": "[PAD]",
        "unk_piece": "[UNK]",
        "bos_piece": "[START]",
        "eos_piece": "[END]",
        "user_defined_symbols": ["[SEP]", "[CLS]"],
        "num_threads": 1,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        input=str(CORPUS[0]), model_prefix=str(folder / "small"), **(settings | options)
    )
    return folder / "small.model"


@pytest.fixture(scope="session", params=["small", "published"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "published":
        return request.getfixturevalue("reference") / "refinedweb-tokenizer.model"
    return train(tmp_path_factory.mktemp("sentencepiece"))


@pytest.fixture(scope="session")
def theirs(file: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


@pytest.fixture(scope="session")
def ours(file: Path) -> PreTrainedTokenizerFast:
    return load_tokenizer(file)


def agree(ours: PreTrainedTokenizerFast, theirs: sentencepiece.SentencePieceProcessor, text: str) -> None:
    ids = theirs.encode(text)
    assert ours(text).input_ids == ids, text
    assert ours.decode(ids) == theirs.decode(ids), text


TEXTS = [
    "",
    " ",
    "   ",
    "a",
    " a",
    "a ",
    "  several   spaces  inside ",
    "\ttabs\tand\nnew\n\nlines\r\n",
    "\n",
    "def f(x):\n    return {'a': x[0] ** 2, \"b\": -1e-9}  # comment\n",
    "naïve café, Ångström, ½ ² ① ﬁ ™ …",
    "e\u0301 n\u0303 o\u0323\u0302 combining",
    "日本語のテキスト 中文 한국어",
    "\u1112\u1161\u11ab\u1100\u1173\u11af decomposed Hangul, か\u3099",
    "😀 👩‍👩‍👧 🏳️‍🌈 1️⃣",
    "zero\u200bwidth, no\u00a0break, ideographic\u3000space, \ufeffmark",
    "▁ the ▁▁piece▁ of a space",
    "\x00\x01\x7f control \x1b[0m",
    "\x01",
    "½\x01\u0301",
    "～ ~ 〜",
    "[END] [PAD][START] [UNK] <0x41> </s>",
    "a [SEP] b[CLS]c [SEP][SEP]",
    "नमस्ते สวัสดี مرحبا שלום",
    "\u32ff \U0001fbf3",
]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_those_of_sentencepiece(ours: Any, theirs: Any, text: str) -> None:
    agree(ours, theirs, text)


@given(st.text())
def test_any_text(ours: Any, theirs: Any, text: str) -> None:
    # SentencePiece leaves combining marks in the order in which they stand; here they come in the canonical one.
    classes = [unicodedata.combining(character) for character in unicodedata.normalize("NFKD", text)]
    raw = [unicodedata.combining(part) for c in text for part in unicodedata.normalize("NFKD", c)]
    if classes == raw:
        agree(ours, theirs, text)


@given(st.lists(st.sampled_from([*" \t\n▁", "\u0301", "\u200d", "\x01", "a", "é", "ﬁ", "½", "[SEP]", "[END]", "日"])))
def test_any_mixture_of_what_is_special(ours: Any, theirs: Any, parts: list[str]) -> None:
    agree(ours, theirs, "".join(parts))


def test_every_kind_of_character(reference: Path) -> None:
    file = reference / "refinedweb-tokenizer.model"
    ours, theirs = load_tokenizer(file), sentencepiece.SentencePieceProcessor(model_file=str(file))
    points = [*range(0x3400), *range(0x3400, 0x110000, 97)]
    texts = [chr(point) for point in points if not 0xD800 <= point < 0xE000]
    assert ours(texts).input_ids == theirs.encode(texts)
    texts.remove("\u0344")  # two marks in one character: NFKC composes the first with what stands before, nmt_nfkc not
    between = [f"x{text}y" for text in texts]
    assert ours(between).input_ids == theirs.encode(between)


@pytest.mark.parametrize("source", CORPUS, ids=lambda path: path.name)
def test_a_corpus(ours: Any, theirs: Any, source: Path) -> None:
    text = source.read_text(encoding="utf-8")[:100_000]
    chunks = [text[i : i + 1000] for i in range(0, len(text), 1000)]
    ids = theirs.encode(chunks)
    differ = [chunk for chunk, a, b in zip(chunks, ours(chunks).input_ids, ids, strict=True) if a != b]
    # Only where the same pieces have the same score in another order.
    assert all(sorted(ours(chunk).input_ids) == sorted(theirs.encode(chunk)) for chunk in differ)
    assert len(differ) <= len(chunks) // 20
    assert ours.batch_decode(ids) == [theirs.decode(row) for row in ids]


def test_runs_of_one_character_have_the_same_pieces(ours: Any, theirs: Any) -> None:
    for character in "!-=.#*) a0_":
        for count in range(1, 40):
            text = f"x {character * count}"
            ids = ours(text).input_ids
            assert sorted(ids) == sorted(theirs.encode(text))
            assert ours.decode(ids) == theirs.decode(theirs.encode(text))


def test_special_pieces(ours: Any, tmp_path: Path) -> None:
    assert (ours.pad_token_id, ours.unk_token_id, ours.bos_token_id, ours.eos_token_id) == (0, 1, 2, 3)
    assert ours.eos_token == "[END]"
    # In a text, the name of a control piece is text; a user-defined piece is itself.
    assert 3 not in ours("[END]").input_ids
    assert ours("x [SEP]").tokens()[-1] == "[SEP]"
    word = ours("word").input_ids
    assert ours.decode([2, *word, 3], skip_special_tokens=True) == "word"
    ours.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.eos_token_id == 3
    for text in TEXTS:
        assert again(text).input_ids == ours(text).input_ids
        assert again.decode(ours(text).input_ids) == ours.decode(ours(text).input_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "bpe"}, "model_type is 'BPE', expected 'UNIGRAM'"),
        ({"normalization_rule_name": "identity"}, "normalizer is 'identity', expected 'nmt_nfkc'"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix is False, expected True"),
        ({"remove_extra_whitespaces": False}, "remove_extra_whitespaces is False, expected True"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix is True, expected False"),
    ],
)
def test_another_kind_of_sentencepiece_model(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"small.model: {message}"):
        load_tokenizer(train(tmp_path, **options))


def test_without_byte_fallback(tmp_path: Path) -> None:
    file = train(tmp_path, byte_fallback=False, vocab_size=500)
    ours, theirs = load_tokenizer(file), sentencepiece.SentencePieceProcessor(model_file=str(file))
    for text in ("plain text", "日本 x 語", "é😀é", ""):
        assert ours(text).input_ids == theirs.encode(text)


# Other kinds of tokenizer.


def byte_level(path: Path, special: list[str], size: int = 300) -> Path:
    """A bare tokenizer.json, byte-level BPE, like the demo's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS[0].read_text()], trainer)
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize(
    ("special", "ids"),
    [
        (["<pad>", "<eos>"], (0, None, 1, None)),
        (["[UNK]", "<s>", "</s>"], (None, 1, 2, 0)),
        ([], (None, None, None, None)),
    ],
)
def test_bare_tokenizer_json(tmp_path: Path, special: list[str], ids: tuple[int | None, ...]) -> None:
    file = byte_level(tmp_path / "tokenizer.json", special)
    for path in (file, tmp_path):  # a folder with nothing else is the same
        tokenizer = load_tokenizer(path)
        found = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
        assert found == ids
        assert len(tokenizer) == 300
        text = "def f(x):\n\treturn  x , 'é'\n"
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_tokenizer_of_the_reference(reference: Path) -> None:
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    assert (len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id) == (2048, 0, 1)
    # Two tokenizers lie beside the .pth files; one has as many pieces as the models.
    beside = load_tokenizer(reference / "critical.pth")
    assert beside.get_vocab() == tokenizer.get_vocab()


def test_beside_a_pth(tmp_path: Path) -> None:
    pth = tmp_path / "model.pth"
    pth.touch()
    with pytest.raises(NoTokenizerError, match=r"model\.pth: expected one .* found none; pass --tokenizer"):
        load_tokenizer(pth)
    byte_level(tmp_path / "tokenizer.json", ["<pad>"])
    assert len(load_tokenizer(pth)) == 300
    train(tmp_path)
    with pytest.raises(NoTokenizerError, match=r"found tokenizer\.json, small\.model; pass --tokenizer"):
        load_tokenizer(pth)
    assert len(load_tokenizer(pth, vocab_size=300)) == 300
    (tmp_path / "model.hparams.json").write_text(json.dumps({"input_vocab_size": 800}))
    assert len(load_tokenizer(pth)) == 800
    with pytest.raises(NoTokenizerError, match="of 7 pieces beside it, found none"):
        load_tokenizer(pth, vocab_size=7)


def test_a_folder_with_a_sentencepiece_model(tmp_path: Path) -> None:
    with pytest.raises(NoTokenizerError, match="pass --tokenizer"):
        load_tokenizer(tmp_path)
    file = train(tmp_path)
    assert load_tokenizer(tmp_path).get_vocab() == load_tokenizer(file).get_vocab()
    shutil.copy(file, tmp_path / "other.model")
    with pytest.raises(NoTokenizerError, match="pass --tokenizer"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    file = byte_level(tmp_path / "tokenizer.json", [])
    assert len(load_tokenizer(file, vocab_size=301)) == 300
    with pytest.raises(ValueError, match="300 pieces, expected at most the model's 299"):
        load_tokenizer(file, vocab_size=299)


@pytest.mark.parametrize("name", ["tokenizer.json", "small.model", "notes.txt"])
def test_broken(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        load_tokenizer(path)
    if name == "notes.txt":
        path.write_text("not a tokenizer")
    else:
        byte_level(path, []) if name == "tokenizer.json" else train(tmp_path)
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ValueError, match=f"{name}: truncated, or not a") as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)
