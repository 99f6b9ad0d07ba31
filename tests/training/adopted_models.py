"""Small adopted models with a tokenizer, as directories that a run can train."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import plga
from plga.model.checkpoint import save_model
from plga.training.data.tokenizer import train_tokenizer
from tests.training import runs

SMALL = {
    "vocab_size": runs.VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def base(kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """A small SDPA model of a Transformers type."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**SMALL, **changes})
    return AutoModelForCausalLM.from_config(config).eval()


def write(directory: Path, operator: str, kind: str = "llama", **changes: Any) -> Path:
    """A directory as ``plga adopt`` writes it."""
    model = plga.adopt(base(kind, **changes), operator=operator, rank=2, metric_units=2)
    tokenizer = train_tokenizer(runs.texts(), runs.VOCABULARY, runs.CONTEXT)
    save_model(model, directory, tokenizer=tokenizer)
    return directory
