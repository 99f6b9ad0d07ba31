import math
import re

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.ops.power_law import curvature_tensor, iswiglu, metric_tensor, potential_tensor
from tests import numpy_reference as ref
from tests.ops.examples import DTYPES, LEADS, SEEDS, WIDTHS, close, normal, positive


def test_iswiglu_by_hand() -> None:
    u = torch.tensor([0.0, math.log(3.0), -math.log(3.0)], dtype=torch.float64)  # σ(ln 3) = 3/4
    close(iswiglu(u), math.log(3.0) ** 2 * torch.tensor([0.0, 0.75, 0.25], dtype=torch.float64), roundings=4)


@pytest.mark.parametrize("u", [-700.0, -80.0, -1.5, -1e-9, 1e-200, 1e-9, 2.0, 37.0, 1e3, 1e150])
def test_iswiglu_against_mpmath(u: float) -> None:
    with mpmath.workdps(60):
        expected = float(mpmath.mpf(u) ** 2 / (1 + mpmath.exp(-mpmath.mpf(u))))
    assert float(iswiglu(torch.tensor(u, dtype=torch.float64))) == pytest.approx(expected, rel=1e-15, abs=0)


def test_iswiglu_far_out() -> None:
    """u² alone overflows float32 here; the product is 0 on the left, and finite on the right as long as u² is."""
    u = torch.tensor([-1e30, -1e20, 1e19], requires_grad=True)
    value = iswiglu(u)
    value.sum().backward()
    assert torch.equal(value.detach(), torch.tensor([0.0, 0.0, 1e19 * 1e19]))
    torch.testing.assert_close(u.grad, torch.tensor([0.0, 0.0, 2e19]))


@given(LEADS, DTYPES, SEEDS, st.floats(0.1, 100.0))
def test_iswiglu_is_never_negative(lead, dtype, seed, scale) -> None:
    u = scale * normal(*lead, 7, seed=seed, dtype=dtype)
    value = iswiglu(u)
    assert value.shape == u.shape and value.dtype == dtype
    assert (value >= 0).all()
    close(value, u.double().square() * u.double().sigmoid())


def test_by_hand() -> None:
    """W = 1, b_W = ln 3 on the diagonal; W multiplies from the left, and so does a."""
    log3 = math.log(3.0)
    generator = torch.zeros(2, 2, dtype=torch.float64)
    bias = torch.tensor([[log3, 0.0], [0.0, -log3]], dtype=torch.float64)
    metric = metric_tensor(generator, torch.eye(2, dtype=torch.float64), bias, eps=0.5)
    expected = torch.tensor([[0.75 * log3**2 + 0.5, 0.5], [0.5, 0.25 * log3**2 + 0.5]], dtype=torch.float64)
    close(metric, expected, roundings=4)

    metric = torch.tensor([[4.0, 2.0], [1.0, 9.0]])
    exponent = torch.tensor([[0.5, -1.0], [7.0, 0.0]])
    potential = potential_tensor(metric, exponent)
    close(potential, torch.tensor([[2.0, 0.5], [1.0, 1.0]]), roundings=4)

    swap_and_double = torch.tensor([[0.0, 2.0], [2.0, 0.0]])  # on rows, from the left
    curvature = curvature_tensor(torch.tensor([[2.0, 0.5], [1.0, 3.0]]), swap_and_double, torch.ones(2, 2))
    assert torch.equal(curvature, torch.tensor([[3.0, 7.0], [5.0, 2.0]]))
    lower = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    moved = metric_tensor(torch.tensor([[2.0, 3.0], [5.0, 7.0]]), lower, torch.zeros(2, 2))
    assert torch.equal(moved[0], torch.full((2,), 1e-9)) and (moved[1] > 1).all()  # row 1 holds row 0 of A


