"""Sizes: parameters by part and bytes by hand, and against what generation really holds."""

from pathlib import Path

import pytest
import torch

from plga.collapse.freeze import freeze
from plga.model.cache import PldrCache
from plga.model.checkpoint import load_model
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.sizes import bytes_per_sequence, parameters_by_part

# d_model 8, heads 2 x 4, FFN 10, A_dff 5, two units of two blocks, two layers, 20 pieces.
CONFIG = PldrConfig(
    vocab_size=20,
    hidden_size=8,
    intermediate_size=10,
    num_hidden_layers=2,
    num_attention_heads=2,
    metric_intermediate_size=5,
    num_metric_units=2,
    max_position_embeddings=32,
    eos_token_id=None,
)


@pytest.fixture
def model() -> PldrForCausalLM:
    return PldrForCausalLM(CONFIG).eval()


def swiglu(width: int, inner: int) -> int:
    return 2 * (width * inner + inner) + inner * width + width


def test_parameters_by_part_by_hand(model: PldrForCausalLM) -> None:
    counts = {
        "embedding": 20 * 8,
        "metric learner": 2 * (2 * 4 + 2 * (2 * swiglu(4, 5) + 2 * 4)),
        "power law (W, b_W, P, a, b_a)": 2 * 5 * 2 * 4 * 4,
        "attention projections": 2 * 4 * (8 * 8 + 8),
        "feed-forward": 2 * swiglu(8, 10),
        "layer norms": (1 + 2 * 2) * 2 * 8,
        "head": 8 * 20 + 20,
    }
    assert parameters_by_part(model) == counts
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters())


def test_a_constant_operator_counts_its_constant_and_nothing_learned(model: PldrForCausalLM) -> None:
    learned = parameters_by_part(model)
    counts = parameters_by_part(freeze(model, torch.zeros(2, 2, 4, 4)))
    assert counts.pop("constant operator (G_LM)") == 2 * 2 * 4 * 4
    assert counts == {name: learned[name] for name in learned if "metric" not in name and "power" not in name}


def test_the_parts_of_a_published_checkpoint_add_up(reference: Path) -> None:
    model = load_model(reference / "critical.pth")
    counts = parameters_by_part(model)
    assert sum(counts.values()) == sum(t.numel() for t in model.state_dict().values()) == 1_232_916
    assert counts["embedding"] == 2048 * 128
    assert counts["metric learner"] == 2 * (2 * 32 + 8 * (2 * swiglu(32, 85) + 2 * 32))


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8)])
def test_bytes_by_hand(tokens: int, dtype: torch.dtype, size: int) -> None:
    learned = bytes_per_sequence(CONFIG, tokens, dtype)
    assert learned == {
        "KV-cache": 2 * 2 * tokens * 8 * size,
        "G_LM": 2 * 2 * 4 * 4 * max(size, 4),  # never below float32
        "prefix (recompute)": tokens * (8 * size + 8),
    }
    constant = bytes_per_sequence(PldrConfig(**{**CONFIG.to_dict(), "operator": "constant"}), tokens, dtype)
    assert constant == {"KV-cache": 2 * 2 * tokens * 8 * size, "G_LM": 2 * 2 * 4 * 4 * size}


def test_the_curvature_of_the_published_model_by_hand() -> None:
    # 14 heads of width 64 in float32: 229 kB a layer, five layers, whatever the length.
    sizes = bytes_per_sequence(PldrConfig(), 1024, torch.float32)
    assert sizes["G_LM"] == 5 * 229_376
    assert sizes["KV-cache"] == 2 * 5 * 1024 * 896 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["recompute", "prompt"])
def test_bytes_are_those_that_generation_holds(model: PldrForCausalLM, mode: str, dtype: torch.dtype) -> None:
    model = model.to(dtype)
    cache = PldrCache(model.config, mode)
    prompt = torch.randint(20, (1, 5))
    out = model.generate(prompt, past_key_values=cache, max_new_tokens=4, do_sample=False, pad_token_id=0)
    known = out.shape[1] - 1  # the last token was never read
    sizes = bytes_per_sequence(model.config, known, dtype)
    held = sizes["prefix (recompute)"] if mode == "recompute" else sizes["KV-cache"] + sizes["G_LM"]
    assert cache.nbytes() == held
