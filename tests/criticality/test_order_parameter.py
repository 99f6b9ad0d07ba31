"""The order parameter: by hand, invariances, and on one collapsed and one sub-critical checkpoint."""

import argparse
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.collapse.freeze import freeze
from plga.criticality.order_parameter import (
    deductive_outputs,
    fluctuation,
    fluctuations,
    order_parameter,
    rmse_over_abs_mean,
    symmetrized_signed,
)
from plga.model.checkpoint import load_model
from plga.model.tokenizer import load_tokenizer
from tests.training import examples


def test_fluctuation_by_hand() -> None:
    x = torch.randn(2, 3, 4)
    assert fluctuation(torch.stack([x, -x])) == pytest.approx(1.0, rel=1e-12)  # the mean is 0
    # 3 and 5: the mean is 4, the distance 1, the RMS √17.
    assert fluctuation(torch.tensor([[3.0], [5.0]])) == pytest.approx(1 / math.sqrt(17), rel=1e-12)
    # Entries are pooled, not averaged: the large steady entry hides the small one.
    assert fluctuation(torch.tensor([[1.0, 100.0], [-1.0, 100.0]])) == pytest.approx(1 / math.sqrt(10001), rel=1e-12)
    assert fluctuation(torch.tensor([[1.0], [1.0], [1.0], [5.0]])) == pytest.approx(math.sqrt(3 / 7), rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_does_not_depend_on_the_input_fluctuates_by_exactly_zero(count: int, dtype: torch.dtype) -> None:
    assert fluctuation(torch.randn(1, 5, 6).to(dtype).expand(count, 5, 6)) == 0.0
    assert fluctuation(torch.zeros(count, 5, dtype=dtype)) == 0.0


@given(st.integers(0, 2**32), st.floats(-300, 300), st.integers(2, 6))
def test_fluctuation_does_not_depend_on_the_scale(seed: int, exponent: float, count: int) -> None:
    x = torch.randn(count, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert fluctuation(x * 10.0**exponent) == pytest.approx(fluctuation(x), rel=1e-9)
    assert 0 < fluctuation(x) <= 1


def test_a_small_fluctuation_on_a_large_mean_is_resolved() -> None:
    x = torch.tensor([[1.0 + 1e-12], [1.0 - 1e-12]], dtype=torch.float64)
    assert fluctuation(x) == pytest.approx(1e-12, rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_operator_never_counts_as_steady(bad: float) -> None:
    x = torch.ones(3, 2)
    x[1, 0] = bad
    with pytest.raises(ValueError, match=r"outputs is \(3, 2\) with non-finite entries"):
        fluctuation(x)


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (1, 2)])
def test_fewer_than_two_inputs_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \[N, \.\.\.\] with N >= 2 inputs"):
        fluctuation(torch.ones(shape))


def test_every_statistic_by_hand() -> None:
    run_1 = torch.tensor([[1.0, -3.0], [2.0, -4.0]])  # mean -1, mean magnitude 10/4
    run_2 = torch.tensor([[2.0, -3.0], [4.0, -2.0]])  # differences -1, 0, -2, -2; mean magnitude 11/4
    cached = torch.tensor([[1.0, -3.0], [2.0, 0.0]])  # differences 0, 0, 0, -4
    found = order_parameter(run_1, run_2, cached)
    assert found.rmse_12_over_abs_mean == pytest.approx(math.sqrt(9 / 4) / 1)
    assert found.rmse_1c_over_abs_mean == pytest.approx(math.sqrt(16 / 4) / 1)
    assert found.symmetrized_signed == pytest.approx((-5 / 4) / (21 / 8))
    assert found.rms_normalized == fluctuation(run_1) == pytest.approx(math.sqrt(1 / 4) / math.sqrt(30 / 4))


def test_equal_runs_have_no_order_parameter() -> None:
    for run in (torch.randn(3, 4), torch.zeros(3, 4), torch.tensor([[1.0, -1.0]])):
        assert rmse_over_abs_mean(run, run) == symmetrized_signed(run, run) == 0.0


def test_a_mean_of_zero_is_no_reason_for_a_finite_published_statistic() -> None:
    run = torch.tensor([[1.0, -1.0]])
    assert rmse_over_abs_mean(run, 2 * run) == math.inf


@given(st.integers(0, 2**32), st.floats(-150, 150))
def test_signed_statistic_is_antisymmetric_bounded_and_free_of_scale(seed: int, exponent: float) -> None:
    x, y = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    scale = 10.0**exponent
    assert symmetrized_signed(x, y) == -symmetrized_signed(y, x)
    assert symmetrized_signed(x * scale, y * scale) == pytest.approx(symmetrized_signed(x, y), rel=1e-9)
    assert rmse_over_abs_mean(x * scale, y * scale) == pytest.approx(rmse_over_abs_mean(x, y), rel=1e-9)
    assert -2 <= symmetrized_signed(x, y) <= 2
    assert symmetrized_signed(x.abs(), torch.zeros_like(x)) == pytest.approx(2)


@pytest.mark.parametrize("statistic", [rmse_over_abs_mean, symmetrized_signed])
def test_runs_that_cannot_be_compared(statistic: Callable[[torch.Tensor, torch.Tensor], float]) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"the runs are \(2, 3\) and \(3, 2\)"):
        statistic(x, x.T)
    with pytest.raises(ValueError, match="not empty"):
        statistic(x[:0], x[:0])
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="non-finite"):
            statistic(x, torch.full_like(x, bad))
        with pytest.raises(ValueError, match="non-finite"):
            statistic(torch.full_like(x, bad), x)


