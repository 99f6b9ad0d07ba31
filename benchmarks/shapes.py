"""The peer that the speed benchmarks share."""

from transformers import LlamaConfig, LlamaForCausalLM

from plga.model.configuration import PldrConfig


def llama(config: PldrConfig) -> LlamaForCausalLM:
    """The model that a user would take instead of a PLDR-LLM with ``config``.

    It has every bias that ours has but the head's, which Llama lacks.
    """
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            max_position_embeddings=config.max_position_embeddings,
            attention_bias=True,
            mlp_bias=True,
        )
    )
