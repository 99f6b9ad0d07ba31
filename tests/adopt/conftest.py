"""Small SDPA models of many architectures, with weights large enough that attention is far from uniform."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from plga.adopt.classes import operators
from tests.threads import one_thread

__all__ = ["one_thread"]

VOCABULARY = 97
WINDOW = 8
KERNELS = ("eager", "sdpa")
KINDS = ("constant", "learned", "low_rank")


# No end-of-sequence token, so that every generation runs to its length.
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": None,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
WINDOWED = {"head_dim": 8, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "v_head_dim": 8} | {
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
}

CONFIGS: dict[str, Callable[..., Any]] = {
    "llama": lambda **c: hf.LlamaConfig(**COMMON | c),
    "llama-multi-query": lambda **c: hf.LlamaConfig(**COMMON | {"num_key_value_heads": 1} | c),
    "mistral": lambda **c: hf.MistralConfig(**COMMON | {"head_dim": 8, "sliding_window": WINDOW} | c),
    "qwen3": lambda **c: hf.Qwen3Config(**COMMON | {"head_dim": 16} | c),
    "gemma2": lambda **c: hf.Gemma2Config(**COMMON | WINDOWED | {"attn_logit_softcapping": 2.0} | c),
    "gemma3": lambda **c: hf.Gemma3TextConfig(**COMMON | WINDOWED | c),
    "gpt_neox": lambda **c: hf.GPTNeoXConfig(**{k: v for k, v in COMMON.items() if k != "num_key_value_heads"} | c),
    "olmo2": lambda **c: hf.Olmo2Config(**COMMON | c),
    "phi3": lambda **c: hf.Phi3Config(**COMMON | c),
    "smollm3": lambda **c: hf.SmolLM3Config(**COMMON | {"no_rope_layers": [1, 0]} | c),
    "gpt2": lambda **c: hf.GPT2Config(
        **{"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        | {"pad_token_id": 0, "eos_token_id": None, "bos_token_id": None}
        | c
    ),
    "mixtral": lambda **c: hf.MixtralConfig(**COMMON | {"num_local_experts": 4, "num_experts_per_tok": 2} | c),
    "qwen3_moe": lambda **c: hf.Qwen3MoeConfig(**COMMON | EXPERTS | {"head_dim": 8, "num_experts": 4} | c),
    "gpt_oss": lambda **c: hf.GptOssConfig(**COMMON | WINDOWED | {"num_local_experts": 4} | c),  # attention sinks
    "deepseek_v3": lambda **c: hf.DeepseekV3Config(  # multi-head latent attention: keys wider than values
        **COMMON | EXPERTS | LATENT | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1} | c
    ),
}
ARCHITECTURES = list(CONFIGS)


def small(name: str, kernel: str = "eager", dtype: torch.dtype = torch.float64, **changes: Any) -> PreTrainedModel:
    """A model of an architecture, in evaluation mode, every tensor away from its trivial value; same name, same bits.

    Raises:
        ValueError: of Transformers, which has no such kernel for this model.
    """
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS[name](**changes), attn_implementation=kernel)
    scatter(model, 0.15, seed=1)
    return model.to(dtype).eval()


def small_or_skip(name: str, kernel: str, dtype: torch.dtype, **changes: Any) -> PreTrainedModel:
    """``small``; a kernel that Transformers does not offer for this model skips the test, for its reason."""
    try:
        return small(name, kernel, dtype, **changes)
    except ValueError as error:
        pytest.skip(str(error).splitlines()[0])


def scatter(module: torch.nn.Module, by: float = 0.1, seed: int = 0) -> None:
    """Move every tensor a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_((by * noise).to(parameter))


def bend(model: PreTrainedModel, by: float = 0.1) -> PreTrainedModel:
    """Move every operator away from I."""
    for index, operator in enumerate(operators(model).values()):
        scatter(operator, by, seed=100 + index)
    return model


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Random token ids without 0, the padding token."""
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows: list[Tensor], left: bool = True) -> tuple[Tensor, Tensor]:
    """Token ids and mask [B, S] of sequences of different lengths."""
    longest = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for row, sequence in enumerate(rows):
        where = slice(longest - len(sequence), longest) if left else slice(0, len(sequence))
        ids[row, where], mask[row, where] = sequence, 1
    return ids, mask


@torch.no_grad()
def everything(model: PreTrainedModel, steps: int = 4) -> list[Tensor]:
    """Logits, all hidden states, greedy tokens and their scores: padded and not, with and without a cache."""
    ids, mask = padded([tokens(9), tokens(12, seed=1)])  # past the sliding window
    found = []
    for given in (mask, None):
        outputs = model(ids, attention_mask=given, output_hidden_states=True, use_cache=False)
        found += [outputs.logits, *outputs.hidden_states]
    for use_cache in (True, False):
        outputs = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=steps,
            do_sample=False,
            use_cache=use_cache,
            output_scores=True,
            return_dict_in_generate=True,
        )
        found += [outputs.sequences, *outputs.scores]
    return found


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Whether all are the same to the bit."""
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over the largest entry of ``theirs``."""
    assert ours.shape == theirs.shape
    ours, theirs = ours.detach(), theirs.detach()
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())


def state(model: PreTrainedModel) -> Any:
    """What a refused adoption must leave as it was."""
    config = model.config
    return copy.deepcopy(
        (type(model), type(config), config.to_dict(), config._attn_implementation, model._keep_in_fp32_modules_strict)
    ), {name: module.__class__ for name, module in model.named_modules()}
