"""Keys and values that grow by a token at a time, without a copy of all that went before at each."""

import torch
from torch import Tensor

_LEAST, _SHARE = 64, 8  # spare tokens: 64, or an eighth of those there are


class Growing:
    """A tensor [B, H, S, d] kept in a buffer with room at its end."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self.length = 0  # tokens written into it

    def append(self, kept: Tensor, new: Tensor, room: int = 0) -> Tensor:
        """``kept`` with ``new`` behind it, along S: a view of the buffer, or a new tensor where gradients are recorded.

        What was returned before never changes, so whoever holds a part of it may come back to it.

        Args:
            kept: what this returned before, or any part or rearrangement of it; empty at first.
            new: [B, H, S_new, d].
            room: S to make room for, where it is known; else, and beyond it, there is some to spare.

        Raises:
            ValueError: ``kept`` is of other sequences, or in another dtype, than ``new``.
        """
        length = kept.shape[-2] if kept.numel() else 0
        if length and (kept.shape[:-2] != new.shape[:-2] or kept.dtype != new.dtype):
            raise ValueError(
                f"the cache holds {list(kept.shape)} in {kept.dtype}, expected {list(new.shape)} in {new.dtype} but "
                "for the tokens: give each sequence its own, for this model"
            )
        # Wherever gradients are recorded: queries may need them alone, and theirs need the keys as they are.
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            self.buffer = None
            return torch.cat([kept, new], dim=-2) if length else new
        total = length + new.shape[-2]
        buffer = self.buffer
        if buffer is None or not self._holds(buffer, kept, new, total):
            size = room if room >= total else total + max(_LEAST, total // _SHARE)
            with torch.inference_mode(False):  # so that it can be written later, in that mode or not
                buffer = new.new_empty((*new.shape[:-2], size, new.shape[-1]))
            if length:
                buffer[..., :length, :] = kept
        buffer.narrow(-2, length, total - length).copy_(new)
        self.buffer, self.length = buffer, total
        return buffer.narrow(-2, 0, total)

    def drop(self) -> None:
        """Let the buffer go; what it returned lives on."""
        self.buffer = None

    def _holds(self, buffer: Tensor, kept: Tensor, new: Tensor, total: int) -> bool:
        """Whether ``kept`` is all that was written into the buffer, and ``new`` can be written behind it."""
        return (
            kept.shape[-2] == self.length
            and kept.numel() > 0
            and total <= buffer.shape[-2]
            and kept.data_ptr() == buffer.data_ptr()
            and kept.stride() == buffer.stride()
            and kept.shape[:-2] == buffer.shape[:-2] == new.shape[:-2]
            and new.dtype == buffer.dtype
        )
