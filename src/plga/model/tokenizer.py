"""Tokenizers of published and own checkpoints, as fast Transformers tokenizers."""

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from plga.model.seal import SEAL, check_seal

# Names under which a bare tokenizer.json may hold its special pieces.
_SPECIAL = {
    "pad_token": ("<pad>", "[PAD]", "<|pad|>"),
    "bos_token": ("<bos>", "<s>", "[START]", "[BOS]", "<|startoftext|>"),
    "eos_token": ("<eos>", "</s>", "[END]", "[EOS]", "<|endoftext|>"),
    "unk_token": ("<unk>", "[UNK]"),
}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # SentencePiece's types of pieces
# What the normalizer nmt_nfkc does beyond NFKC: characters it deletes, and characters it reads as a space.
_DELETED = r"[\x{01}-\x{08}\x{0B}\x{0E}-\x{1F}\x{7F}\x{8F}\x{9F}]+"
_SPACES = (
    r"[\x{09}\x{0A}\x{0C}\x{0D}\x{20}\x{1680}\x{200B}\x{200C}\x{200E}\x{200F}\x{2028}\x{2029}\x{2581}\x{FEFF}\x{FFFD}]+"
)
# Compatibility characters that it knows and that the NFKC of the tokenizers library is too old to know.
_NEW = {"㋿": "令和", "\uab69": "\u028d", "\U0001f16c": "MR"} | {chr(0x1FBF0 + i): str(i) for i in range(10)}


class NoTokenizerError(FileNotFoundError):
    """There is no tokenizer, or more than one that fits."""


def load_tokenizer(path: str | Path, vocab_size: int | None = None) -> PreTrainedTokenizerFast:
    """Load a tokenizer.

    Args:
        path: a directory with a Transformers tokenizer, a ``tokenizer.json``, a SentencePiece ``.model`` (unigram), or
            a published ``.pth``: the tokenizer.json or .model beside it, if exactly one fits.
        vocab_size: of the model. A tokenizer with more pieces is refused; beside a ``.pth``, only one with exactly so
            many pieces fits. For a ``.pth`` None means: what its ``.hparams.json`` says.

    Raises:
        ValueError: not a tokenizer, or one with more pieces than ``vocab_size``; or a sealed directory in which
            anything but the weights, which are not looked at here, differs from its seal.
        NoTokenizerError: a directory without one, or a ``.pth`` that has none or more than one that fits beside it.
        OSError: missing or unreadable.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or directory, expected a tokenizer")
    if path.suffix == ".pth":
        return _beside(path, vocab_size)
    if os.path.lexists(path / SEAL):  # whether there has to be one is asked of the model: a tokenizer alone has none
        check_seal(path, weights=False)
    tokenizer = _load(path)
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ValueError(f"{path}: {len(tokenizer)} pieces, expected at most the model's {vocab_size}")
    return tokenizer


def name_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Let a model whose checkpoint names no padding, first or last token take those of ``tokenizer``."""
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(model.config, name) is None:
            setattr(model.config, name, getattr(tokenizer, name))
            setattr(model.generation_config, name, getattr(tokenizer, name))


def _load(path: Path) -> PreTrainedTokenizerFast:
    try:
        if path.is_file() and path.suffix == ".model":
            return from_sentencepiece(path)
        folder, file = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
        if file.name == "tokenizer.json" and (folder / "tokenizer_config.json").is_file():
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if not file.is_file():
            models_here = sorted(folder.glob("*.model"))
            if len(models_here) == 1:
                return from_sentencepiece(models_here[0])
            raise NoTokenizerError(f"{folder}: expected a tokenizer.json or one .model in it; pass --tokenizer")
        return _from_json(file)
    except OSError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path}: truncated, or not a tokenizer ({' '.join(str(error).split())[:100]})") from error


def _from_json(file: Path) -> PreTrainedTokenizerFast:
    """A bare tokenizer.json: its special pieces are told apart by their names."""
    tokenizer = Tokenizer.from_file(str(file))
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    names = {
        role: name
        for role, candidates in _SPECIAL.items()
        if (name := next((name for name in candidates if name in special), None)) is not None
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)


