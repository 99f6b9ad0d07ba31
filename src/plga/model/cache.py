"""Cache of a PLDR-LLM: keys, values and, per sequence, the operator G_LM (arXiv:2502.13502)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from plga.model.configuration import MODES, PldrConfig, require_mode
from plga.model.growing import Growing

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plga.model.seal import SealPolicy


class ChunkState(NamedTuple):
    """What the chunk that the next token of each sequence stands in needs; each [B, H, d, d].

    ``finished`` and ``running``: Grams of the real tokens before that chunk and in it; ``curvature``: its G_LM, which
    does not count before its first token.
    """

    finished: Tensor
    running: Tensor
    curvature: Tensor


class PldrCacheLayer(DynamicLayer):
    """Keys and values of one layer; and the G_LM, [B, H, d, d], kept from the prompts, or the state of the chunks.

    Args:
        room: tokens that there will be, where that is known.
    """

    keys: Tensor | None
    values: Tensor | None

    def __init__(self, room: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.room = room
        self._growing = (Growing(), Growing())
        self.curvature: Tensor | None = None
        self.chunks: ChunkState | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        # Before 5.24 values start in the dtype of the keys, which would round the positions that `recompute` keeps.
        self.values = torch.tensor([], dtype=value_states.dtype, device=value_states.device)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        keys, values = self._growing
        self.keys = keys.append(self.keys, key_states, self.room)
        self.values = values.append(self.values, value_states, self.room)
        return self.keys, self.values

    def _map_operator(self, function: Any) -> None:
        if self.curvature is not None:
            self.curvature = function(self.curvature)
        if self.chunks is not None:
            self.chunks = ChunkState(*map(function, self.chunks))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._map_operator(lambda g: g.index_select(0, beam_idx.to(g.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._map_operator(lambda g: g.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._map_operator(lambda g: g[indices])

    def offload(self) -> None:
        super().offload()
        for growing in self._growing:
            growing.drop()
        self._map_operator(lambda g: g.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        super().prefetch()
        self._map_operator(lambda g: g.to(self.device, non_blocking=True))

    def crop(self, tokens_to_remove: int) -> None:
        length = self.get_seq_length()
        # A positive number, which newer versions refuse, is the length to be left.
        left = min(tokens_to_remove, length) if tokens_to_remove > 0 else length + tokens_to_remove
        if self.chunks is not None and 0 < left < length:
            raise ValueError(
                f"crop would leave {left} of {length} tokens, expected all or none: mode 'chunked' keeps sums over "
                "tokens, of which none can be taken back; copy the cache before such tokens instead"
            )
        super().crop(tokens_to_remove)
        if self.get_seq_length() == 0:  # nothing of the prompt is left, so its operator goes too
            self.curvature = self.chunks = None

    def reset(self) -> None:
        super().reset()
        # Dropped, not zeroed: the next prompt starts a new sequence.
        self.curvature = self.chunks = None
        self.keys = self.values = None
        self._growing = (Growing(), Growing())
        self.is_initialized = False


class PldrCache(Cache):
    """Cache for generation with a learned operator, in one of four modes.

    ``recompute``: G is rebuilt from the whole known prefix at each step (the online contract). As every row of every
    layer then changes with each token, keys and values cannot be kept; what is kept is the prefix itself, embedded.
    ``prompt``: G is built once from the prompt and kept for that sequence, with keys and values.
    ``chunked``: for a chunked Gram, whose rows never change: keys and values, the Gram of all finished chunks, the Gram
    of the running chunk, and its G, which is built anew once a chunk. Equal to one pass over the whole sequence.
    ``constant``: keys and values only. For a constant operator any Transformers cache does, this one too.

    Beam search, batch repetition and selection, and ``crop`` act on all of it. In mode ``prompt`` a crop into the
    prompt keeps the G of the whole prompt, until nothing of it is left; in mode ``chunked`` it removes everything or
    nothing, as a sum over tokens gives none back.

    Args:
        config: of the model.
        mode: one of MODES that the operator can run in; None: what the config says.
        room: tokens that there will be, prompt included, where that is known: memory for so many is taken at once.

    Raises:
        ValueError: an unknown mode, or one that the config's operator cannot run in.
    """

    def __init__(self, config: PldrConfig, mode: str | None = None, room: int = 0) -> None:
        if mode is None:
            mode = config.operator_mode if config.operator == "learned" else "constant"
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
        require_mode(config, mode, f"mode is {mode!r}")
        self.mode = mode
        count = 1 if mode == "recompute" else config.num_hidden_layers
        super().__init__(layers=[PldrCacheLayer(room) for _ in range(count)])

    def extend_prefix(self, embeddings: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Append embedded tokens to the prefix and return all of it (mode ``recompute``).

        Args:
            embeddings: [B, S_new, d_model].
            positions: [B, S_new] integer positions.

        Returns:
            Embeddings [B, S, d_model] and positions [B, S] of the whole prefix.
        """
        positions = positions.expand(embeddings.shape[:2])
        kept, kept_positions = self.layers[0].update(embeddings.unsqueeze(1), positions[:, None, :, None])
        return kept.squeeze(1), kept_positions[:, 0, :, 0]

    def curvature(self, layer_idx: int) -> Tensor | None:
        """G_LM that layer ``layer_idx`` kept from the prompt, [B, H, d, d], or None before the prompt."""
        layer = self.layers[layer_idx]
        return layer.curvature if isinstance(layer, PldrCacheLayer) else None

    def keep_curvature(self, curvature: Tensor, layer_idx: int) -> None:
        """Keep G_LM, [B, H, d, d], for the sequences of this cache."""
        layer = self.layers[layer_idx]
        assert isinstance(layer, PldrCacheLayer)
        layer.curvature = curvature

    def chunk_state(self, layer_idx: int) -> ChunkState | None:
        """What mode ``chunked`` kept for the next token of layer ``layer_idx``, or None before the first."""
        layer = self.layers[layer_idx]
        return layer.chunks if isinstance(layer, PldrCacheLayer) else None

    def keep_chunk_state(self, state: ChunkState, layer_idx: int) -> None:
        """Keep what the next token needs."""
        layer = self.layers[layer_idx]
        assert isinstance(layer, PldrCacheLayer)
        layer.chunks = state

    def save(
        self,
        path: str | Path,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        input_ids: Tensor,
        key: str | Path | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the cache of a prompt, or of the beginning of one, as a safetensors file, whole or not at all.

        Args:
            model, tokenizer, input_ids: what it was computed from; ``input_ids`` is [B, S], none of it padding. Their
                hashes, dtype and mode go into the file, with the hash of every tensor.
            key: private key that signs all this.
            overwrite: replace a file that is there.

        Raises:
            ValueError: the cache does not hold S tokens of B sequences of this model, or no such key.
            FileExistsError: the file exists and ``overwrite`` is False.
            OSError: a full disk, and whatever else the file system says.
        """
        from plga.model.prefix import save_prefix  # which needs this class

        save_prefix(self, path, model, tokenizer, input_ids, key, overwrite)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        input_ids: Tensor,
        mode: str | None = None,
        seal: "SealPolicy | None" = None,
    ) -> "PldrCache":
        """Read a cache that ``save`` wrote, on the device of ``model``, for exactly what it was computed from.

        Args:
            model, tokenizer, input_ids: as for ``save``.
            mode: that the cache has to be in; None: whichever it is in.
            seal: keys that are trusted, and whether there has to be a signature; None: as PLGA_TRUST says.

        Raises:
            ValueError: it belongs to another model, tokenizer, prompt, dtype or mode, a tensor of it was changed, or
                its signature is missing or another one: what differs is named.
            OSError: missing or unreadable.
        """
        from plga.model.prefix import load_prefix  # which needs this class

        return load_prefix(path, model, tokenizer, input_ids, mode, seal)

    def nbytes(self) -> int:
        """Bytes held of the sequences: keys, values, prefix, operators and Grams."""
        tensors = [
            t
            for layer in self.layers
            if isinstance(layer, PldrCacheLayer)
            for t in (layer.keys, layer.values, layer.curvature, *(layer.chunks or ()))
        ]
        return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
