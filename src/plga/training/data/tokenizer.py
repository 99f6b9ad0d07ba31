"""Tokenizers of any text: byte-level, so that decoding the tokens of a text gives the text back."""

import importlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from plga.training.data.encoding import cut

SPECIAL_TOKENS = ("<pad>", "<unk>", "<bos>", "<eos>")  # ids 0 to 3
Kind = Literal["bpe", "unigram"]
_BETWEEN = "▁"  # for SentencePiece a space, which no piece crosses; no letter that spells a byte


def train_tokenizer(texts: Iterable[str], vocab_size: int, context: int, kind: Kind = "bpe") -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer; the same texts give the same one.

    The name of a special token inside a text is text, not that token.

    Args:
        texts: the corpus, read once; in memory are its distinct words.
        vocab_size: pieces at most, the four special ones and the 256 bytes among them.
        context: tokens that a model will take, written into the tokenizer.
        kind: byte-pair encoding, or the unigram language model of the published tokenizers.

    Raises:
        ValueError: a vocabulary too small to hold every byte.
    """
    if vocab_size < len(SPECIAL_TOKENS) + 256:
        raise ValueError(
            f"vocab_size is {vocab_size}, expected >= {len(SPECIAL_TOKENS) + 256} (special tokens and bytes)"
        )
    parts = (part for text in texts for part, _ in cut(text))
    tokenizer = _bpe(parts, vocab_size) if kind == "bpe" else _unigram(parts, vocab_size)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.encode_special_tokens = True
    pad, unk, bos, eos = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        model_max_length=context,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def _bytes() -> Any:
    """Words of a text, each byte of theirs spelled as one printable letter."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _bytes()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    # SentencePiece's trainer, because that of the tokenizers library adds up in the random order of a hash table: it
    # ends in another vocabulary each time.
    words: Counter[str] = Counter(pre_tokenizers.ByteLevel.alphabet())  # every byte once, so that every byte is a piece
    for text in texts:
        words.update(word for word, _ in _bytes().pre_tokenize_str(text))
    pad, unk, bos, eos = SPECIAL_TOKENS
    written = io.BytesIO()
    sentencepiece: Any = importlib.import_module("sentencepiece")  # not typed
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_rows(words),
        input_format="tsv",
        model_writer=written,
        model_type="unigram",
        vocab_size=vocab_size + 1,  # that between words goes again
        hard_vocab_limit=False,  # a small corpus has fewer pieces
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        pad_piece=pad,
        unk_piece=unk,
        bos_piece=bos,
        eos_piece=eos,
        # The words are as they are to be: nothing is normalized, left out or split.
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [(model.id_to_piece(index), model.get_score(index)) for index in range(len(model))]
    pieces = [(piece, score) for piece, score in pieces if piece != _BETWEEN]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=SPECIAL_TOKENS.index(unk), byte_fallback=False))
    tokenizer.pre_tokenizer = _bytes()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _rows(words: Counter[str]) -> Iterator[str]:
    """Words and counts as the trainer reads them, in a fixed order.

    It takes each row twice and only considers what repeats and what different letters follow, the end of a row being
    one. Between words of the same first letter that would leave whole words out, hence the rows between.
    """
    for word, count in sorted(words.items()):
        yield f"{word}\t{count}"
        yield f"{_BETWEEN}\t1"