def test_deductive_outputs_call_the_root_module() -> None:
    """A sharded model gathers its parameters in hooks of the root's forward pass."""
    model, calls = examples.model(), []
    model.register_forward_pre_hook(lambda module, args: calls.append(module))
    deductive_outputs(model, torch.randint(examples.VOCABULARY, (2, 9)))
    assert calls == [model]


def test_padding_does_not_enter_the_deductive_outputs() -> None:
    model = examples.model(dtype=torch.float64)
    ids = torch.randint(examples.VOCABULARY, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    padded = deductive_outputs(model, ids, mask)
    for together, alone in zip(padded, deductive_outputs(model, ids[1:, :6]), strict=True):
        torch.testing.assert_close(together[1:], alone, rtol=1e-10, atol=1e-12)


def test_fluctuations_are_by_symbol() -> None:
    outputs = deductive_outputs(examples.model(), torch.randint(examples.VOCABULARY, (3, 9)))
    found = fluctuations(outputs)
    assert list(found) == ["A", "A_LM", "A_P", "G_LM"]
    assert list(found.values()) == [fluctuation(tensor) for tensor in outputs]


def test_deductive_outputs_are_those_of_each_input_alone() -> None:
    model = examples.model(dtype=torch.float64)
    inputs = torch.randint(examples.VOCABULARY, (3, 9))
    together = deductive_outputs(model, inputs)
    for tensor in together:
        assert tensor.shape == (3, 2, 2, 4, 4)  # [N, L, H, d, d]
        assert not tensor.requires_grad
    for i, row in enumerate(inputs):
        alone = model(row[None], use_cache=False, output_deductive=True).deductive
        for layer, outputs in enumerate(alone):
            for name, tensor in outputs._asdict().items():
                torch.testing.assert_close(getattr(together, name)[i, layer], tensor[0], rtol=1e-10, atol=1e-12)


def test_with_a_chunked_gram_every_chunk_counts_as_an_input() -> None:
    model = examples.model(dtype=torch.float64, gram="chunked", gram_chunk=4)
    inputs = torch.randint(examples.VOCABULARY, (3, 9))  # three chunks a row
    together = deductive_outputs(model, inputs)
    for layer, outputs in enumerate(model(inputs, use_cache=False, output_deductive=True).deductive):
        for name, tensor in outputs._asdict().items():
            for row, chunk in itertools.product(range(3), range(3)):
                assert torch.equal(getattr(together, name)[3 * row + chunk, layer], tensor[row, chunk])


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_restored(training: bool) -> None:
    model = examples.model(attention_dropout=0.5).train(training)
    inputs = torch.randint(examples.VOCABULARY, (2, 9))
    first, second = deductive_outputs(model, inputs), deductive_outputs(model, inputs)
    assert torch.equal(first.curvature, second.curvature)  # without dropout
    assert model.training is training
    with pytest.raises(ValueError, match="outside the vocabulary"):
        deductive_outputs(model, inputs + examples.VOCABULARY)
    assert model.training is training


def test_a_constant_operator_is_refused() -> None:
    frozen = freeze(examples.model(), torch.randn(2, 2, 4, 4))
    with pytest.raises(ValueError, match="constant, expected learned"):
        deductive_outputs(frozen, torch.ones(2, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("checkpoint", "low", "high"),
    # Measured: 3e-7 and 0.11, on windows of two modules. The bounds are those that the checkpoints are published with.
    [("critical", 0.0, 1e-5), ("subcritical", 1e-2, 1.0)],
)
def test_order_parameter_of_trained_checkpoints(reference: Path, checkpoint: str, low: float, high: float) -> None:
    model = load_model(reference / f"{checkpoint}.pth")
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    ids = tokenizer(Path(argparse.__file__).read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    outputs = deductive_outputs(model, ids[: 16 * 128].view(16, 128))
    for name, tensor in outputs._asdict().items():
        assert low < fluctuation(tensor) < high, name
