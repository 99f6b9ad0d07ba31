"""Adoption: nothing that the model computes changes, by a bit; and a model that cannot be adopted is left alone."""

import copy
import functools
import os
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel

import plga
from plga.adopt.classes import operators
from tests.adopt.conftest import ARCHITECTURES, KERNELS, KINDS, equal, everything, padded, small, small_or_skip, tokens

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def adopted(model: PreTrainedModel, kind: str, **settings: Any) -> PreTrainedModel:
    return plga.adopt(model, kind, metric_units=1, **settings)


@functools.cache
def original(name: str, kernel: str, dtype: torch.dtype) -> tuple[PreTrainedModel, list[Tensor]]:
    model = small_or_skip(name, kernel, dtype)
    return model, everything(model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_adopted_model_is_the_original_to_the_bit(name: str, kernel: str, dtype: str, kind: str) -> None:
    model, before = original(name, kernel, DTYPES[dtype])
    ours = adopted(copy.deepcopy(model), kind)
    assert len(operators(ours)) == ours.config.num_hidden_layers
    assert equal(everything(ours), before)


@pytest.mark.parametrize("name", ["llama-multi-query", "mistral", "gemma2", "gpt2"])
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_with_a_static_cache_and_with_beams(name: str, kind: str) -> None:
    def found(model: PreTrainedModel) -> list[Tensor]:
        ids, mask = padded([tokens(9), tokens(12, seed=1)])
        options = {"attention_mask": mask, "max_new_tokens": 3, "do_sample": False}
        return [
            model.generate(ids, cache_implementation="static", **options),
            model.generate(ids, num_beams=3, **options),
            model.generate(ids, num_beams=4, num_return_sequences=2, **options),
        ]

    model = small(name, dtype=torch.float32)
    before = found(model)
    assert equal(found(adopted(model, kind)), before)


def test_soft_capping_that_really_caps_is_left_as_it_is() -> None:
    model = small("gemma2", dtype=torch.float32)
    free = small("gemma2", dtype=torch.float32, attn_logit_softcapping=None)
    before = everything(model)
    assert not equal(before, everything(free))
    assert equal(everything(adopted(model, "constant")), before)


def test_attention_sinks_are_left_as_they_are() -> None:
    model = small("gpt_oss", dtype=torch.float32)
    without = copy.deepcopy(model)
    for layer in without.model.layers:
        layer.self_attn.sinks.data.fill_(-1e4)
    before = everything(model)
    assert not equal(before, everything(without))
    assert equal(everything(adopted(model, "learned")), before)


def test_right_padding_and_embeddings_as_input() -> None:
    model = small("llama", "sdpa", torch.float32)
    ids, mask = padded([tokens(9), tokens(12, seed=1)], left=False)
    embeds = model.get_input_embeddings()(ids)
    before = [model(inputs_embeds=embeds, attention_mask=mask).logits, model(ids, attention_mask=mask).logits]
    ours = adopted(model, "learned")
    assert equal(
        [ours(inputs_embeds=embeds, attention_mask=mask).logits, ours(ids, attention_mask=mask).logits], before
    )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_model_in_training_mode_stays_so_and_dropout_draws_the_same(name: str) -> None:
    dropout = {"attn_pdrop": 0.2, "resid_pdrop": 0.2} if name == "gpt2" else {"attention_dropout": 0.2}
    model = small(name, dtype=torch.float32, **dropout).train()
    torch.manual_seed(3)
    before = model(tokens(2, 9)).logits
    adopted(model, "learned")
    assert all(module.training for module in model.modules())
    torch.manual_seed(3)
    assert torch.equal(model(tokens(2, 9)).logits, before)


def test_parts_in_evaluation_mode_stay_so() -> None:
    model = small("llama").train()
    model.model.layers[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    plga.adopt(model)
    assert {name: module.training for name, module in model.named_modules() if name in before} == before


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_not_touched_and_operators_are_float32(kind: str) -> None:
    model = small("qwen3", dtype=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert adopted(model, kind) is model
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    added = after.keys() - before.keys()
    assert added == {name for name in after if ".operator." in name}
    assert {after[name].dtype for name in added} == {torch.float32}


def test_operators_of_a_float64_model_are_float64() -> None:
    ours = adopted(small("llama"), "learned")
    assert {p.dtype for operator in operators(ours).values() for p in operator.parameters()} == {torch.float64}


@pytest.mark.parametrize("kind", ["learned", "low_rank"])
def test_a_seed_gives_the_same_bits_and_leaves_the_random_state_alone(kind: str) -> None:
    model = small("llama")
    torch.manual_seed(12)
    before = torch.get_rng_state()
    adopted(model, kind, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = (adopted(small("llama"), kind, seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in first.items())


def test_layers_get_tensors_of_their_own() -> None:
    first, second = operators(adopted(small("llama"), "learned")).values()
    assert not torch.equal(first.generator.metric_weight, second.generator.metric_weight)


def test_only_operators_are_trained_if_asked() -> None:
    from plga.adopt import train_operators_only

    model = adopted(small("llama"), "learned")
    train_operators_only(model)
    named = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert all(wanted == (".operator." in name) for name, wanted in named.items())
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no operators, expected a model that plga.adopt has ad"):
        train_operators_only(small("llama"))


def test_it_runs_as_a_function_of_the_package_and_as_a_package() -> None:
    import plga.adopt.adoption

    assert plga.adopt.adopt is plga.adopt.adoption.adopt
    with pytest.raises(AttributeError, match=r"'plga.adopt' has no attribute 'from_llama'"):
        _ = plga.adopt.from_llama


@pytest.mark.skipif("PLGA_REAL_MODEL" not in os.environ, reason="PLGA_REAL_MODEL is unset: no real checkpoint to adopt")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_real_checkpoint_is_the_original_to_the_bit(dtype: str, kernel: str, kind: str) -> None:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            os.environ["PLGA_REAL_MODEL"], dtype=DTYPES[dtype], attn_implementation=kernel
        ).eval()
    except ValueError as error:
        pytest.skip(str(error).splitlines()[0])
    before = everything(model)
    assert equal(everything(plga.adopt(model, kind)), before)
