"""The perturbation bound: it dominates what is measured, layer by layer; its factors by hand and by differences."""

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from plga.collapse.bound import LABEL, perturbation_bound
from plga.collapse.freeze import freeze
from plga.criticality.order_parameter import deductive_outputs
from plga.model.checkpoint import load_model
from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import scatter
from tests.training import examples

SEEDS = st.integers(0, 2**31)


def model(seed: int = 0) -> PldrForCausalLM:
    """In float64, with every bias and scale away from its trivial value."""
    found = examples.model(seed, dtype=torch.float64)
    scatter(found, seed)
    return found


def near(learned: PldrForCausalLM, prefixes: list[Tensor], scale: float, seed: int = 0) -> PldrForCausalLM:
    """A constant at ``scale`` from the operator of the first prefix."""
    curvature = deductive_outputs(learned, prefixes[0][None]).curvature[0]
    noise = torch.randn(curvature.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return freeze(learned, curvature + scale * noise)


def prefixes(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(examples.VOCABULARY, (length,), generator=generator) for length in (3, 9, 6)]


@torch.no_grad()
def require_domination(learned: PldrForCausalLM, constant: PldrForCausalLM, texts: list[Tensor]) -> None:
    """Every row of every layer, and every logit of every row, changes by no more than the chain says."""
    bound = perturbation_bound(learned, constant, texts)
    for text in texts:
        ours, theirs = (m(text[None], use_cache=False, output_hidden_states=True) for m in (learned, constant))
        for chain, a, b in zip(bound.layers, ours.hidden_states[1:], theirs.hidden_states[1:], strict=True):
            assert float((a - b).norm(dim=-1).max()) <= chain.hidden_change
        assert float((ours.logits - theirs.logits).abs().max()) <= bound.logit_change
    assert 0 < bound.deviation <= bound.logit_change


@given(seed=SEEDS, scale=st.floats(-6, 1))
def test_it_dominates_what_is_measured(seed: int, scale: float) -> None:
    learned, texts = model(seed), prefixes(seed)
    require_domination(learned, near(learned, texts, 10.0**scale, seed), texts)


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_it_dominates_on_trained_checkpoints(name: str, reference: Path) -> None:
    learned = load_model(reference / f"{name}.pth", dtype=torch.float64)
    expected = load_file(reference / f"{name}.expected.safetensors")
    texts = [expected[f"case{n}.input_ids"][0] for n in range(3)]
    constant = freeze(learned, deductive_outputs(learned, texts[0][None]).curvature[0])
    require_domination(learned, constant, texts)
    bound = perturbation_bound(learned, constant, texts)
    assert bound.orders_above_margin is not None and bound.orders_above_margin > 3  # it quantifies, and no more


@torch.no_grad()
def test_the_factors_of_the_first_layer_by_hand() -> None:
    learned, texts = model(), prefixes()[:1]
    constant = near(learned, texts, 0.1)
    bound = perturbation_bound(learned, constant, texts)
    assert (bound.prefixes, bound.label, len(bound.layers)) == (1, LABEL, 2)
    layer, first = learned.model.layers[0], bound.layers[0]
    embedded = learned.model.embed_norm(learned.model.embed_tokens(texts[0]) * math.sqrt(8))
    q, k, v = (
        getattr(layer.self_attn, f"{name}_proj")(embedded).view(-1, 2, 4).norm(dim=-1).amax(dim=0) for name in "qkv"
    )
    g = deductive_outputs(learned, texts[0][None]).curvature[0, 0]
    other = constant.model.layers[0].self_attn.operator.curvature
    change = torch.linalg.svdvals(g - other)[:, 0]
    scores = q * change * k / 2  # √d = 2, and no difference yet from layers before
    assert first.operator_change == pytest.approx(float(change.max()))
    assert first.score_change == pytest.approx(float(scores.max()))
    attention = torch.linalg.svdvals(layer.self_attn.o_proj.weight)[0] * (scores.clamp(max=2) * v).square().sum().sqrt()
    assert first.attention_change == pytest.approx(float(attention))
    assert first.hidden_change == pytest.approx(
        first.feed_forward_norm * (1 + first.feed_forward) * first.attention_norm * first.attention_change
    )
    assert bound.head == pytest.approx(float(learned.lm_head.weight.norm(dim=-1).max()))
    assert bound.logit_change == pytest.approx(bound.head * bound.layers[1].hidden_change)


@given(seed=SEEDS)
def test_a_layer_norm_moves_rows_by_no_more_than_its_factor(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.empty(2, 1).uniform_(-4, 2, generator=generator).double()
    x = scale * torch.randn(2, 8, generator=generator, dtype=torch.float64)
    gamma, beta = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    s = (x.var(dim=-1, correction=0) + 1e-6).sqrt()
    out = torch.nn.functional.layer_norm(x, (8,), gamma, beta, 1e-6)
    factor = gamma.abs().max() / s.min()
    assert float((out[0] - out[1]).norm()) <= float(factor * (x[0] - x[1]).norm()) * (1 + 1e-12)


@given(seed=SEEDS)
def test_softmax_moves_by_no_more_than_its_scores(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, shift = 3 * torch.randn(2, 6, generator=generator, dtype=torch.float64)
    moved = (x.softmax(-1) - (x + shift).softmax(-1)).abs().sum()
    assert float(moved) <= min(float(shift.abs().max()), 2.0) * (1 + 1e-12)


def test_the_slope_of_silu_is_below_the_constant() -> None:
    x = torch.linspace(-20, 20, 400_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)
    assert 1.0998 < float(slope.abs().max()) < 1.1


def test_an_equal_operator_has_a_bound_of_zero_and_no_orders() -> None:
    learned, texts = model(), prefixes()[:1]
    curvature = deductive_outputs(learned, texts[0][None]).curvature[0]
    bound = perturbation_bound(learned, freeze(learned, curvature), texts)
    assert bound.logit_change == 0.0
    assert (bound.orders_above_margin, bound.orders_above_deviation) == (None, None)


def test_it_is_linear_for_small_changes_and_grows_with_the_sample() -> None:
    learned, texts = model(), prefixes()
    small, smaller = (perturbation_bound(learned, near(learned, texts, s), texts[:1]) for s in (1e-6, 1e-7))
    assert small.logit_change == pytest.approx(10 * smaller.logit_change, rel=1e-3)
    orders = small.orders_above_margin
    assert orders == pytest.approx(math.log10(2 * small.logit_change / small.margin))
    constant = near(learned, texts, 1e-2)
    few, all_of_them = (perturbation_bound(learned, constant, sample) for sample in (texts[:1], texts))
    assert all_of_them.logit_change >= few.logit_change
    assert all_of_them.margin <= few.margin


def test_models_are_left_as_they_were() -> None:
    learned, texts = model(), prefixes()
    constant = near(learned, texts, 0.1)
    before = copy.deepcopy(learned.state_dict())
    perturbation_bound(learned, constant, texts)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learned.state_dict().items())
    assert not any(module._forward_hooks for m in (learned, constant) for module in m.model.layers.modules())


def test_what_has_no_chain_is_refused() -> None:
    learned, texts = model(), prefixes()
    with pytest.raises(ValueError, match="no prefix"):
        perturbation_bound(learned, near(learned, texts, 0.1), [])
    chunked = examples.model(gram="chunked", gram_chunk=4)
    constant = freeze(chunked, torch.zeros(2, 2, 4, 4))
    with pytest.raises(ValueError, match="expected 'global'"):
        perturbation_bound(chunked, constant, texts)
