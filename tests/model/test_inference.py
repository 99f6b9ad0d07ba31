"""The metric learner without gradients: the numbers of its modules, and the modules themselves where they do more."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from plga.model.inference import KeptWeights, runs_apart
from plga.model.linear import Linear
from plga.model.operator import MetricLearner, SwiGLU
from tests.model.conftest import relative, tiny


def learner(dtype: torch.dtype = torch.float32) -> MetricLearner:
    made = tiny(dtype).model.layers[0].self_attn.operator.learner
    assert isinstance(made, MetricLearner)
    return made


def density(dtype: torch.dtype = torch.float32) -> Tensor:
    q = torch.randn(3, 2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    return q.mT @ q


def by_modules(learner: MetricLearner, density: Tensor) -> Tensor:
    with torch.enable_grad():
        return learner(density).detach()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_without_gradients_the_numbers_are_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = learner(dtype), density(dtype)
    kept, expected = given.clone(), by_modules(made, given)
    assert torch.equal(made(given), expected)
    assert torch.equal(given, kept)
    monkeypatch.setattr(nn.Linear, "__call__", lambda *_: pytest.fail("a module was called"))
    assert torch.equal(made(given), expected)


@torch.no_grad()
def test_blocks_of_several_widths() -> None:
    made = learner()
    wide = SwiGLU(4, 9)
    made.units[1].blocks[0] = wide
    expected = by_modules(made, density())
    assert torch.equal(made(density()), expected)
    assert relative(made(density(), KeptWeights()), expected) < 4 * torch.finfo(torch.float32).eps


def hook_on(part: Callable[[MetricLearner], nn.Module]) -> Callable[[MetricLearner], None]:
    return lambda learner: part(learner).register_forward_hook(lambda module, given, output: 2 * output) and None


def doubled(module: nn.Module) -> None:
    forward = module.forward
    module.forward = lambda x: 2 * forward(x)  # type: ignore[method-assign]


class Adapter(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Sharded(nn.Parameter):
    pass


def adapted(learner: MetricLearner) -> None:
    given = learner.units[0].blocks[1].up_proj
    learner.units[0].blocks[1].up_proj = Adapter(given.in_features, given.out_features)


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        hook_on(lambda learner: learner.units[1]),
        hook_on(lambda learner: learner.units[1].blocks[0]),
        hook_on(lambda learner: learner.units[0].blocks[1].gate_proj),
        hook_on(lambda learner: learner.units[0].norm),
        lambda learner: doubled(learner.units[1].blocks[0].down_proj),
        adapted,
        lambda learner: learner.units[0].blocks[0].to(torch.bfloat16) and None,
    ],
    ids=["hook of a unit", "of a block", "of a product", "of a norm", "own forward", "adapter", "low precision"],
)
def test_modules_that_do_more_are_called(change: Callable[[MetricLearner], None]) -> None:
    made = learner()
    plain = made(density())
    change(made)
    changed = made(density())
    assert not torch.equal(changed, plain)
    assert torch.equal(changed, by_modules(made, density()))


@torch.no_grad()
def test_hooks_of_all_modules_are_called() -> None:
    made, seen = learner(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, output: seen.append(module))
    made(density())
    handle.remove()
    assert made.units[0].blocks[0].gate_proj in seen


@torch.no_grad()
def test_transforms_see_the_modules() -> None:
    made, given = learner(torch.float64), density(torch.float64)
    assert relative(torch.func.vmap(made)(given), made(given)) < 1e-12
    step = torch.arange(given.numel(), dtype=given.dtype).view_as(given).sin()
    _, along = torch.func.jvp(made, (given,), (step,))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(made(forward_ad.make_dual(given, step))).tangent
    assert relative(tangent, along) < 1e-12
    moved = (made(given + 1e-6 * step) - made(given - 1e-6 * step)) / 2e-6
    assert relative(along, moved) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kept_weights_give_the_same_numbers_until_one_is_written(dtype: torch.dtype) -> None:
    made, given, kept = learner(dtype), density(dtype), KeptWeights()
    assert relative(made(given, kept), by_modules(made, given)) < 4 * torch.finfo(dtype).eps
    first = kept.products
    made(given, kept)
    assert first is not None
    assert kept.products is first
    assert first[0].blocks[0].gate.shape == (5, 16)
    other = copy.deepcopy(kept)
    assert other.products is None
    made.units[1].blocks[0].up_proj.bias.add_(1)
    expected = by_modules(made, given)
    for weights in (kept, other):
        assert relative(made(given, weights), expected) < 4 * torch.finfo(dtype).eps
    assert kept.products is not first


@torch.no_grad()
def test_weights_are_not_kept_of_modules_that_do_more() -> None:
    made, kept = learner(), KeptWeights()
    adapted(made)
    assert torch.equal(made(density(), kept), by_modules(made, density()))
    assert kept.products is None


def test_weights_of_inference_mode_are_not_kept() -> None:
    with torch.inference_mode():
        made, kept = learner(), KeptWeights()
        for change in (0, 1):
            made.units[0].norm.bias.add_(change)
            made.units[1].blocks[0].down_proj.weight.add_(change)
            assert relative(made(density(), kept), made(density())) < 4 * torch.finfo(torch.float32).eps
        assert kept.products is None


@pytest.mark.parametrize(
    "change",
    [
        lambda learner: learner.units[0].norm.register_forward_hook(lambda *_: None),
        lambda learner: learner.units[1].blocks[0].register_forward_pre_hook(lambda *_: None),
        lambda learner: doubled(learner.units[1].blocks[0].down_proj),
        lambda learner: setattr(learner.units[0].norm, "weight", Sharded(torch.ones(4))),
    ],
    ids=["hook", "hook before", "own forward", "parameter of another class"],
)
@torch.no_grad()
def test_nothing_runs_apart_that_somebody_may_see(change: Callable[[MetricLearner], object]) -> None:
    made = learner()
    assert runs_apart(made, torch.device("cpu"))
    assert not runs_apart(made, torch.device("meta"))
    change(made)
    assert not runs_apart(made, torch.device("cpu"))


@torch.no_grad()
def test_nothing_runs_apart_under_global_hooks_autocast_or_gradients() -> None:
    made, cpu = learner(), torch.device("cpu")
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not runs_apart(made, cpu)
    handle.remove()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not runs_apart(made, cpu)
    with torch.enable_grad():
        assert not runs_apart(made, cpu)
    assert runs_apart(made, cpu)
