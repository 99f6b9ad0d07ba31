"""Freezing: the operator becomes a constant, and nothing else changes."""

import copy
import math
from pathlib import Path

import pytest
import torch

from plga.collapse.freeze import freeze, freeze_on
from plga.criticality.order_parameter import deductive_outputs, fluctuation
from plga.model.checkpoint import load_model, save_model
from plga.model.modeling import PldrModel
from plga.model.operator import ConstantOperator, LearnedOperator
from tests.training import examples


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_other_tensor_keeps_its_bits(dtype: torch.dtype) -> None:
    model = examples.model().to(dtype)
    before = copy.deepcopy(model.state_dict())
    curvature = torch.randn(2, 2, 4, 4)
    frozen = freeze(model, curvature)

    tensors = frozen.state_dict()
    operators = {f"model.layers.{i}.self_attn.operator.curvature" for i in range(2)}
    assert tensors.keys() == {name for name in before if ".operator." not in name} | operators
    for name, tensor in tensors.items():
        if name in operators:
            assert torch.equal(tensor, curvature[int(name.split(".")[2])].to(dtype)), name
        else:
            assert torch.equal(tensor, before[name]), name
        assert tensor.dtype == dtype

    # A copy: the model is as it was, and stays so when the copy changes.
    with torch.no_grad():
        for parameter in frozen.parameters():
            parameter.fill_(0)
    curvature.fill_(0)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert model.config.operator == "learned"
    assert isinstance(model.model.layers[0].self_attn.operator, LearnedOperator)


def test_tensors_of_several_dtypes_keep_them() -> None:
    model = examples.model()
    model.lm_head.half()
    frozen = freeze(model, torch.randn(2, 2, 4, 4))
    assert torch.equal(frozen.lm_head.weight, model.lm_head.weight)
    assert frozen.lm_head.weight.dtype == torch.float16


def test_settings_of_the_frozen_model() -> None:
    model = examples.model()
    model.generation_config.max_new_tokens = 7
    model.lm_head.requires_grad_(False)
    frozen = freeze(model, torch.randn(2, 2, 4, 4))
    assert (frozen.config.operator, frozen.config.constant) == ("constant", "external")
    assert frozen.generation_config.max_new_tokens == 7
    assert not frozen.training
    assert freeze(model.train(), torch.randn(2, 2, 4, 4)).training
    operators = [module for module in frozen.modules() if isinstance(module, ConstantOperator)]
    assert len(operators) == 2
    assert not any(operator.curvature.requires_grad for operator in operators)


def test_freezing_draws_no_random_number() -> None:
    model, curvature = examples.model(), torch.randn(2, 2, 4, 4)
    state = torch.get_rng_state()
    freeze(model, curvature)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_frozen_model_computes_with_the_constant() -> None:
    model = examples.model(dtype=torch.float64)
    inputs = torch.randint(examples.VOCABULARY, (1, 9))
    out = model(inputs, use_cache=False, output_deductive=True)
    own = torch.stack([layer.curvature[0] for layer in out.deductive])
    frozen = freeze(model, own)
    torch.testing.assert_close(frozen(inputs, use_cache=False).logits, out.logits, rtol=1e-10, atol=1e-10)
    other = freeze(model, own + 1)
    assert not torch.allclose(other(inputs, use_cache=False).logits, out.logits, rtol=1e-3)


def test_a_frozen_model_can_be_frozen_anew() -> None:
    first, second = torch.randn(2, 2, 2, 4, 4)
    frozen = freeze(freeze(examples.model(), first), second)
    for layer, constant in zip(frozen.model.layers, second, strict=True):
        assert torch.equal(layer.self_attn.operator.curvature, constant)


def test_a_decoder_without_a_head_can_be_frozen() -> None:
    decoder = PldrModel(examples.model().config)
    assert isinstance(freeze(decoder, torch.randn(2, 2, 4, 4)), PldrModel)


@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 2, 4, 4), (2, 2, 4, 5), (1, 2, 2, 4, 4)])
def test_a_constant_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \(2, 2, 4, 4\)"):
        freeze(examples.model(), torch.zeros(shape))


@pytest.mark.parametrize(("value", "dtype"), [(math.nan, torch.float32), (-math.inf, torch.float32), (1e6, torch.half)])
def test_a_constant_that_is_not_finite_in_the_model_is_refused(value: float, dtype: torch.dtype) -> None:
    curvature = torch.zeros(2, 2, 4, 4)
    curvature[1, 0, 2, 3] = value
    with pytest.raises(ValueError, match=r"curvature is \(2, 2, 4, 4\) with non-finite entries"):
        freeze(examples.model(dtype=dtype), curvature)


def test_freeze_on_takes_the_mean_and_tells_the_fluctuation() -> None:
    model = examples.model()
    inputs = torch.randint(examples.VOCABULARY, (5, 9))
    frozen, told = freeze_on(model, inputs)
    curvature = deductive_outputs(model, inputs).curvature
    for layer, mean in zip(frozen.model.layers, curvature.mean(dim=0), strict=True):
        assert torch.equal(layer.self_attn.operator.curvature, mean)
    assert told == fluctuation(curvature) > 0


def test_freeze_on_refuses_a_constant_operator_and_a_single_input() -> None:
    frozen, _ = freeze_on(examples.model(), torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="constant, expected learned"):
        freeze_on(frozen, torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="N >= 2"):
        freeze_on(examples.model(), torch.ones(1, 3, dtype=torch.int64))


@torch.no_grad()
def test_an_operator_with_a_chunked_gram(tmp_path: Path) -> None:
    """Frozen at its mean over chunks and inputs; frozen at that of no token, it keeps the rows of the first chunk."""
    model = examples.model(dtype=torch.float64, gram="chunked", gram_chunk=4)
    ids = torch.randint(examples.VOCABULARY, (4, 9))
    outputs = deductive_outputs(model, ids).curvature
    frozen, moved = freeze_on(model, ids)
    assert moved == fluctuation(outputs) > 1e-3
    for layer, mean in zip(frozen.model.layers, outputs.mean(dim=0), strict=True):
        assert torch.equal(layer.self_attn.operator.curvature, mean)
    first = freeze(model, outputs[0])
    torch.testing.assert_close(first(ids).logits[:, :4], model(ids).logits[:, :4], rtol=1e-10, atol=1e-12)
    assert model.config.gram == "chunked"

    save_model(frozen, tmp_path / "frozen")
    loaded = load_model(tmp_path / "frozen", dtype=None)
    assert (loaded.config.operator, loaded.config.gram, loaded.config.modes) == ("constant", "global", ("constant",))
    assert torch.equal(loaded(ids).logits, frozen(ids).logits)
