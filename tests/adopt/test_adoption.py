"""Adoption: nothing that the model computes changes, by a bit; and a model that cannot be adopted is left alone."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor
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
