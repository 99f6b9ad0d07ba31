"""PLDR-LLM as a Transformers model (arXiv:2410.16703; arXiv:2608.10288)."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
    GradientCheckpointingLayer,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from plga.model.cache import PldrCache
from plga.model.chunked import ChunkedOperator
from plga.model.compat import CACHE_NAME, accepts_either_cache_name, update_cache
from plga.model.configuration import PldrConfig
from plga.model.generation import PldrGenerationMixin
from plga.model.guard_tensors import GUARD_FILE, attach_from, save_operators
from plga.model.initialization import initialize
from plga.model.inputs import (
    real_positions,
    real_tokens,
    require_blocks,
    require_fit,
    require_in_vocabulary,
    require_tokens,
)
from plga.model.linear import Linear
from plga.model.loading import HUB, CheckedLoading
from plga.model.loss import IGNORED, next_token_cross_entropy
from plga.model.masks import reversed_causal_mask, runs_reversed
from plga.model.operator import ConstantOperator, DeductiveOutputs, LayerNorm, LearnedOperator, SwiGLU
from plga.model.outputs import PldrCausalLMOutput, PldrModelOutput
from plga.ops.attention import bend
from plga.ops.chunks import Layout, bend_chunks, layout
from plga.ops.rotary import (
    COMPLEX,
    inverse_frequencies,
    rotate_half,
    rotate_interleaved,
    tables,
    turn_pairs,
    turns,
)

_SHOWN = ("output_hidden_states", "output_attentions")


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention with its probabilities in the open: [B, H, S, d] → [B, S, H, d] and [B, H, S, T]."""
    scores = query @ key.mT * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    wide = torch.promote_types(query.dtype, torch.float32)
    probabilities = nn.functional.softmax(scores, dim=-1, dtype=wide).to(query.dtype)
    dropped = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return (dropped @ value).transpose(1, 2).contiguous(), probabilities


