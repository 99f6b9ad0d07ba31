"""The operator of each chunk of a sequence, built from what comes before the chunk (experimental, a conjecture)."""

import torch
from torch import Tensor

from plga.model.cache import ChunkState, PldrCache
from plga.model.operator import DeductiveOutputs, LearnedOperator, require_finite, widened
from plga.ops.chunks import Layout, chunk_grams, sums_before


class ChunkedOperator(LearnedOperator):
    """A LearnedOperator whose G_LM, in every chunk, is built from the Gram of all real tokens before the chunk.

    The first chunk has the operator of D = 0. So no row sees its target or a later token, every row is that of its own
    prefix, and keys and values stay valid when tokens are added.
    """

    def forward(  # type: ignore[override]
        self, q: Tensor, chunks: Layout, cache: PldrCache | None
    ) -> DeductiveOutputs:
        """G_LM of each of the C chunks of this pass.

        Args:
            q: rotated queries, [B, H, S, d].
            chunks: where the tokens stand, and which of them are real.
            cache: in mode ``chunked``; it keeps what the tokens after this pass need.

        Returns:
            Deductive outputs, each [B, C, H, d, d]; ``curvature`` only where one of them was read from ``cache``.

        Raises:
            FloatingPointError: as LearnedOperator.
        """
        state = cache.chunk_state(self.layer_idx) if cache is not None else None
        read = None if state is None or chunks.begins else state.curvature.unsqueeze(1)
        with torch.autocast(q.device.type, enabled=False):
            grams = chunk_grams(widened(q), chunks)
            if state is not None:
                grams = torch.cat((grams[:, :1] + state.running.unsqueeze(1), grams[:, 1:]), dim=1)
            before = sums_before(grams, None if state is None else state.finished)
            outputs = self._outputs(before[:, : chunks.number], read, q.dtype)
        if cache is not None:
            cache.keep_chunk_state(self._after(chunks, grams, before, outputs.curvature), self.layer_idx)
        return outputs

    def _outputs(self, before: Tensor, read: Tensor | None, dtype: torch.dtype) -> DeductiveOutputs:
        """Deductive outputs for ``before`` [B, C, H, d, d], with the first G_LM, [B, 1, H, d, d], read where it is."""
        if read is not None and before.shape[1] == 1:
            return DeductiveOutputs(None, None, None, read)
        built = self.build(before if read is None else before[:, 1:])
        if not torch.compiler.is_compiling():
            require_finite(built, self.layer_idx, dtype)
        if read is None:
            return built
        return DeductiveOutputs(None, None, None, torch.cat((read, built.curvature), dim=1))

    def _after(self, chunks: Layout, grams: Tensor, before: Tensor, curvature: Tensor) -> ChunkState:
        """State of the chunk that the next real token of each sequence stands in."""
        rows = torch.arange(len(grams), device=grams.device)
        after = torch.as_tensor(chunks.after, device=grams.device)
        running = torch.cat((grams, torch.zeros_like(grams[:, :1])), dim=1)[rows, after]
        # Past the last chunk of this pass there is no G_LM yet; the next pass begins that chunk and builds it.
        return ChunkState(before[rows, after], running, curvature[rows, after.clamp(max=chunks.number - 1)])
