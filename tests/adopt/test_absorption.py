"""Back to SDPA: which operators are absorbed, into what, and what is said of the others."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

import plga.adopt
from plga.adopt.absorption import absorb
from plga.adopt.classes import operators
from plga.adopt.operators import ConstantOperator, LowRankOperator
from plga.ops.commutant import commutant_projection

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
# model_type: settings over SIZES, whether rotary pairs are interleaved, how many coordinates of a query turn.
MODELS: dict[str, tuple[dict[str, Any], bool, int]] = {
    "llama": (GROUPED | {"attention_bias": True}, False, 8),
    "mistral": (GROUPED | {"sliding_window": 8}, False, 8),
    "mixtral": (GROUPED | {"num_local_experts": 2}, False, 8),
    "gemma2": (GROUPED | {"head_dim": 16}, False, 16),
    "gpt_neox": ({"rotary_pct": 0.5}, False, 4),
    "phi3": (GROUPED, False, 8),
    "cohere": (GROUPED, True, 8),
    "gpt2": ({}, False, 0),
}


def model(kind: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    found = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | settings)).eval()
    for name, parameter in found.named_parameters():
        if name.endswith("bias"):  # zero in a model that is not trained
            nn.init.normal_(parameter, std=0.3)
        elif parameter.dim() > 1:  # else attention is nearly uniform, whatever the operator
            nn.init.normal_(parameter, std=0.15)
    return found


def commuting(heads: int, width: int, interleaved: bool, turning: int, seed: int) -> Tensor:
    """Operators far from I that commute with rotations of the first coordinates: anything goes among the others."""
    g = torch.randn(heads, width, width, generator=torch.Generator().manual_seed(seed))
    g[:, :turning, turning:] = 0
    g[:, turning:, :turning] = 0
    if turning:
        g[:, :turning, :turning] = commutant_projection(g[:, :turning, :turning], interleaved)
    return g


def bend(adopted: Any, interleaved: bool, turning: int) -> None:
    """Give an adopted model such operators."""
    for seed, operator in enumerate(operators(adopted).values()):
        g = commuting(operator.heads, operator.width, interleaved, turning, seed)
        assert isinstance(operator, ConstantOperator)
        operator.curvature.data.copy_(g)


def adopted(kind: str, **settings: Any) -> Any:
    """Adopted, with operators that commute and are far from I."""
    more, interleaved, turning = MODELS[kind]
    found = plga.adopt(model(kind, **more | settings))
    bend(found, interleaved, turning)
    return found


@torch.no_grad()
def logits(found: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    tokens = torch.randint(3, SIZES["vocab_size"], (2, 40), generator=torch.Generator().manual_seed(7))
    return found.to(dtype)(input_ids=tokens).logits.float()


def snapshot(found: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in found.state_dict().items()}


def unchanged(found: nn.Module, before: dict[str, Tensor]) -> bool:
    after = found.state_dict()
    return after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("kind", "kernel"),
    # Gemma 2 caps its scores, which sdpa cannot.
    [(kind, kernel) for kind in MODELS for kernel in ("sdpa", "eager") if (kind, kernel) != ("gemma2", "sdpa")],
)
def test_a_plain_model_that_computes_the_same(kind: str, kernel: str) -> None:
    original = model(kind, **MODELS[kind][0], attn_implementation=kernel)
    assert original.config._attn_implementation == kernel
    found = adopted(kind, attn_implementation=kernel)
    before = snapshot(found)
    absorbed = absorb(found)
    assert unchanged(found, before)
    assert type(absorbed) is type(original)
    assert type(absorbed.config) is type(original.config)
    assert absorbed.config._attn_implementation == kernel
    ours, theirs = absorbed.config.to_dict(), original.config.to_dict()
    assert {k: v for k, v in ours.items() if k != "architectures"} == {
        k: v for k, v in theirs.items() if k != "architectures"
    }
    assert absorbed.state_dict().keys() == original.state_dict().keys()
    assert not any("plga" in type(module).__module__ for module in absorbed.modules())
    assert float((logits(absorbed) - logits(found)).abs().max()) <= 1e-5
    # The operators do something, so that this says something; and nothing but query projections has changed.
    assert float((logits(original) - logits(found)).abs().max()) > 1e-3
    moved = {name for name, tensor in absorbed.state_dict().items() if not torch.equal(tensor, before[name])}
    projections = ("q_proj", "query_key_value", "qkv_proj", "c_attn")
    assert moved and all(name.split(".")[-2] in projections for name in moved)


def test_keys_and_values_of_a_fused_projection_stay() -> None:
    found = adopted("phi3")
    before = found.model.layers[0].self_attn.qkv_proj.weight.clone()
    after = absorb(found).model.layers[0].self_attn.qkv_proj.weight
    assert torch.equal(after[32:], before[32:])
    assert not torch.isclose(after[:32], before[:32]).any(1).all()


def test_the_products_by_hand() -> None:
    found = adopted("llama")
    attention = found.model.layers[1].self_attn
    g = attention.operator.curvature.detach().double()
    projection = absorb(found).model.layers[1].self_attn.q_proj
    weight = attention.q_proj.weight.detach().double().view(4, 8, 32)
    assert torch.equal(projection.weight, (g.mT @ weight).reshape(32, 32).float())
    bias = attention.q_proj.bias.detach().double().view(4, 8, 1)
    assert torch.allclose(projection.bias, (g.mT @ bias).reshape(32).float(), rtol=0, atol=1e-6)


def test_a_layer_without_rotations_takes_any_operator() -> None:
    found = plga.adopt(model("smollm3", **GROUPED, no_rope_layers=[1, 0]))
    bend(found, False, 8)
    free = found.model.layers[1].self_attn.operator
    free.curvature.data.normal_(generator=torch.Generator().manual_seed(3))
    absorbed = absorb(found)
    assert float((logits(absorbed) - logits(found)).abs().max()) <= 1e-5
    rotated = found.model.layers[0].self_attn.operator
    rotated.curvature.data.copy_(free.curvature)
    with pytest.raises(ValueError, match=r"4 of 8 heads do not commute .* of model\.layers\.0\.self_attn with"):
        absorb(found)


def test_low_rank_operators() -> None:
    found = plga.adopt(model("llama", **GROUPED), operator="low_rank", rank=2)
    for operator in operators(found).values():
        # U Vᵀ = a (e_0 e_0ᵀ + e_4 e_4ᵀ): the pair (0, 4) is stretched.
        assert isinstance(operator, LowRankOperator)
        operator.left.data.zero_()
        operator.right.data.zero_()
        for column, row in enumerate((0, 4)):
            operator.left.data[:, row, column] = 3.0
            operator.right.data[:, row, column] = 1.0
    assert float((logits(absorb(found)) - logits(found)).abs().max()) <= 1e-5


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_bfloat16_weights_are_products_rounded_once(kind: str) -> None:
    found = adopted(kind).to(torch.bfloat16)
    for operator in operators(found).values():
        operator.float()
    before = snapshot(found)
    absorbed = absorb(found)
    assert unchanged(found, before)
    assert {parameter.dtype for parameter in absorbed.parameters()} == {torch.bfloat16}
    wide = absorb(copy.deepcopy(found).float())
    assert all(torch.equal(p, q.bfloat16()) for p, q in zip(absorbed.parameters(), wide.parameters(), strict=True))


@pytest.mark.parametrize("kind", MODELS.keys() - {"gpt2"})
def test_an_operator_that_does_not_commute_is_kept(kind: str) -> None:
    found = adopted(kind)
    operator: Any = list(operators(found).values())[1]
    operator.curvature.data[2, 0, 1] += 1.0 if kind != "cohere" else 0.0
    operator.curvature.data[2, 0, 2] += 1.0 if kind == "cohere" else 0.0
    before = snapshot(found)
    with pytest.raises(ValueError, match=r"1 of 8 heads do not commute") as caught:
        absorb(found)
    name = list(found.config.plga_layers)[1]
    assert f"the worst is head 2 of {name} with a residual of 0." in str(caught.value)
    assert "\n" not in str(caught.value)
    assert unchanged(found, before)
    assert float((logits(found) - logits(copy.deepcopy(found))).abs().max()) == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_operator_that_is_not_finite_is_named(number: float) -> None:
    found = adopted("llama")
    operator: Any = list(operators(found).values())[1]
    operator.curvature.data[2, 0, 1] = number
    name = list(found.config.plga_layers)[1]
    with pytest.raises(ValueError, match=f"keeps its operators: that of {name} has entries that are not finite$"):
        absorb(found)


def test_an_operator_of_zeros_commutes() -> None:
    found = adopted("llama")
    operator: Any = list(operators(found).values())[1]
    operator.curvature.data[2] = 0.0
    absorbed = absorb(found)
    assert float((logits(absorbed) - logits(found)).abs().max()) <= 1e-5


def test_the_residual_is_the_largest_over_positions() -> None:
    found = plga.adopt(model("llama", **GROUPED, hidden_size=8, head_dim=2))
    g = torch.diag(torch.tensor([1.0, 2.0]))  # R G - G R = sin(t) [[0, 1], [1, 0]] in size, and ‖G‖ = √5
    for operator in operators(found).values():
        assert isinstance(operator, ConstantOperator)
        operator.curvature.data.copy_(g)
    with pytest.raises(ValueError, match="8 of 8 heads") as caught:
        absorb(found)
    residual = float(str(caught.value).split("residual of ")[1].split(",")[0])
    assert 0.99 * (2 / 5) ** 0.5 < residual <= (2 / 5) ** 0.5 + 1e-3


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text", "olmo2"])
def test_behind_a_query_norm_an_operator_stays(kind: str) -> None:
    found = plga.adopt(model(kind, **GROUPED, head_dim=8))
    before = snapshot(found)
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn does not turn its queries linearly \(a query norm\?\)"):
        absorb(found)
    assert unchanged(found, before)


def test_clamped_queries_are_no_linear_function() -> None:
    with pytest.raises(ValueError, match="not turn its queries linearly"):
        absorb(plga.adopt(model("olmo", **GROUPED, clip_qkv=1.0)))


def test_learned_operators_cannot_be_absorbed() -> None:
    found = plga.adopt(model("llama", **GROUPED), operator="learned", metric_units=1, metric_blocks=1)
    with pytest.raises(ValueError, match="has learned operators, which differ from input to input"):
        absorb(found)


def test_what_is_not_adopted_has_nothing_to_absorb() -> None:
    with pytest.raises(ValueError, match="LlamaForCausalLM is not adopted"):
        absorb(model("llama", **GROUPED))


class WithAdapter(nn.Module):
    """y = W x + B A x, as LoRA adds it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(32, 2, bias=False), nn.Linear(2, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.b(self.a(x))
        return found


def test_adapters_and_shared_projections() -> None:
    found = adopted("llama")
    found.model.layers[0].self_attn.q_proj.weight = found.model.layers[1].self_attn.q_proj.weight
    with pytest.raises(ValueError, match="shares its weight with model"):
        absorb(found)
    found = adopted("llama")
    found.model.layers[0].self_attn.q_proj = WithAdapter(found.model.layers[0].self_attn.q_proj)
    with pytest.raises(ValueError, match="takes its queries from Linear, Linear"):
        absorb(found)


def test_weights_that_would_not_be_finite() -> None:
    found = adopted("llama").half()
    for operator in operators(found).values():
        operator.float()
        operator.curvature.data.copy_(1e8 * torch.eye(8))
    with pytest.raises(ValueError, match=r"is not finite in torch\.float16"):
        absorb(found)
    for operator in operators(found).values():
        operator.curvature.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="has entries that are not finite"):
        absorb(found)


def test_the_result_is_saved_and_loaded_without_plga(tmp_path: Path) -> None:
    absorbed = absorb(adopted("gpt_neox"))
    absorbed.save_pretrained(tmp_path / "saved")
    torch.save(logits(absorbed), tmp_path / "logits.pt")
    code = f"""
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(tmp_path / "saved")!r})
tokens = torch.randint(3, 96, (2, 40), generator=torch.Generator().manual_seed(7))
with torch.no_grad():
    assert torch.equal(model(input_ids=tokens).logits, torch.load({str(tmp_path / "logits.pt")!r}))
assert "plga" not in sys.modules
print(type(model).__name__)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "GPTNeoXForCausalLM"
