"""The linear layer: the numbers of PyTorch's, by oneDNN where that is faster and nothing but numbers is wanted."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from plga.model import linear
from plga.model.linear import Linear
from tests.model.conftest import relative

WIDTH = 768
ROUNDING = 20 * torch.finfo(torch.float32).eps  # of a sum of so many products


@pytest.fixture(autouse=True)
def on_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this was such a processor: what is computed does not depend on it."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(linear, "ONEDNN", True)


def layer(out: int = WIDTH, bias: bool = True) -> Linear:
    torch.manual_seed(0)
    made = Linear(WIDTH, out, bias=bias)
    assert made.weight.numel() == WIDTH * out
    return made


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(1))


def by_onednn(call: Callable[[], object]) -> bool:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    names = {event.key for event in profiler.key_averages()}
    assert any("linear" in name for name in names), names
    return "mkldnn::_linear_pointwise" in names


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3, 5), (2, 0), (16,)], ids=str)
def test_the_numbers_are_those_of_float64(shape: tuple[int, ...], bias: bool) -> None:
    made, x = layer(WIDTH + 3, bias), rows(*shape)
    assert by_onednn(lambda: made(x))
    expected = nn.functional.linear(x.double(), made.weight.double(), made.bias.double() if bias else None)
    assert made(x).shape == expected.shape and made(x).dtype == torch.float32
    assert ((made(x) - expected).abs() < ROUNDING).all()


@torch.no_grad()
def test_other_processors_keep_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "ONEDNN", False)
    made, x = layer(), rows(3)
    assert not by_onednn(lambda: made(x))
    assert torch.equal(made(x), nn.functional.linear(x, made.weight, made.bias))


@torch.no_grad()
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it sets the same thing each time
@given(st.integers(1, 16), st.sampled_from(["transposed", "sliced", "expanded"]))
def test_any_strides_of_the_rows(count: int, kind: str) -> None:
    made = layer()
    x = {
        "transposed": lambda: torch.randn(WIDTH, count).t(),
        "sliced": lambda: torch.randn(count, 2 * WIDTH)[:, ::2],
        "expanded": lambda: torch.randn(1, WIDTH).expand(count, WIDTH),
    }[kind]()
    assert relative(made(x), made(x.clone(memory_format=torch.contiguous_format))) < ROUNDING


def transposed(made: Linear) -> None:
    made.weight = nn.Parameter(made.weight.t())


def strided(made: Linear) -> None:
    made.bias = nn.Parameter(torch.randn(2 * WIDTH)[::2])


class Sharded(nn.Parameter):
    pass


@pytest.mark.parametrize(
    ("context", "change"),
    [
        (torch.enable_grad, lambda made: None),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda made: None),
        (lambda: torch.backends.mkldnn.flags(enabled=False), lambda made: None),
        (lambda: FlopCounterMode(display=False), lambda made: None),
        (forward_ad.dual_level, lambda made: None),
        (nullcontext, lambda made: setattr(made, "weight", Sharded(made.weight))),
        (nullcontext, transposed),
        (nullcontext, strided),
        (nullcontext, lambda made: setattr(made, "bias", nn.Parameter(torch.randn(1).expand(WIDTH)))),
        (nullcontext, lambda made: setattr(made, "bias", nn.Parameter(torch.randn(1)))),
        (nullcontext, lambda made: setattr(made, "bias", nn.Parameter(torch.randn(())))),
        (nullcontext, lambda made: setattr(made, "weight", nn.Parameter(made.weight[:64].clone()))),
    ],
    ids=[
        "gradients",
        "autocast",
        "switched off",
        "counted",
        "dual",
        "sharded",
        "transposed",
        "strided",
        "expanded",
        "one",
        "scalar",
        "small",
    ],
)
@torch.no_grad()
def test_everything_else_is_left_to_pytorch(
    context: Callable[[], AbstractContextManager[object]], change: Callable[[Linear], object]
) -> None:
    made, x = layer(bias=False), rows(3)
    change(made)
    with context():
        assert not by_onednn(lambda: made(x))
        assert torch.equal(made(x), nn.functional.linear(x, made.weight, made.bias))


@torch.no_grad()
@pytest.mark.parametrize("shape", [(17,), (2, 9)])
def test_many_rows_are_pytorchs(shape: tuple[int, ...]) -> None:
    made, x = layer(), rows(*shape)
    assert not by_onednn(lambda: made(x))
    assert torch.equal(made(x), nn.functional.linear(x, made.weight, made.bias))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_dtypes_are_pytorchs(dtype: torch.dtype) -> None:
    made, x = layer().to(dtype), rows(3).to(dtype)
    assert torch.equal(made(x), nn.functional.linear(x, made.weight, made.bias))


@torch.no_grad()
def test_the_dtype_is_that_of_the_input() -> None:
    made, x = layer(), rows(3)
    low = layer().to(torch.bfloat16)
    assert low(x).dtype == torch.float32
    assert torch.equal(low(x), nn.functional.linear(x, low.weight.float(), low.bias.float()))
    assert torch.equal(made(x.double()), nn.functional.linear(x.double(), made.weight.double(), made.bias.double()))


@torch.no_grad()
def test_transforms_and_graphs_see_pytorchs_operation() -> None:
    made, x = layer(), rows(3, 2)
    assert relative(torch.func.vmap(made)(x), made(x)) < ROUNDING
    _, along = torch.func.jvp(made, (x,), (x,))
    assert relative(along, made(x) - made.bias) < ROUNDING
    assert "mkldnn" not in str(torch.export.export(made, (x,)).graph)
    assert "mkldnn" not in str(torch.jit.trace(made, (x,), check_trace=False).graph)


@torch.no_grad()
@pytest.mark.parametrize(
    ("x", "bias", "words"),
    [
        (rows(3)[:, 1:], torch.zeros(WIDTH), "shapes cannot be multiplied"),
        (rows(3), torch.zeros(WIDTH - 1), "size"),
        (rows(3), torch.zeros(WIDTH, dtype=torch.float64), "dtype"),
        (rows(3), torch.zeros(WIDTH, device="meta"), "device"),
    ],
    ids=["rows", "bias", "dtype", "device"],
)
def test_what_does_not_fit_is_refused_in_pytorchs_words(x: Tensor, bias: Tensor, words: str) -> None:
    made = layer()
    made.bias = nn.Parameter(bias)
    with pytest.raises(RuntimeError, match=words):
        made(x)


def test_gradients_are_those_of_pytorch() -> None:
    made, x = layer(), rows(3).requires_grad_()
    made(x).square().sum().backward()
    expected = torch.autograd.grad(
        nn.functional.linear(x, made.weight, made.bias).square().sum(), [x, made.weight, made.bias]
    )
    for ours, theirs in zip((x.grad, made.weight.grad, made.bias.grad), expected, strict=True):
        assert torch.equal(ours, theirs)
