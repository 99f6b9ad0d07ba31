"""A corpus that is on every machine with Python: the sources of its standard library."""

import hashlib
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
    files = [p for p in root.rglob("*.py") if p.is_file() and not _LEFT_OUT.intersection(p.relative_to(root).parts)]
    if not files:
        raise OSError(f"no Python sources below {root}: the demo trains on the standard library's")
    for file in sorted(files, key=lambda p: p.relative_to(root).as_posix()):
        yield file.read_text(encoding="utf-8", errors="replace")


def train_tokenizer(texts: Iterable[str], vocab_size: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE: decoding the tokens of any text gives the text back.

    The name of a special token inside a text is text, not that token.

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
    bpe.encode_special_tokens = True
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
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def pack(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """All texts as one row of token ids, int64 [N], with the end-of-sequence token after each."""
    encodings = tokenizer.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
    ids = [token for encoding in encodings for token in (*encoding.ids, tokenizer.eos_token_id)]
    return torch.tensor(ids, dtype=torch.int64)


class Windows:
    """Windows of ``context + 1`` tokens (inputs and, shifted by one, targets) of a packed corpus.

    Args:
        tokens: int64 [N].
        context: S.
        held_out: share of the tokens, at the end, that training never sees.

    Attributes:
        digest: tells this data from other data.

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
        self.digest = hashlib.sha256(repr((context, held_out)).encode() + tokens.numpy().tobytes()).hexdigest()[:16]

    def batch(self, seed: int, step: int, size: int) -> Tensor:
        """Training windows of one step, [size, context + 1]: a function of its arguments alone, so any step of a
        run can be resumed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(len(self.train) - self.context, (size,), generator=generator)
        return self.train[starts[:, None] + torch.arange(self.context + 1)]

    def held_out(self, *sizes: int) -> tuple[Tensor, ...]:
        """Sets of validation windows, one of each size, [size, context + 1]: no token is in two windows.

        Raises:
            ValueError: a corpus too short for so many.
        """
        width = self.context + 1
        count = len(self.validation) // width
        if sum(sizes) > count:
            raise ValueError(f"corpus has {count} validation windows of {self.context}, expected >= {sum(sizes)}")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: sum(sizes)]
        return self.validation[: count * width].view(count, width)[order].split(sizes)
