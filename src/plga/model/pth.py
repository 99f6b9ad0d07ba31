"""Published hyperparameters of a ``.pth``, which holds tensors only (arXiv:2410.16703, arXiv:2502.13502)."""

import re
from pathlib import Path

from torch import Tensor

from plga.model.released import VALUES

# What the published scripts take for granted.
PUBLISHED_CONTEXT = 1024
PUBLISHED_VOCABULARY = 32000

# The published hyperparameter names, and ours.
HPARAMS = {
    "num_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "num_heads": "num_attention_heads",
    "dff": "intermediate_size",
    "num_reslayerA": "num_metric_units",
    "num_denseA": "num_metric_blocks",
    "A_dff": "metric_intermediate_size",
    "input_vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
}


def infer(path: Path, state: dict[str, Tensor]) -> dict[str, int]:
    """Published hyperparameters of the model that these tensors are.

    Args:
        path: of the file, for the error.
        state: tensors by published name.

    Raises:
        ValueError: a tensor that tells a number is missing, or has another number of axes.
    """

    def size(name: str, axes: int, axis: int) -> int:
        if name not in state:
            raise ValueError(f"{path}: missing: {name}; expected the tensors of a PLDR-LLM")
        if state[name].dim() != axes:
            raise ValueError(f"{path}: {name} is {list(state[name].shape)}, expected {axes} axes")
        return state[name].shape[axis]

    def count(pattern: str) -> int:
        return len({match[1] for match in (re.match(pattern, name) for name in state) if match})

    layer = "decoder.dec_layers.0."
    unit = f"{layer}mha1.reslayerAs.0."
    shape = {
        "input_vocab_size": size("decoder.embedding.weight", 2, 0),
        "d_model": size("decoder.embedding.weight", 2, 1),
        "num_layers": count(r"decoder\.dec_layers\.(\d+)\."),
        "dff": size(f"{layer}ffn.gluw1.weight", 2, 0),
        "max_seq_len": PUBLISHED_CONTEXT,
    }
    if VALUES in state:
        return shape | {"num_heads": size(VALUES, 6, 3)}
    return shape | {
        "num_heads": size(f"{layer}mha1.plgatt_layer.Wlst", 3, 0),
        "num_reslayerA": count(re.escape(f"{layer}mha1.reslayerAs.") + r"(\d+)\."),
        "num_denseA": count(re.escape(f"{unit}denseAs.") + r"(\d+)\."),
        "A_dff": size(f"{unit}denseAs.0.gluw1.weight", 2, 0),
    }
