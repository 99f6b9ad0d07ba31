"""Invariance: by hand, and on operators that do and do not depend on the input."""

import math

import pytest
import torch
from torch import Tensor

from plga.collapse.freeze import freeze
from plga.collapse.invariance import distance, invariance, outputs_over
from plga.criticality.order_parameter import SYMBOLS, Deductive, deductive_outputs, fluctuation
from tests.training import examples


def outputs(generator: Tensor) -> Deductive:
    """Deductive outputs whose other tensors are multiples of A."""
    return Deductive(generator, 2 * generator, 3 * generator, generator + 1)


def test_an_operator_of_one_row_everywhere() -> None:
    row = torch.tensor([1.0, -2.0, 3.0, 0.5])
    found = invariance(outputs(row.expand(3, 2, 2, 4, 4)))
    assert found.inputs == 3
    assert found.fluctuation == dict.fromkeys(SYMBOLS, 0.0)
    assert found.by_head == {symbol: [[0.0, 0.0], [0.0, 0.0]] for symbol in SYMBOLS}
    assert found.rank == [[1, 1], [1, 1]]
    assert max(max(heads) for heads in found.second_singular_value) < 1e-15
    assert found.rows == [[0.0, 0.0], [0.0, 0.0]]
    assert (found.heads, found.layers) == ([0.0, 0.0], 0.0)


def test_each_identity_is_seen_by_itself() -> None:
    """Of two inputs, layers and heads: A = ±1 by one axis at a time is its own distance from the mean of that axis."""
    signs = torch.tensor([1.0, -1.0])
    of_layers = invariance(outputs(signs.view(1, 2, 1, 1, 1).expand(2, 2, 2, 2, 2)))
    assert (of_layers.layers, of_layers.heads, of_layers.rows) == (1.0, [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]])
    of_heads = invariance(outputs(signs.view(1, 1, 2, 1, 1).expand(2, 2, 2, 2, 2)))
    assert (of_heads.layers, of_heads.heads, of_heads.rows) == (0.0, [1.0, 1.0], [[0.0, 0.0], [0.0, 0.0]])
    of_rows = invariance(outputs(signs.view(1, 1, 1, 2, 1).expand(2, 2, 2, 2, 2)))
    assert (of_rows.layers, of_rows.heads, of_rows.rows) == (0.0, [0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]])
    of_inputs = invariance(outputs(signs.view(2, 1, 1, 1, 1).expand(2, 2, 2, 2, 2)))
    assert of_inputs.fluctuation["A"] == of_inputs.by_head["A"][1][0] == 1.0
    assert (of_inputs.layers, of_inputs.heads) == (0.0, [0.0, 0.0])


def test_singular_values_and_rank_are_the_largest_over_the_inputs() -> None:
    generator = torch.zeros(2, 1, 1, 2, 2)
    generator[0, 0, 0] = torch.diag(torch.tensor([4.0, 0.0]))
    generator[1, 0, 0] = torch.diag(torch.tensor([4.0, 1.0]))
    found = invariance(outputs(generator))
    assert (found.second_singular_value, found.rank) == ([[0.25]], [[2]])
    assert (found.heads, found.layers) == ([0.0], 0.0)  # one head and one layer have nobody to differ from


def test_prompts_of_different_lengths_are_measured_one_by_one() -> None:
    model = examples.model()
    prompts = [torch.randint(examples.VOCABULARY, (length,)) for length in (3, 7, 5)]
    found = outputs_over(model, prompts)
    assert found.curvature.shape == (3, 2, 2, 4, 4)
    for prompt, curvature in zip(prompts, found.curvature, strict=True):
        assert torch.equal(deductive_outputs(model, prompt[None]).curvature[0], curvature)
    measured = invariance(found)
    assert measured.fluctuation["G_LM"] == fluctuation(found.curvature) > 0
    assert measured.by_head["A_P"][1][0] == fluctuation(found.potential[:, 1, 0])


def test_a_constant_or_non_finite_operator_is_refused() -> None:
    model = examples.model()
    with pytest.raises(ValueError, match="constant, expected learned"):
        outputs_over(freeze(model, torch.zeros(2, 2, 4, 4)), [torch.tensor([1, 2])])
    with torch.no_grad():
        model.model.layers[1].self_attn.operator.coupling_weight[1, 2, 3] = math.nan
    with pytest.raises(FloatingPointError, match=r"G_LM of layer 1 is not finite in heads \[1\]"):
        outputs_over(model, [torch.tensor([1, 2])])


def test_distance_from_a_constant_by_hand() -> None:
    curvature = torch.full((2, 1, 1, 2, 2), 4.0)
    assert distance(curvature, torch.full((1, 1, 2, 2), 4.0)) == 0.0
    assert distance(curvature, torch.full((1, 1, 2, 2), 3.0)) == 0.25
    assert distance(1e300 * curvature.double(), 3e300 * torch.ones(1, 1, 2, 2).double()) == pytest.approx(0.25)
    assert distance(0 * curvature, torch.zeros(1, 1, 2, 2)) == 0.0
    assert distance(0 * curvature, torch.ones(1, 1, 2, 2)) == math.inf


def test_distance_from_the_mean_is_the_fluctuation() -> None:
    curvature = torch.randn(5, 2, 2, 4, 4)
    assert distance(curvature, curvature.mean(dim=0)) == pytest.approx(fluctuation(curvature), rel=1e-5)
