"""Windows drawn at random from a corpus that is held in memory."""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from plga.training.data.encoding import Encoder


def pack(texts: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """All texts as one row of token ids, int64 [N], with the end-of-sequence token after each."""
    end = np.array([tokenizer.eos_token_id], dtype=np.int32)
    parts = [part for ids in Encoder(tokenizer).each(texts) for part in (ids, end)]
    return torch.from_numpy(np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int64))


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