@given(LEADS, st.integers(1, 3), WIDTHS, DTYPES, SEEDS)
def test_equals_the_numpy_reference(lead, heads, width, dtype, seed) -> None:
    generator = normal(*lead, heads, width, width, seed=seed, dtype=dtype)
    w, b_w, p, a, b_a = (0.5 * normal(heads, width, width, seed=seed + i, dtype=dtype) for i in range(1, 6))
    metric = metric_tensor(generator, w, b_w)
    potential = potential_tensor(metric, p)
    curvature = curvature_tensor(potential, a, b_a)
    weights = {"Wlst": w, "blst": b_w, "pwlst": p, "alst": a, "balst": b_a}
    expected = ref.power_law(
        {f"g.{k}": v.double().numpy() for k, v in weights.items()}, "g", generator.double().numpy(), 1e-9
    )
    assert (metric >= 1e-9).all() and (potential > 0).all()
    # Small A_LM entries lose their relative precision, which the exponent spreads; in float32 take the parts alone.
    close(metric, torch.from_numpy(expected[0]), roundings=1e3)
    if dtype == torch.float64:
        torch.testing.assert_close(potential, torch.from_numpy(expected[1]), rtol=1e-6, atol=0)
    close(potential, metric.double() ** p.double(), roundings=1e3)
    close(curvature, a.double() @ potential.double() + b_a.double(), roundings=1e3)


@given(LEADS, WIDTHS, DTYPES, SEEDS, st.sampled_from([-1.0, -0.5, 0.0, 0.3, 1.0, 2]))
def test_scalar_exponent_is_the_constant_tensor(lead, width, dtype, seed, alpha) -> None:
    metric = positive(*lead, width, width, seed=seed, dtype=dtype)
    scalar = potential_tensor(metric, alpha)
    assert scalar.dtype == dtype
    close(scalar, potential_tensor(metric, torch.full((width, width), float(alpha), dtype=dtype)), roundings=8)
    close(scalar, potential_tensor(metric, torch.tensor(float(alpha), dtype=dtype)), roundings=8)
    if alpha == 1:
        assert torch.equal(scalar, metric)
    if alpha == 0:
        assert torch.equal(scalar, torch.ones_like(metric))


@given(LEADS, WIDTHS, SEEDS)
def test_power_law_identities(lead, width, seed) -> None:
    """A^{P + Q} = A^P A^Q, and log A^P = P log A."""
    metric = positive(*lead, width, width, seed=seed)
    p, q = normal(width, width, seed=seed + 1), normal(width, width, seed=seed + 2)
    product = potential_tensor(metric, p) * potential_tensor(metric, q)
    torch.testing.assert_close(potential_tensor(metric, p + q), product, rtol=1e-13, atol=0)
    close(potential_tensor(metric, p).log(), p * metric.log())


def test_heads_do_not_mix() -> None:
    generator, weight, bias = normal(2, 3, 4, 4), normal(3, 4, 4, seed=1), normal(3, 4, 4, seed=2)
    together = curvature_tensor(metric_tensor(generator, weight, bias), weight, bias)
    for head in range(3):
        g, w, b = generator[:, head], weight[head], bias[head]
        torch.testing.assert_close(together[:, head], curvature_tensor(metric_tensor(g, w, b), w, b))


def test_gradients() -> None:
    check = torch.autograd.gradcheck
    x, w, b = (normal(*shape, seed=i).requires_grad_() for i, shape in enumerate([(2, 2, 3, 3), (2, 3, 3), (2, 3, 3)]))
    metric = positive(2, 2, 3, 3, seed=4).requires_grad_()
    assert check(iswiglu, x)
    assert check(metric_tensor, (x, w, b))
    assert check(potential_tensor, (metric, w))
    assert check(lambda m: potential_tensor(m, -0.7), metric)
    assert check(curvature_tensor, (x, w, b))
    assert torch.autograd.gradgradcheck(potential_tensor, (metric, w))


def test_values_are_checked_only_on_request() -> None:
    bad, one = torch.full((2, 2), torch.nan), torch.ones(2, 2)
    zero = torch.zeros(2, 2)
    assert metric_tensor(bad, one, one, check_values=False).isnan().all()
    assert torch.equal(potential_tensor(zero, -one, check_values=False), torch.full((2, 2), torch.inf))
    assert curvature_tensor(bad, one, one, check_values=False).isnan().all()


