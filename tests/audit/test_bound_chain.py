"""Section F: the assembly against finite differences, the factors by hand, and the two reference checkpoints."""

import dataclasses
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from plga.audit import contraction
from plga.audit.bound_chain import SECTION, factors, learner_constants, log10_contributions
from plga.audit.budget import Budget, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.collapse.bound import LABEL
from plga.collapse.freeze import freeze
from plga.model.modeling import PldrForCausalLM
from plga.model.operator import ConstantOperator, LearnedOperator
from tests.audit.subjects import by_name, prompt, summary, tiny, trained
from tests.model.conftest import scatter
from tests.training import examples

STEP = 1e-6


def wide(seed: int = 0, **changes: int) -> Subject:
    """One prompt and a model of two layers in float64, every bias and scale away from its trivial value."""
    model = examples.model(seed, dtype=torch.float64, **changes)
    scatter(model, seed)
    return Subject(model=model, prompts=(prompt(7, seed),), seed=seed)


def held(subject: Subject) -> PldrForCausalLM:
    """The model with the operator of its prompt held constant."""
    assert subject.model is not None
    return freeze(subject.model, subject.visit(0).deductive.curvature)


def curvature(model: PldrForCausalLM, layer: int) -> Tensor:
    operator = model.model.layers[layer].self_attn.operator
    assert isinstance(operator, ConstantOperator)
    return operator.curvature


@torch.no_grad()
def logits(model: PldrForCausalLM, subject: Subject, change: dict[int, Tensor]) -> Tensor:
    """Logits of all rows with the G of some layers changed, [S, V]."""
    for layer, by in change.items():
        curvature(model, layer).add_(by)
    found = model(subject.prompts[0][None], use_cache=False).logits[0]
    for layer, by in change.items():
        curvature(model, layer).sub_(by)
    return found


def quotient(subject: Subject, directions: dict[int, Tensor]) -> float:
    """Largest change of a logit for a change of the G of some layers by STEP, per STEP, by central differences."""
    model = held(subject)
    ahead, behind = (
        logits(model, subject, {layer: sign * STEP * d for layer, d in directions.items()}) for sign in (1, -1)
    )
    return float((ahead - behind).abs().max()) / (2 * STEP)


def drawn(subject: Subject, seed: int) -> Tensor:
    """A seeded direction of spectral norm 1 in every head, [H, d, d]."""
    shape = subject.visit(0).deductive.curvature.shape[1:]
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise / torch.linalg.matrix_norm(noise, ord=2)[:, None, None]


def steepest(subject: Subject, layer: int) -> Tensor:
    """The direction of spectral norm 1 that moves one logit most: U Vᵀ of its gradient, [H, d, d]."""
    model = held(subject)
    g = curvature(model, layer).requires_grad_()
    found = model(subject.prompts[0][None], use_cache=False).logits[0, -1, 0]
    left, _, right = torch.linalg.svd(torch.autograd.grad(found, g)[0])
    return left @ right


@pytest.mark.parametrize("seed", range(4))
def test_the_coefficient_dominates_finite_differences(seed: int) -> None:
    """Of each layer alone, and of all layers at once, in seeded directions and in the steepest one."""
    subject = wide(seed)
    raw = measure(subject)
    parts = 10 ** log10_contributions(raw)
    total = by_name(SECTION, raw)["end-to-end coefficient"]
    assert total == pytest.approx(parts.sum())
    steep = {layer: steepest(subject, layer) for layer in range(2)}
    for layer in range(2):
        for direction in (*(drawn(subject, seed) for seed in range(5)), steep[layer]):
            assert 0 < quotient(subject, {layer: direction}) <= parts[layer]
    for directions in (*({0: drawn(subject, n), 1: drawn(subject, 9 + n)} for n in range(5)), steep):
        assert 0 < quotient(subject, directions) <= total


def without_own_remainder(raw: Budget) -> float:
    """The end-to-end coefficient if an injection met only the layers after its own."""
    found = factors(raw)
    later = np.append(np.cumprod(found.transfer[::-1])[::-1][1:], 1.0)
    return float(raw.head[0] * (found.injection * later).sum())


