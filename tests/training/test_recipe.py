"""The published recipe: schedule by hand, optimizer as published, impossible numbers."""

import math
from typing import Any

import pytest
import torch

from plga.training.recipe import Recipe
from tests.training import examples

RECIPE = Recipe(learning_rate=8e-3, warmup=4, steps=14)


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
    assert Recipe(learning_rate=1.0, warmup=0, steps=10).learning_rate_at(0) == 1.0


def test_warmup_as_a_share_is_that_of_the_steps() -> None:
    by_share, by_steps = Recipe(warmup=0.05, steps=200), Recipe(warmup=10, steps=200)
    assert by_share.warmup_steps == 10
    assert [by_share.learning_rate_at(s) for s in range(200)] == [by_steps.learning_rate_at(s) for s in range(200)]


def test_a_run_that_stops_earlier_keeps_the_schedule() -> None:
    assert (RECIPE.last, Recipe(warmup=4, steps=14, stop=6).last) == (14, 6)
    assert Recipe(learning_rate=8e-3, warmup=4, steps=14, stop=6).learning_rate_at(5) == RECIPE.learning_rate_at(5)


def test_optimizer_as_published() -> None:
    model = examples.model()
    optimizer = RECIPE.optimizer(model)
    (group,) = optimizer.param_groups
    assert type(optimizer) is torch.optim.AdamW
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.95), 1e-5, 0.1)
    assert not group["amsgrad"]
    # Every parameter once, biases and LayerNorms in the same group.
    assert {id(p) for p in group["params"]} == {id(p) for p in model.parameters()}


def test_a_constant_operator_is_not_trained() -> None:
    model = examples.model(operator="constant", constant="identity")
    (group,) = RECIPE.optimizer(model).param_groups
    trained = {id(p) for p in group["params"]}
    left_out = [name for name, p in model.named_parameters() if id(p) not in trained]
    assert left_out == [f"model.layers.{i}.self_attn.operator.curvature" for i in range(2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected greater than 0"),
        ({"learning_rate": math.nan}, "learning_rate is nan, expected a finite number"),
        ({"learning_rate": math.inf}, "learning_rate is inf, expected a finite number"),
        ({"warmup": -1}, "warmup is -1"),
        ({"warmup": 14}, "warmup is 14, expected fewer than steps = 14"),
        ({"stop": 0}, "stop is 0"),
        ({"stop": 15}, "stop is 15, expected <= steps = 14"),
        ({"batch": 0}, "batch is 0"),
        ({"clip_at": 0.0}, "clip_at is 0.0"),
        ({"betas": (0.9, 1.0)}, "betas.1 is 1.0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_impossible_numbers_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Recipe.checked({"warmup": 4, "steps": 14, **changes}, "recipe")
    assert message in str(raised.value)