def _beside(path: Path, vocab_size: int | None) -> PreTrainedTokenizerFast:
    """The one tokenizer beside a ``.pth``."""
    hparams = path.with_suffix(".hparams.json")
    if vocab_size is None and hparams.is_file():
        vocab_size = json.loads(hparams.read_text(encoding="utf-8")).get("input_vocab_size")
    files = [file for file in (path.parent / "tokenizer.json", *sorted(path.parent.glob("*.model"))) if file.is_file()]
    fitting = [(file, tokenizer) for file in files if vocab_size in (None, len(tokenizer := _load(file)))]
    if len(fitting) != 1:
        pieces = "" if vocab_size is None else f" of {vocab_size} pieces"
        names = ", ".join(file.name for file, _ in fitting) or "none"
        raise NoTokenizerError(
            f"{path}: expected one tokenizer.json or .model{pieces} beside it, found {names}; pass --tokenizer"
        )
    return fitting[0][1]


def from_sentencepiece(file: str | Path) -> PreTrainedTokenizerFast:
    """A SentencePiece unigram model as a fast tokenizer whose ids are those of SentencePiece's own ``encode``.

    As in SentencePiece, the name of a control piece inside a text is text, not the piece. What differs: combining
    marks in a non-canonical order come out in the canonical one; some 300 rare characters that the table of a newer
    SentencePiece maps stay as they are (the published model has the older table); and where two orders of the same
    pieces have the same score (runs of one character), SentencePiece's choice hangs on float32 rounding and this
    one's does not.

    Args:
        file: ``.model``, normalized by ``nmt_nfkc`` with the default treatment of spaces.

    Raises:
        ValueError: not such a model; what it has instead is named.
        OSError: missing or unreadable.
    """
    # Imported here, because only this format needs protobuf; and by name, because neither package is typed.
    messages = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    proto = messages.ModelProto()
    try:
        proto.ParseFromString(Path(file).read_bytes())
    except decode_error as error:
        raise ValueError(f"{file}: truncated, or not a SentencePiece model") from error
    _check(file, proto)
    trainer = proto.trainer_spec
    named = {
        "pad_token": trainer.pad_id,
        "bos_token": trainer.bos_id,
        "eos_token": trainer.eos_id,
        "unk_token": trainer.unk_id,
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=_unigram(proto),
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        **{role: proto.pieces[index].piece for role, index in named.items() if index >= 0},
    )


def _check(file: str | Path, proto: Any) -> None:
    """Refuse what ``_unigram`` would get wrong."""
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    found = {
        "model_type": (trainer.ModelType.Name(trainer.model_type), "UNIGRAM"),
        "normalizer": (normalizer.name, "nmt_nfkc"),
        "add_dummy_prefix": (normalizer.add_dummy_prefix, True),
        "remove_extra_whitespaces": (normalizer.remove_extra_whitespaces, True),
        "escape_whitespaces": (normalizer.escape_whitespaces, True),
        "treat_whitespace_as_suffix": (trainer.treat_whitespace_as_suffix, False),
    }
    if not proto.pieces:
        raise ValueError(f"{file}: no pieces, expected a SentencePiece model")
    for name, (value, expected) in found.items():
        if value != expected:
            raise ValueError(f"{file}: {name} is {value!r}, expected {expected!r}")


def _unigram(proto: Any) -> Tokenizer:
    """The tokenizers pipeline of a SentencePiece unigram model."""
    # Control, unknown and byte pieces are never found in a text. The library has no such notion, so they get a score
    # below that of any other way to write their names (in letters that are pieces themselves).
    worst = min(piece.score for piece in proto.pieces if piece.type == _NORMAL)
    found = (_NORMAL, _USER_DEFINED)
    vocabulary = [(p.piece, p.score if p.type in found else worst * (len(p.piece) + 1)) for p in proto.pieces]
    tokenizer = Tokenizer(
        models.Unigram(vocabulary, unk_id=proto.trainer_spec.unk_id, byte_fallback=proto.trainer_spec.byte_fallback)
    )
    # Not normalizers.Precompiled with the model's own table: it drops or misplaces characters of a grapheme cluster.
    # U+FF5E is the one character that nmt_nfkc keeps and NFKC changes: U+0001, deleted anyway, keeps its place.
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("\x01", "\x02"),
            normalizers.Replace("～", "\x01"),
            normalizers.NFKC(),
            normalizers.Replace("\x01", "～"),
            *(normalizers.Replace(old, new) for old, new in _NEW.items()),
            normalizers.Replace(Regex(_DELETED), ""),
            normalizers.Replace(Regex(_SPACES), " "),
            normalizers.Replace(Regex(r"\A | \z"), ""),
            normalizers.Replace(" ", "▁"),
            normalizers.Prepend("▁"),
        ]
    )
    user_defined = sorted((p.piece for p in proto.pieces if p.type == _USER_DEFINED), key=len, reverse=True)
    if user_defined:
        pattern = Regex("|".join(re.escape(piece) for piece in user_defined))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer
