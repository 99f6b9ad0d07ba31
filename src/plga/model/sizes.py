"""How much a model holds: numbers in the checkpoint, and bytes that one sequence needs while it is generated."""

import torch

from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM

_PARTS = (
    ("embedding", "model.embed_tokens."),
    ("metric learner", ".operator.learner."),
    ("power law (W, b_W, P, a, b_a)", ".operator."),
    ("attention projections", ".self_attn."),
    ("feed-forward", ".mlp."),
    ("layer norms", "_norm."),
    ("head", "lm_head."),
)


def parameters_by_part(model: PldrForCausalLM) -> dict[str, int]:
    """Numbers in the checkpoint by part of the model; a part it lacks is left out."""
    counts = {name: 0 for name, _ in _PARTS}
    for key, tensor in model.state_dict().items():
        part = "constant operator (G_LM)" if key.endswith(".operator.curvature") else _part(key)
        counts[part] = counts.get(part, 0) + tensor.numel()
    return {name: count for name, count in counts.items() if count}


def _part(key: str) -> str:
    if ".self_attn_norm." in key or ".mlp_norm." in key:
        return "layer norms"
    return next(name for name, piece in _PARTS if piece in key)


def bytes_per_sequence(config: PldrConfig, tokens: int, dtype: torch.dtype) -> dict[str, int]:
    """Bytes that one sequence of ``tokens`` tokens keeps between two steps.

    G_LM is [H, d, d] a layer whatever the length: H d² numbers, not S². Learned, it is float32 or wider.

    Args:
        config: of the model.
        tokens: S.
        dtype: of keys, values and embeddings.

    Returns:
        ``KV-cache``: keys and values, all layers; ``G_LM``: of the sequence (learned) or shared by all (constant);
        and with a learned operator ``prefix``, what mode recompute keeps instead of the two (embeddings and
        positions), or ``Grams``, what mode chunked keeps beside them.
    """
    learned = config.operator == "learned"
    numbers = config.num_hidden_layers * config.num_attention_heads * config.head_dim**2
    curvature_dtype = torch.promote_types(dtype, torch.float32) if learned else dtype
    sizes = {
        "KV-cache": 2 * config.num_hidden_layers * tokens * config.hidden_size * dtype.itemsize,
        "G_LM": numbers * curvature_dtype.itemsize,
    }
    if config.gram == "chunked":
        sizes["Grams"] = 2 * sizes["G_LM"]
    elif learned:
        sizes["prefix (recompute)"] = tokens * (config.hidden_size * dtype.itemsize + torch.int64.itemsize)
    return sizes
