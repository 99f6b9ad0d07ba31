"""The published recipe: schedule by hand, optimizer as published, impossible numbers."""

import math

import pytest
import torch

from plga.training.recipe import Recipe
from tests.training import examples

RECIPE = Recipe(learning_rate=8e-3, warmup=4, steps=14, stop=14)


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (0, 1 / 4),
        (2, 3 / 4),
        (3, 1.0),  # the last step of the warmup is at the maximum
        (4, 1.0),  # and the cosine starts there
        (9, 0.55),  # half way: the mean of 1 and a tenth
        (14, 0.1),
    ],
)
def test_learning_rate_by_hand(step: int, share: float) -> None:
    assert RECIPE.learning_rate_at(step) == pytest.approx(8e-3 * share, rel=1e-12)


def test_without_warmup_the_cosine_starts_at_once() -> None:
    assert Recipe(learning_rate=1.0, warmup=0, steps=10, stop=10).learning_rate_at(0) == 1.0


def test_optimizer_as_published() -> None:
    model = examples.model()
    optimizer = RECIPE.optimizer(model)
    (group,) = optimizer.param_groups
    assert type(optimizer) is torch.optim.AdamW
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.95), 1e-5, 0.1)
    assert not group["amsgrad"]
    assert RECIPE.clip == 1.0
    # Every parameter once, biases and LayerNorms in the same group.
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, "learning rate is 0.0"),
        ({"learning_rate": -1.0}, "learning rate is -1.0"),
        ({"learning_rate": math.nan}, "learning rate is nan"),
        ({"learning_rate": math.inf}, "learning rate is inf"),
        ({"warmup": -1}, "warmup is -1"),
        ({"warmup": 20}, "warmup is 20, expected 0 <= warmup < steps = 20"),
        ({"stop": 0}, "stop is 0"),
        ({"stop": 21}, "stop is 21, expected 1 <= stop <= steps = 20"),
        ({"batch": 0}, "batch is 0"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"clip": -1.0}, "clip is -1.0"),
        ({"clip": math.nan}, "clip is nan"),
    ],
)
def test_impossible_numbers_are_named(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        examples.recipe(**changes)
