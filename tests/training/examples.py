"""Small data, models and recipes for the tests of training and of what is built on it."""

from typing import Any

import torch

from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.training.data.windows import Windows
from plga.training.recipe import Recipe

VOCABULARY, CONTEXT = 40, 12


def model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> PldrForCausalLM:
    """Two layers, two heads of width 4, in evaluation mode."""
    small = {
        "vocab_size": VOCABULARY,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "metric_intermediate_size": 5,
        "num_metric_units": 2,
        "max_position_embeddings": CONTEXT,
    }
    torch.manual_seed(seed)
    return PldrForCausalLM(PldrConfig(**{**small, **changes})).to(dtype).eval()


def windows(seed: int = 0, tokens: int = 2000) -> Windows:
    """A text in which every token is often followed by the next one, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (tokens,), generator=generator)
    return Windows(steps.cumsum(0) % VOCABULARY, CONTEXT, held_out=0.3)


def recipe(**changes: Any) -> Recipe:
    """Twelve steps of four windows."""
    return Recipe(**{"learning_rate": 5e-3, "warmup": 4, "steps": 20, "stop": 12, "batch": 4, **changes})
