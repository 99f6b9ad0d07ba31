"""Names of tensors: ours and those of the published checkpoints (see docs/released.md)."""

# Applied in this order from published to ours, and in the reverse order back. Each is a plain piece of a key.
PIECES = (
    ("decoder.embedding.", "model.embed_tokens."),
    ("decoder.layernorm1.", "model.embed_norm."),
    ("decoder.dec_layers.", "model.layers."),
    (".mha1.wq.", ".self_attn.q_proj."),
    (".mha1.wk.", ".self_attn.k_proj."),
    (".mha1.wv.", ".self_attn.v_proj."),
    (".mha1.dense.", ".self_attn.o_proj."),
    (".mha1.layernorm1.", ".self_attn.operator.learner.input_norm."),
    (".mha1.reslayerAs.", ".self_attn.operator.learner.units."),
    (".mha1.plgatt_layer.Wlst", ".self_attn.operator.metric_weight"),
    (".mha1.plgatt_layer.blst", ".self_attn.operator.metric_bias"),
    (".mha1.plgatt_layer.pwlst", ".self_attn.operator.exponent"),
    (".mha1.plgatt_layer.alst", ".self_attn.operator.coupling_weight"),
    (".mha1.plgatt_layer.balst", ".self_attn.operator.coupling_bias"),
    (".denseAs.", ".blocks."),
    (".layernormA.", ".norm."),
    (".ffn.", ".mlp."),
    (".layernorm1.", ".self_attn_norm."),
    (".layernorm2.", ".mlp_norm."),
    (".gluw1.", ".gate_proj."),
    (".gluw2.", ".up_proj."),
    (".gluw3.", ".down_proj."),
    ("final_layer.", "lm_head."),
    # Where the operator is constant, as the classes in released_models.py hold it.
    ("decoder.past_G_values_status", "model.past_G_values_status"),
    ("decoder.past_G_values", "model.past_G_values"),
)


def from_released(key: str) -> str:
    """Our name of the tensor that a published checkpoint calls ``key``."""
    for released, ours in PIECES:
        key = key.replace(released, ours)
    return key


def to_released(key: str) -> str:
    """The published name of the tensor that we call ``key``."""
    for released, ours in reversed(PIECES):
        key = key.replace(ours, released)
    return key
