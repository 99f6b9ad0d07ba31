"""Cache of a PLDR-LLM: keys, values and, per sequence, the operator G_LM (arXiv:2502.13502)."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from plga.model.configuration import MODES, PldrConfig


class PldrCacheLayer(DynamicLayer):
    """Keys and values of one layer and the G_LM, [B, H, d, d], that its sequences keep from their prompts."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.curvature: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        # Before 5.24 values start in the dtype of the keys, which would round the positions that `recompute` keeps.
        self.values: Tensor | None = torch.tensor([], dtype=value_states.dtype, device=value_states.device)

    def _map_curvature(self, function: Any) -> None:
        if self.curvature is not None:
            self.curvature = function(self.curvature)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)
        self._map_curvature(lambda g: g.index_select(0, beam_idx.to(g.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._map_curvature(lambda g: g.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._map_curvature(lambda g: g[indices])

    def offload(self) -> None:
        super().offload()
        self._map_curvature(lambda g: g.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        super().prefetch()
        self._map_curvature(lambda g: g.to(self.device, non_blocking=True))

    def crop(self, tokens_to_remove: int) -> None:
        super().crop(tokens_to_remove)
        if self.get_seq_length() == 0:  # nothing of the prompt is left, so its operator goes too
            self.curvature = None

    def reset(self) -> None:
        super().reset()
        # Dropped, not zeroed: the next prompt starts a new sequence.
        self.curvature = None
        self.keys = self.values = None
        self.is_initialized = False


class PldrCache(Cache):
    """Cache for generation with a learned operator, in one of three modes.

    ``recompute``: G is rebuilt from the whole known prefix at each step (the online contract). As every row of every
    layer then changes with each token, keys and values cannot be kept; what is kept is the prefix itself, embedded.
    ``prompt``: G is built once from the prompt and kept for that sequence, with keys and values.
    ``constant``: keys and values only. For a constant operator any Transformers cache does, this one too.

    Beam search, batch repetition and selection, and ``crop`` act on all of it. In mode ``prompt`` a crop into the
    prompt keeps the G of the whole prompt, until nothing of it is left.

    Args:
        config: of the model.
        mode: ``recompute``, ``prompt`` or ``constant``; None: what the config says.

    Raises:
        ValueError: an unknown mode, or one that the config's operator cannot run in.
    """

    def __init__(self, config: PldrConfig, mode: str | None = None) -> None:
        if mode is None:
            mode = config.operator_mode if config.operator == "learned" else "constant"
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
        if (mode == "constant") != (config.operator == "constant"):
            raise ValueError(f"mode is {mode!r}, but the operator of this model is {config.operator}")
        self.mode = mode
        count = 1 if mode == "recompute" else config.num_hidden_layers
        super().__init__(layers=[PldrCacheLayer() for _ in range(count)])

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

    def nbytes(self) -> int:
        """Bytes held: keys, values, prefix and operators."""
        tensors = [t for layer in self.layers for t in (layer.keys, layer.values, getattr(layer, "curvature", None))]
        return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