class PldrAttention(nn.Module):
    """Power law graph attention: ordinary attention on q' = q G_LM, k, v."""

    def __init__(self, config: PldrConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = 1
        # √d rounded to float32, as published: in float64 that is a difference of 2e-8 where d is not a power of 4.
        self.scaling = 1.0 / torch.tensor(float(self.head_dim), device="cpu").sqrt().item()
        self.attention_dropout = config.attention_dropout
        self.is_causal = True
        self.rotate = rotate_interleaved if config.rope_interleaved else rotate_half
        self.q_proj = Linear(config.hidden_size, config.hidden_size)
        self.k_proj = Linear(config.hidden_size, config.hidden_size)
        self.v_proj = Linear(config.hidden_size, config.hidden_size)
        self.o_proj = Linear(config.hidden_size, config.hidden_size)
        learned = ChunkedOperator if config.gram == "chunked" else LearnedOperator
        operator = learned if config.operator == "learned" else ConstantOperator
        self.operator = operator(config, layer_idx)

    @accepts_either_cache_name
    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        token_mask: Tensor | None = None,
        cache: Cache | None = None,
        chunks: Layout | None = None,
        alignment_blocks: int | None = None,
        last_row: bool = False,
        reverse: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, DeductiveOutputs, Tensor | None]:
        """[B, S, d_model] → the same shape, attention probabilities or None, deductive outputs, alignment or None.

        With ``last_row`` the operator is built from all rows, and only the last one attends: [B, 1, d_model]. With
        ``reverse`` the rows of ``attention_mask`` are in reverse order (see masks.py).
        """
        cos, sin = position_embeddings
        heads_shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(heads_shape).transpose(1, 2)
        key = self.k_proj(hidden_states).view(heads_shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(heads_shape).transpose(1, 2)
        if torch.is_grad_enabled():
            query, key = (self.rotated(x, cos, sin) for x in (query, key))
        else:  # one call for both, as with few tokens calls take the time; for gradients either would keep the other
            query, key = self.rotated(torch.stack((query, key)), cos, sin).unbind()

        deductive = self.operator(query, token_mask if chunks is None else chunks, cache)
        alignment = None
        if alignment_blocks is not None:
            assert isinstance(self.operator, LearnedOperator)
            alignment = self.operator.alignment(query, token_mask, deductive.curvature, alignment_blocks)
        if last_row:
            query = query[:, :, -1:]
            if attention_mask is not None and attention_mask.dim() == 4:  # flash attention's has two axes
                attention_mask = attention_mask[:, :, -1:]
        if chunks is None:
            query = bend(query, deductive.curvature, check_values=False)
        else:
            query = bend_chunks(query, deductive.curvature, chunks)
        if cache is not None:
            key, value = update_cache(cache, key, value, self.layer_idx, kwargs)

        if reverse:
            query = query.flip(2)
        # Serving engines look for exactly this lookup and this call.
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        attended, probabilities = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        if reverse:
            attended = attended.flip(1)
        merged = attended.reshape(hidden_states.shape[0], query.shape[2], -1).contiguous()
        return self.o_proj(merged), probabilities, deductive, alignment

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[..., S, d] by tables that are real, or complex ones from ``turns``."""
        if cos.is_complex():
            if COMPLEX.get(x.dtype) == cos.dtype:
                return turn_pairs(x, cos, sin)
            cos, sin = cos.real, sin.imag  # autocast gave queries another dtype than the hidden states
        return self.rotate(x, cos, sin, check_values=False)


class PldrDecoderLayer(GradientCheckpointingLayer):
    """Post-norm block: h = LN(x + attention), y = LN(h + SwiGLU(h))."""

    def __init__(self, config: PldrConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = PldrAttention(config, layer_idx)
        self.self_attn_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        assert config.intermediate_size is not None  # the configuration filled it in
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)
        self.mlp_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    @accepts_either_cache_name
    def forward(self, hidden_states: Tensor, last_row: bool = False, **kwargs: Any) -> tuple[Tensor | None, ...]:
        """[B, S, d_model] → [B, S, d_model], A, A_LM, A_P, G_LM, alignment; the arguments are PldrAttention's."""
        attended, _, deductive, alignment = self.self_attn(hidden_states, last_row=last_row, **kwargs)
        if last_row:
            hidden_states = hidden_states[:, -1:]
        hidden_states = self.self_attn_norm(hidden_states + attended)
        # Flat: gradient checkpointing in its reentrant form finds no gradient in a tuple within a tuple.
        return self.mlp_norm(hidden_states + self.mlp(hidden_states)), *deductive, alignment


class PldrPreTrainedModel(CheckedLoading):
    """What every PLDR-LLM shares: its configuration, its initialization and what Transformers may do with it."""

    config: PldrConfig
    config_class = PldrConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["PldrDecoderLayer"]
    _skip_keys_device_placement = [CACHE_NAME]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": PldrDecoderLayer, "attentions": PldrAttention}

    def checkpoint_metric_learner(self, enabled: bool = True) -> None:
        """Compute the metric learner a second time in the backward pass instead of keeping what is inside it.

        Gradients stay the same, to the bit. It is a setting of this object, not of its configuration, and is not
        saved; what checkpoints whole layers is Transformers' ``gradient_checkpointing_enable``.

        Raises:
            ValueError: the operator is constant, so there is no metric learner.
        """
        operators = [module for module in self.modules() if isinstance(module, LearnedOperator)]
        if not operators:
            raise ValueError("the operator of this model is constant, expected learned: it has no metric learner")
        for operator in operators:
            operator.checkpoint_learner = enabled

    def _init_weights(self, module: nn.Module) -> None:
        initialize(module, self.config)


class PldrModel(PldrPreTrainedModel):
    """The decoder: √d_model · embedding, LayerNorm, layers. No LayerNorm at the end."""

    def __init__(self, config: PldrConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(PldrDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.gradient_checkpointing = False
        self._frequencies: dict[tuple[int, float, torch.device], Tensor] = {}
        self.post_init()

    def frequencies(self, device: torch.device) -> Tensor:
        """θ of the rotary embedding, [d/2], kept for the device that asked last: each token would make it again."""
        key = (self.config.head_dim, self.config.rope_theta, device)
        if torch.compiler.is_compiling():  # it would be one of a graph that is being traced
            return inverse_frequencies(*key)
        if key not in self._frequencies:
            with torch.inference_mode(False):  # as it outlives that mode
                made = inverse_frequencies(*key)
            if type(made) is not Tensor:
                return made
            self._frequencies = {key: made}
        return self._frequencies[key]

    @accepts_either_cache_name
    @merge_with_config_defaults
    # In mode `recompute` every row of every layer is rebuilt: hidden states of all of them, the last layer's too.
    @capture_outputs(tie_last_hidden_states=False)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_deductive: bool = False,
        alignment_blocks: int | None = None,
        last_row: bool = False,
        **kwargs: Any,
    ) -> PldrModelOutput:
        """Hidden states of the tokens given.

        Args:
            input_ids: [B, S] integers, or else ``inputs_embeds`` [B, S, d_model] (before the factor √d_model).
            attention_mask: [B, past + S], 1 at real tokens; with a constant operator also what Transformers prepared.
            position_ids: [B, S] or [1, S]; counted from the first real token of each sequence by default.
            cache: see PldrCache. With a learned operator it must be one.
            use_cache: return a cache, making one if none is given.
            output_deductive: also return A, A_LM, A_P and G_LM of every layer.
            alignment_blocks: n >= 2: also return, for every layer, how far the G_LM that each of n equal blocks of a
                sequence gives lies from the one of all of it (LearnedOperator.alignment).
            last_row: only the last row will be read, so the last layer may leave the others out.

        Raises:
            ValueError: token ids outside the vocabulary, a cache or a mask that a learned operator cannot use, blocks
                that there cannot be.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            assert input_ids is not None
            require_tokens(input_ids, self.config.vocab_size)
            inputs_embeds = self.embed_tokens(input_ids)
        learned = self.config.operator == "learned"
        if use_cache and cache is None and not self.training:
            cache = PldrCache(self.config)
        require_fit(self.config, cache, attention_mask)

        batch, new = inputs_embeds.shape[:2]
        # A paged cache has no one length, and what it needs is prepared outside.
        past = cache.get_seq_length() if isinstance(cache, Cache) else 0
        if attention_mask is not None and attention_mask.dim() == 2 and isinstance(past, int):
            known = (batch, past + new)
            if attention_mask.shape != known:
                raise ValueError(f"attention_mask is {tuple(attention_mask.shape)}, expected [B, past + S] = {known}")
        if position_ids is None:
            position_ids = real_positions(attention_mask, past, new, inputs_embeds.device)
        if alignment_blocks is not None:
            require_blocks(self.config, alignment_blocks, new, attention_mask, past)
        layer_cache = cache
        if isinstance(cache, PldrCache) and cache.mode == "recompute":
            inputs_embeds, position_ids = cache.extend_prefix(inputs_embeds, position_ids)
            past, layer_cache = 0, None
            # Only the row of the new token is read, so the last layer finishes no other, unless somebody looks inside.
            last_row = new == 1
        token_mask = real_tokens(attention_mask, past) if learned else None
        chunks = None
        if self.config.gram == "chunked":
            chunks = layout(self.config.gram_chunk, new, past, attention_mask)

        reverse = runs_reversed(self.config, cache, attention_mask, past, inputs_embeds)
        causal_mask: Any
        if reverse:
            causal_mask = reversed_causal_mask(new, past, inputs_embeds)
        else:
            causal_mask = create_causal_mask(
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=attention_mask,
                position_ids=position_ids,
                **{CACHE_NAME: layer_cache if isinstance(layer_cache, Cache) else None},
            )
        hidden_states = self.embed_norm(inputs_embeds * math.sqrt(self.config.hidden_size))
        cos, sin = tables(position_ids, self.frequencies(hidden_states.device), hidden_states.dtype)
        position_embeddings = (cos.unsqueeze(1), sin.unsqueeze(1))
        if (
            self.config.rope_interleaved
            and cos.dtype in COMPLEX
            and not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        ):
            # Once for all layers; with gradients each makes its own, or what one keeps would count as another's.
            position_embeddings = turns(*position_embeddings)
        shown = any(kwargs.get(x, getattr(self.config, x, False)) for x in _SHOWN)
        last_row = (
            last_row
            and not shown
            and chunks is None
            and layer_cache is None
            and (causal_mask is None or isinstance(causal_mask, Tensor))  # flex attention's is neither
        )

        deductive: list[DeductiveOutputs] = []
        alignment: list[Tensor] = []
        for layer in self.layers:
            hidden_states, *layer_outputs, layer_alignment = layer(
                hidden_states,
                attention_mask=causal_mask,
                position_embeddings=position_embeddings,
                token_mask=token_mask,
                chunks=chunks,
                position_ids=position_ids,
                use_cache=use_cache,
                alignment_blocks=alignment_blocks,
                last_row=last_row and layer is self.layers[-1],
                reverse=reverse,
                **{CACHE_NAME: layer_cache},
                **kwargs,
            )
            if output_deductive:
                deductive.append(DeductiveOutputs(*layer_outputs))
            if layer_alignment is not None:
                alignment.append(layer_alignment)
        if hidden_states.shape[1] != new:  # not a view where it need not be: FSDP warns of views
            hidden_states = hidden_states[:, -new:]
        return PldrModelOutput(
            last_hidden_state=hidden_states,
            deductive=tuple(deductive) if output_deductive else None,
            alignment=tuple(alignment) if alignment_blocks is not None else None,
            **{CACHE_NAME: cache},
        )


class PldrForCausalLM(PldrPreTrainedModel, PldrGenerationMixin):
    """PLDR-LLM with its untied linear head with bias."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: PldrConfig) -> None:
        super().__init__(config)
        self.model = PldrModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Transformers' ``from_pretrained``; beside a constant operator, it also reads what a guard needs."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        path = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        if path is not None and model.config.operator == "constant":
            attach_from(model, path, **{name: kwargs[name] for name in HUB if name in kwargs})
        return loaded

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, **kwargs: Any) -> None:
        """Transformers' ``save_pretrained``; it also writes what a guard needs, if the model has it."""
        if getattr(self.generation_config, "guard", None) is not None:
            # With this mark, Transformers would leave out on loading what it does not know.
            self.generation_config._from_model_config = None
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)
        if is_main_process and self.recomputing:
            save_operators(self.recomputing[0], Path(save_directory) / GUARD_FILE)

    @accepts_either_cache_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_deductive: bool = False,
        alignment_blocks: int | None = None,
        next_tokens: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> PldrCausalLMOutput:
        """Next-token logits [B, S, V]; arguments as for PldrModel.forward.

        Args:
            labels: [B, S], shifted inside; -100 is ignored. Gives ``loss``, the mean next-token cross-entropy, nats.
            logits_to_keep: how many rows from the end (0: all), or which.
            next_tokens: [B, S], labels that are shifted already. Gives the same loss in less time and memory, and no
                logits: head and loss are one function, inside this call, where DDP and FSDP expect them.
            num_items_in_batch: divide the sum of the loss by it, not by the number of targets given.

        Raises:
            ValueError: as PldrModel.forward; both kinds of labels, or ``next_tokens`` that do not fit.
        """
        if next_tokens is not None:
            if labels is not None:
                raise ValueError("expected at most one of labels and next_tokens")
            require_in_vocabulary(next_tokens.masked_fill(next_tokens == IGNORED, 0), self.config.vocab_size)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_deductive=output_deductive,
            alignment_blocks=alignment_blocks,
            **kwargs,
        )
        last_hidden_state, logits, loss = outputs.last_hidden_state, None, None
        if next_tokens is not None:
            loss = next_token_cross_entropy(last_hidden_state, self.lm_head, next_tokens, num_items_in_batch)
        else:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(last_hidden_state[:, kept])
        if labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.config.vocab_size,
                num_items_in_batch=num_items_in_batch,
                **kwargs,
            )
        return PldrCausalLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            deductive=outputs.deductive,
            alignment=outputs.alignment,
            last_hidden_state=last_hidden_state if next_tokens is not None else None,
            **{CACHE_NAME: outputs.get(CACHE_NAME)},
        )


class PldrForSequenceClassification(GenericForSequenceClassification, PldrPreTrainedModel):
    """PLDR-LLM with a classification head on the last real token."""


class PldrForTokenClassification(GenericForTokenClassification, PldrPreTrainedModel):
    """PLDR-LLM with a classification head on every token."""


class PldrForQuestionAnswering(GenericForQuestionAnswering, PldrPreTrainedModel):
    """PLDR-LLM with a span head."""

    base_model_prefix = "model"