def test_without_its_own_remainder_an_injection_is_not_bounded() -> None:
    """A first layer with a large γ, whose rows the LayerNorms after it take back to size; a second without queries."""
    subject = wide()
    assert subject.model is not None
    first, second = subject.model.model.layers
    with torch.no_grad():
        first.mlp_norm.weight.mul_(1e8)
        for parameter in second.self_attn.q_proj.parameters():
            parameter.zero_()
    raw = measure(subject)
    moved = quotient(subject, {0: steepest(subject, 0)})
    assert moved <= by_name(SECTION, raw)["end-to-end coefficient"]
    assert without_own_remainder(raw) < moved


@torch.no_grad()
def test_the_factors_of_one_layer_by_hand() -> None:
    subject = wide(num_hidden_layers=1)
    assert subject.model is not None
    layer, tokens = subject.model.model.layers[0], subject.prompts[0]
    raw, found = measure(subject), summary(SECTION, subject)
    x = subject.model.model.embed_norm(subject.model.model.embed_tokens(tokens) * math.sqrt(8))
    attention = layer.self_attn
    chi, kappa, nu = (getattr(attention, f"{name}_proj")(x).view(-1, 2, 4).norm(dim=-1).amax(dim=0) for name in "qkv")
    w_q, w_k, w_v = (
        torch.stack([torch.linalg.svdvals(w)[0] for w in getattr(attention, f"{name}_proj").weight.split(4)])
        for name in "qkv"
    )
    w_o = torch.linalg.svdvals(attention.o_proj.weight)[0]
    deductive = subject.visit(0).deductive
    g = torch.linalg.svdvals(deductive.curvature[0])[:, 0]
    injection = float(w_o * (chi * kappa * nu / 2).square().sum().sqrt())  # √d = 2
    alpha = float(w_o * ((w_q * g * kappa + chi * g * w_k) * nu / 2 + w_v).square().sum().sqrt())

    seen: dict[str, Tensor] = {}
    modules = {"first": layer.self_attn_norm, "second": layer.mlp_norm, "inner": layer.mlp}
    for name, module in modules.items():
        module.register_forward_pre_hook(lambda module, given, name=name: seen.__setitem__(name, given[0]))
    subject.model(tokens[None], use_cache=False)
    lambdas = [
        float(norm.weight.abs().max() / (seen[name].var(dim=-1, correction=0) + 1e-6).sqrt().min())
        for name, norm in (("first", layer.self_attn_norm), ("second", layer.mlp_norm))
    ]
    gate, up = layer.mlp.gate_proj(seen["inner"]), layer.mlp.up_proj(seen["inner"])
    gate_norm, up_norm, down_norm = (
        float(torch.linalg.svdvals(p.weight)[0]) for p in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    )
    grid = torch.linspace(-1, 1, 100_001, dtype=torch.float64) * gate.abs().max()
    slope = float((grid.sigmoid() * (1 + grid * (1 - grid.sigmoid()))).abs().max())
    size = float((gate * gate.sigmoid()).abs().max())
    phi = down_norm * (slope * gate_norm * float(up.abs().max()) + up_norm * size)

    rho = lambdas[0] * (1 + phi) * lambdas[1]
    head = float(subject.model.lm_head.weight.norm(dim=-1).max())
    expected = {
        "attention factor of a change of G_LM": injection,
        "attention factor of a change of the rows": alpha,
        "first LayerNorm factor": lambdas[0],
        "gated FFN factor": phi,
        "second LayerNorm factor": lambdas[1],
        "factor of a layer's own remainder": rho,
        "factor of a whole layer": (1 + alpha) * rho,
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx([value] * 3, rel=1e-6), name
        assert found[name].kind == "bound" and LABEL in str(found[name].formula)
    assert found["end-to-end coefficient"].value == pytest.approx(head * injection * rho, rel=1e-6)
    radius = 2.0**-24 * float(deductive.curvature.flatten(-2).norm(dim=-1).max())
    assert found["single-rounding radius"].value == pytest.approx(radius)
    assert found["radius of one rounded entry"].value == pytest.approx(
        2.0**-24 * float(deductive.curvature.abs().max())
    )
    bound = head * injection * rho * radius
    assert found["bound at the single-rounding radius"].value == pytest.approx(bound, rel=1e-6)
    best = subject.model(tokens[None], use_cache=False).logits[0, -1].topk(2).values
    margin = float(best[0] - best[1])
    assert found["smallest decoding margin"].value == pytest.approx(margin)
    assert found["orders above half the margin"].value == pytest.approx(math.log10(2 * bound / margin), rel=1e-6)
    assert found["2 · bound < margin"].value is (2 * bound < margin)
    assert raw.margin.shape == (1,)


@torch.no_grad()
def test_the_constants_from_a_to_g_dominate_pairs_of_prompts() -> None:
    """‖G - G'‖_F against ‖A - A'‖_F, of every pair, layer and head; and the factors that they are a product of."""
    model = wide().model
    subject = Subject(model=model, prompts=tuple(prompt(length, length) for length in (5, 8, 6, 7)))
    raw = measure(subject)
    found = by_name(SECTION, raw)
    assert model is not None
    visits = [visit.deductive for visit in subject.visits()]
    constants = np.zeros_like(raw.metric_range)
    for number, layer in enumerate(model.model.layers):
        operator = layer.self_attn.operator
        assert isinstance(operator, LearnedOperator)
        for head in range(2):
            u = torch.stack([operator.metric_weight[head] @ v.generator[number, head] for v in visits])
            limit = float((u + operator.metric_bias[head]).abs().max())
            assert raw.metric_range[number, head] == pytest.approx(limit)
            grid = torch.linspace(-limit, limit, 100_001, dtype=torch.float64)
            sigma = grid.sigmoid()
            slope = float((2 * grid * sigma + grid**2 * sigma * (1 - sigma)).abs().max())
            x = torch.stack([v.metric[number, head] for v in visits])
            power = operator.exponent[head]
            ends = [float((power.abs() * end ** (power - 1)).max()) for end in (x.min(), x.max())]
            weight, coupling = (
                float(torch.linalg.svdvals(w[head])[0]) for w in (operator.metric_weight, operator.coupling_weight)
            )
            constants[number, head] = constant = coupling * max(ends) * slope * weight
            for a in visits:
                for b in visits:
                    moved = float((a.curvature - b.curvature)[number, head].norm())
                    assert moved <= constant * float((a.generator - b.generator)[number, head].norm())
    measured = found["log10 of the Lipschitz constant from A to G_LM at the measured floor"]
    logs = np.log10(constants)
    assert measured == pytest.approx([logs.min(), np.median(logs), logs.max()], rel=1e-6)
    architectural = found["log10 of the Lipschitz constant from A to G_LM at the architectural floor"]
    assert all(a >= m for a, m in zip(architectural, measured, strict=True))


@torch.no_grad()
def test_the_constants_of_the_learner_by_hand_and_against_pairs_of_prompts() -> None:
    """One unit of two blocks; ‖A - A'‖_F against ‖D - D'‖_F of every pair of prompts, and so for G_LM."""
    model = wide(num_metric_units=1).model
    subject = Subject(model=model, prompts=tuple(prompt(length, length) for length in (5, 8, 6, 7)))
    raw = measure(subject)
    found, visits = by_name(SECTION, raw), list(subject.visits())
    lambdas, logs = [], []
    for number, operator in enumerate(subject.learned):
        learner = operator.learner
        (unit,) = learner.units
        density = torch.stack([visit.density[number] for visit in visits])
        lambda_d = float(learner.input_norm.weight.abs().max() / (density.var(-1, correction=0) + 1e-6).sqrt().min())
        x = inner = learner.input_norm(density)
        product = 1.0
        for block in unit.blocks:
            gate, up = block.gate_proj(inner), block.up_proj(inner)
            gate_norm, up_norm, down_norm = (
                float(torch.linalg.svdvals(p.weight)[0]) for p in (block.gate_proj, block.up_proj, block.down_proj)
            )
            grid = torch.linspace(-1, 1, 100_001, dtype=torch.float64) * gate.abs().max()
            slope = float((grid.sigmoid() * (1 + grid * (1 - grid.sigmoid()))).abs().max())
            size = float((gate * gate.sigmoid()).abs().max())
            product *= down_norm * (slope * gate_norm * float(up.abs().max()) + up_norm * size)
            inner = block.down_proj(gate * gate.sigmoid() * up)
        lambda_u = float(unit.norm.weight.abs().max() / ((inner + x).var(-1, correction=0) + 1e-6).sqrt().min())
        constant = lambda_u * (1 + product)
        lambdas.append(lambda_d)
        logs.append(math.log10(constant))
        for a, b in combinations(visits, 2):
            change = (a.density - b.density)[number].norm(dim=(-2, -1))
            moved = (a.deductive.generator - b.deductive.generator)[number].norm(dim=(-2, -1))
            assert (moved <= lambda_d * constant * change).all()
    assert found["LayerNorm factor of a row of D"] == pytest.approx([min(lambdas), sum(lambdas) / 2, max(lambdas)])
    assert found["log10 of the Lipschitz constant of φ"] == pytest.approx([min(logs), sum(logs) / 2, max(logs)])
    learner = learner_constants(raw)
    of_learner = np.log10(learner.norm) + learner.log10_row_map
    for floor in ("measured", "architectural"):
        inner, whole = (found[f"log10 of the Lipschitz constant from {x} to G_LM at the {floor} floor"] for x in "AD")
        assert inner[0] + of_learner.min() <= whole[0] + 1e-9 and whole[2] <= inner[2] + of_learner.max() + 1e-9
    largest = 10 ** found["log10 of the Lipschitz constant from D to G_LM at the measured floor"][2]
    for a, b in combinations(visits, 2):
        change = (a.density - b.density).norm(dim=(-2, -1))
        moved = (a.deductive.curvature - b.deductive.curvature).norm(dim=(-2, -1))
        assert (moved <= largest * change).all() and (moved > 0).all()


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_the_constant_of_the_row_map_dominates_its_jacobians_and_pairs(name: str, reference: Path) -> None:
    """Section E measures what section F bounds, on the same rows."""
    subject = trained(reference, name)
    bound = 10 ** learner_constants(measure(subject)).log10_row_map
    rows = contraction.measure(subject)
    assert (rows.singular[..., 0].max(axis=(0, 2)) <= bound).all()
    assert (rows.within_output <= bound[:, None] * rows.within_input).all()
    assert (rows.across_output <= bound[:, None] * rows.across_input).all()


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_reference_checkpoints(name: str, reference: Path) -> None:
    found = summary(SECTION, trained(reference, name))
    coefficient = found["end-to-end coefficient"]
    assert coefficient.published == pytest.approx(7.27e46, rel=1e-3)
    assert found["log10 of the end-to-end coefficient"].value == pytest.approx(math.log10(coefficient.value))
    assert 1e6 < coefficient.value < 1e12
    assert found["2 · bound < margin"].value is False and found["orders above half the margin"].value > 0


def test_a_coefficient_beyond_float64_has_its_logarithm() -> None:
    raw = measure(tiny())
    found = by_name(SECTION, dataclasses.replace(raw, down_weight=raw.down_weight * 1e200))
    assert found["end-to-end coefficient"] is None and found["bound at the single-rounding radius"] is None
    assert 300 < found["log10 of the end-to-end coefficient"] < 500
    assert found["2 · bound < margin"] is False and found["orders above half the margin"] > 300


def test_a_bound_below_half_the_margin_satisfies_and_no_margin_never_does() -> None:
    raw = measure(tiny())
    assert by_name(SECTION, dataclasses.replace(raw, margin=raw.margin + 1e9))["2 · bound < margin"] is True
    found = by_name(SECTION, dataclasses.replace(raw, margin=np.zeros(3)))
    assert found["2 · bound < margin"] is False and found["orders above half the margin"] is None


def test_raw_shapes_and_reasons() -> None:
    raw = measure(tiny())
    assert raw.query.shape == (2, 2) and raw.operator_size.shape == (3, 2, 2) and raw.margin.shape == (3,)
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
    with pytest.raises(NotMeasurable, match="no model"):
        measure(Subject(operators=torch.eye(4).expand(1, 2, 4, 4)))
    subject = tiny()
    assert subject.model is not None
    torch.nn.init.constant_(subject.model.lm_head.bias, math.inf)
    with pytest.raises(NotMeasurable, match="logits of prompt 1"):
        measure(subject)
