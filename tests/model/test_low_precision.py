"""A constant operator in fewer bytes: bf16, and int8 weights by torchao."""

import copy

import pytest
import torch

from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import constant, relative, tokens


@pytest.fixture(params=["bf16", "int8"])
def fewer_bytes(request: pytest.FixtureRequest) -> tuple[PldrForCausalLM, PldrForCausalLM]:
    """A model in float32, and the same in fewer bytes."""
    model = constant().float()
    other = copy.deepcopy(model).to(torch.bfloat16)
    if request.param == "int8":
        quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
        quantization.quantize_(other, quantization.Int8WeightOnlyConfig())
    return model, other


@torch.no_grad()
def test_logits_stay_near(fewer_bytes: tuple[PldrForCausalLM, PldrForCausalLM]) -> None:
    model, other = fewer_bytes
    ids = tokens(2, 8)
    assert relative(other(ids).logits.float(), model(ids).logits) < 3e-2


def test_generation_is_one_pass(fewer_bytes: tuple[PldrForCausalLM, PldrForCausalLM]) -> None:
    """Through the cache, token by token, the logits are those of one pass, in the same few bytes."""
    _, other = fewer_bytes
    out = other.generate(
        tokens(1, 4), max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    with torch.no_grad():
        whole = other(out.sequences[:, :-1]).logits[:, 3:]
    assert relative(torch.stack(out.logits, dim=1), whole.float()) < 1e-2