ONE, LONG, DOUBLE = torch.ones(2, 2), torch.ones(2, 2, dtype=torch.long), torch.ones(2, 2).double()
WIDE, TALL, NAN = torch.ones(3, 3), torch.ones(2, 3), torch.full((2, 2), torch.nan)
STACK, NEGATIVE = torch.ones(5, 2, 2), torch.tensor([[1.0, 1.0], [-0.25, 1.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iswiglu(LONG), "u is (2, 2) int64, expected a floating-point dtype"),
        (lambda: iswiglu([1.0]), "u is list, expected a torch.Tensor"),
        (lambda: metric_tensor(TALL, ONE, ONE), "generator is (2, 3) float32, expected [..., d, d]"),
        (lambda: metric_tensor(torch.ones(0, 0), ONE, ONE), "generator is (0, 0) float32, expected [..., d, d]"),
        (lambda: metric_tensor(LONG, ONE, ONE), "generator is (2, 2) int64, expected a floating-point"),
        (
            lambda: metric_tensor(ONE, DOUBLE, ONE),
            "weight is (2, 2) float64, expected the dtype of generator, torch.float32",
        ),
        (
            lambda: metric_tensor(ONE, ONE, DOUBLE),
            "bias is (2, 2) float64, expected the dtype of generator, torch.float32",
        ),
        (lambda: metric_tensor(ONE, TALL, ONE), "weight is (2, 3) float32, expected [..., d, d]"),
        (lambda: metric_tensor(ONE, WIDE, ONE), "weight is (3, 3) float32, expected [H, d, d]"),
        (lambda: metric_tensor(ONE, ONE, STACK), "bias is (5, 2, 2) float32, expected [H, d, d]"),
        (lambda: metric_tensor(ONE, ONE, ONE, eps=-1e-9), "eps is -1e-09, expected a finite number >= 0"),
        (lambda: metric_tensor(ONE, ONE, ONE, eps=math.nan), "eps is nan, expected a finite number >= 0"),
        (lambda: metric_tensor(ONE, ONE, ONE, eps=math.inf), "eps is inf, expected a finite number >= 0"),
        (
            lambda: metric_tensor(NAN, ONE, ONE),
            "generator is (2, 2) float32 with 4 non-finite entries, expected finite",
        ),
        (lambda: metric_tensor(ONE, NAN, ONE), "weight is (2, 2) float32 with 4 non-finite entries, expected finite"),
        (lambda: metric_tensor(ONE, ONE, NAN), "bias is (2, 2) float32 with 4 non-finite entries, expected finite"),
        (lambda: potential_tensor(TALL, ONE), "metric is (2, 3) float32, expected [..., d, d]"),
        (lambda: potential_tensor(ONE, DOUBLE), "exponent is (2, 2) float64, expected the dtype of metric"),
        (lambda: potential_tensor(ONE, LONG), "exponent is (2, 2) int64, expected the dtype of metric"),
        (lambda: potential_tensor(ONE, WIDE), "exponent is (3, 3) float32, expected [H, d, d]"),
        (lambda: potential_tensor(ONE, torch.ones(2)), "exponent is (2,) float32, expected at least 2 axes"),
        (lambda: potential_tensor(ONE, NAN), "exponent is (2, 2) float32 with 4 non-finite entries, expected finite"),
        (lambda: potential_tensor(ONE, math.nan), "exponent is nan, expected a finite number"),
        (lambda: potential_tensor(ONE, -math.inf), "exponent is -inf, expected a finite number"),
        (
            lambda: potential_tensor(NEGATIVE, 2.0),
            "metric is (2, 2) float32 with smallest entry -0.25, expected entries > 0",
        ),
        (lambda: potential_tensor(torch.zeros(2, 2), ONE), "metric is (2, 2) float32 with smallest entry 0, expected"),
        (lambda: potential_tensor(NAN, ONE), "metric is (2, 2) float32 with 4 non-finite entries, expected finite"),
        (lambda: curvature_tensor(TALL, ONE, ONE), "potential is (2, 3) float32, expected [..., d, d]"),
        (lambda: curvature_tensor(ONE, DOUBLE, ONE), "weight is (2, 2) float64, expected the dtype of potential"),
        (lambda: curvature_tensor(ONE, ONE, DOUBLE), "bias is (2, 2) float64, expected the dtype of potential"),
        (lambda: curvature_tensor(ONE, STACK, ONE), "weight is (5, 2, 2) float32, expected [H, d, d]"),
        (lambda: curvature_tensor(ONE, ONE, WIDE), "bias is (3, 3) float32, expected [H, d, d]"),
        (
            lambda: curvature_tensor(NAN, ONE, ONE),
            "potential is (2, 2) float32 with 4 non-finite entries, expected finite",
        ),
        (
            lambda: curvature_tensor(ONE, NAN, ONE),
            "weight is (2, 2) float32 with 4 non-finite entries, expected finite",
        ),
        (lambda: curvature_tensor(ONE, ONE, NAN), "bias is (2, 2) float32 with 4 non-finite entries, expected finite"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()
