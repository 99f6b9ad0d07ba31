"""A corpus that is on every machine with Python: the sources of its standard library."""

import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

_LEFT_OUT = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
SPECIAL_TOKENS = ("<pad>", "<unk>", "<bos>", "<eos>")  # ids 0 to 3


def standard_library() -> Iterator[str]:
    """Texts of the standard library's modules, without its tests, in the same order on every machine.

    Raises:
        OSError: this Python has no readable sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [p for p in root.rglob("*.py") if not _LEFT_OUT.intersection(p.relative_to(root).parts)]
    if not files:
        raise OSError(f"no Python sources below {root}: the demo trains on the standard library's")
    for file in sorted(files, key=lambda p: p.relative_to(root).as_posix()):
        yield file.read_text(encoding="utf-8", errors="replace")


def train_tokenizer(texts: Iterable[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: every text has tokens, and decoding gives the text back.

    Args:
        texts: the corpus.
        vocab_size: pieces, the four special ones and the 256 bytes among them.
        context: tokens that a model will take, written into the tokenizer.

    Raises:
        ValueError: a vocabulary too small to hold every byte.
    """
    if vocab_size < len(SPECIAL_TOKENS) + 256:
        raise ValueError(
            f"vocab_size is {vocab_size}, expected >= {len(SPECIAL_TOKENS) + 256} (special tokens and bytes)"
        )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    pad, unk, bos, eos = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=pad,
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def pack(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """All texts as one row of token ids, int64 [N], with the end-of-sequence token after each."""
    encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return torch.cat([torch.tensor([*encoding.ids, tokenizer.eos_token_id]) for encoding in encodings])


class Windows:
    """Windows of ``context + 1`` tokens (inputs and, shifted by one, targets) of a packed corpus.

    Args:
        tokens: int64 [N].
        context: S.
        held_out: share of the tokens, at the end, that training never sees.

    Raises:
        ValueError: a corpus too short for one window on either side.
    """

    def __init__(self, tokens: Tensor, context: int, held_out: float = 0.05) -> None:
        cut = int(len(tokens) * (1 - held_out))
        self.context, self.train, self.validation = context, tokens[:cut], tokens[cut:]
        if min(len(self.train), len(self.validation)) <= context + 1:
            raise ValueError(
                f"corpus has {len(tokens)} tokens, too few for training and validation windows of {context}"
            )

    def batch(self, seed: int, step: int, size: int) -> Tensor:
        """Training windows of one step, [size, context + 1]: a function of its arguments alone, so any step of a
        run can be resumed."""
        return self._draw(self.train, size, torch.Generator().manual_seed(seed * 1_000_003 + step))

    def held_out(self, seed: int, size: int) -> Tensor:
        """Validation windows, [size, context + 1]."""
        return self._draw(self.validation, size, torch.Generator().manual_seed(seed))

    def _draw(self, tokens: Tensor, size: int, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(tokens) - self.context, (size,), generator=generator)
        return tokens[starts[:, None] + torch.arange(self.context + 1)]
