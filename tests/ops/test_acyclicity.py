import math
import re

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plga.ops import acyclicity
from plga.ops.acyclicity import dag_loss
from tests import numpy_reference as ref
from tests.ops.examples import DTYPES, LEADS, SEEDS, WIDTHS, normal, positive


def value_and_gradient(m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = m.clone().requires_grad_()
    loss = dag_loss(leaf)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), gradient


def by_mpmath(m: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one matrix from a matrix exponential with 80 digits and no bound on the exponent."""
    with mpmath.workdps(80):
        width, entries = m.shape[-1], m.double().tolist()
        exponential = mpmath.expm(mpmath.matrix(entries).apply(lambda x: x * x), method="taylor")
        trace = mpmath.fsum(exponential[i, i] for i in range(width))
        gradient = [[float(2 * entries[i][j] * exponential[j, i] / trace) for j in range(width)] for i in range(width)]
        return float(mpmath.log(trace / width)), torch.tensor(gradient, dtype=torch.float64)


def agrees_with_mpmath(m: torch.Tensor, bound: float) -> None:
    """The loss relative to itself (down to where the dtype ends), the gradient relative to its largest entry."""
    (loss, gradient), (exact_loss, exact_gradient) = value_and_gradient(m), by_mpmath(m)
    assert loss.dtype == gradient.dtype == m.dtype
    tiny = torch.finfo(m.dtype).tiny
    assert float(loss) == pytest.approx(exact_loss, rel=bound, abs=tiny)
    assert float((gradient - exact_gradient).abs().max()) <= bound * float(exact_gradient.abs().max()) + tiny


def test_by_hand() -> None:
    """1 x 1: m². Diagonal: the mean of e^(m²). A 2-cycle with weights a and b: log cosh(ab)."""
    assert float(dag_loss(torch.tensor([[3.0]]))) == 9.0
    assert float(dag_loss(torch.zeros(4, 4))) == 0.0
    diagonal = torch.tensor([math.sqrt(math.log(2.0)), math.sqrt(math.log(6.0))], dtype=torch.float64).diag()
    assert float(dag_loss(diagonal)) == pytest.approx(math.log(4.0), rel=1e-14)
    for a, b in [(0.5, 2.0), (1e-3, 1e-2), (30.0, 10.0), (1e3, 1e3), (1e6, 1e-6)]:
        expected = math.log(math.cosh(a * b)) if a * b < 100 else a * b - math.log(2.0)
        if a * b < 1e-3:
            expected = (a * b) ** 2 / 2  # to (ab)^4 / 12
        two_cycle = torch.tensor([[0.0, a], [b, 0.0]], dtype=torch.float64)
        assert float(dag_loss(two_cycle)) == pytest.approx(expected, rel=1e-9, abs=0), (a, b)


KINDS = {
    "normal": lambda d, seed: normal(d, d, seed=seed),
    "positive": lambda d, seed: positive(d, d, seed=seed),
    "spread": lambda d, seed: positive(d, d, seed=seed, spread=3.0) / 100,
    "ring": lambda d, seed: torch.eye(d, dtype=torch.float64).roll(1, 0) * positive(d, 1, seed=seed),
    "blocks": lambda d, seed: normal(d, d, seed=seed) * (torch.arange(d) // 2 == torch.arange(d)[:, None] // 2),
    "off diagonal": lambda d, seed: normal(d, d, seed=seed).fill_diagonal_(0.0),
    "lop-sided": lambda d, seed: normal(d, d, seed=seed).triu() + 1e-3 * normal(d, d, seed=seed + 1).tril(-1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 1.0, 5.0, 30.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_against_mpmath(kind: str, scale: float, dtype: torch.dtype) -> None:
    for seed, width in enumerate([2, 3, 5]):
        m = (scale * KINDS[kind](width, seed)).to(dtype)
        agrees_with_mpmath(m, 1e-12 if dtype == torch.float64 else 4e-7)


@given(WIDTHS, SEEDS, st.floats(-6.0, 3.0))
def test_random_magnitudes_against_mpmath(width, seed, exponent) -> None:
    agrees_with_mpmath(10.0**exponent * normal(width, width, seed=seed), 1e-12)


def test_wide_matrix_against_mpmath() -> None:
    agrees_with_mpmath(1e3 * normal(16, 16).float(), 4e-7)
    agrees_with_mpmath(0.1 * normal(16, 16), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0, 1e3, 1e15])
@pytest.mark.parametrize("width", [1, 2, 3, 8, 32, 64])
def test_no_cycle_is_exactly_zero(width: int, scale: float, dtype: torch.dtype) -> None:
    """Strictly triangular, and the same graph with its nodes renamed. M ⊙ exp(M ⊙ M)ᵀ is 0 entry by entry."""
    triangular = (scale * positive(width, width)).triu(1).to(dtype)
    order = torch.randperm(width)
    for m in (triangular, triangular.mT, triangular[order][:, order]):
        loss, gradient = value_and_gradient(m)
        assert float(loss) == 0.0
        assert torch.equal(gradient, torch.zeros_like(m))


def test_a_short_cycle_beside_a_huge_acyclic_part() -> None:
    """Entries of 1e3 above the diagonal, and one edge back that closes cycles."""
    for back in (1e-9, 1e-3, 1.0):
        m = (1e3 * positive(4, 4)).triu(1)
        m[3, 0] = back
        agrees_with_mpmath(m, 1e-9)


def test_where_the_matrix_exponential_overflows() -> None:
    """A_P around 1e3: the plain exponential is infinite in float32 and float64, the loss is about 1e6."""
    m = 1e3 * (1 + 0.1 * normal(8, 8)).float()
    assert torch.linalg.matrix_exp(m * m).isinf().any()
    assert not torch.linalg.matrix_exp((m * m).double()).isfinite().all()
    loss, gradient = value_and_gradient(m)
    assert loss.isfinite() and gradient.isfinite().all() and 7e6 < float(loss) < 9e6
    agrees_with_mpmath(m, 4e-7)
    # A ring of entries 1e3 has spectral radius 1e6.
    ring = 1e3 * torch.eye(8).roll(1, 0)
    assert float(dag_loss(ring)) == pytest.approx(1e6 - math.log(8.0), rel=1e-7)


def test_any_finite_magnitude() -> None:
    """Infinite only where the loss itself is beyond the dtype."""
    ones = torch.ones(3, 3, dtype=torch.float64)
    for scale in (1e10, 1e50, 1e100, 1e153):
        loss, gradient = value_and_gradient(scale * ones)
        assert float(loss) == pytest.approx(3 * scale**2, rel=1e-13)  # the largest eigenvalue of M ⊙ M
        torch.testing.assert_close(gradient, 2 * scale / 3 * ones, rtol=1e-12, atol=0)
    assert float(dag_loss(1e200 * ones)) == math.inf
    assert float(dag_loss(1e18 * ones.float())) == pytest.approx(3e36, rel=1e-6)
    assert float(dag_loss(1e30 * ones.float())) == math.inf
    assert float(dag_loss(1e-200 * ones)) == 0.0
    assert float(dag_loss(1e-30 * ones.float())) == 0.0


@pytest.mark.parametrize("scale", [1e120, 1e140, 1e155, 1e200, 1e250, 1e300, 1e307])
def test_the_loss_overflows_but_the_gradient_does_not(scale: float) -> None:
    """M ⊙ M = s²/3 11ᵀ has the eigenvalue s²: beyond the square root of the largest float64 the loss is infinite."""
    ones = torch.full((3, 3), 1 / math.sqrt(3), dtype=torch.float64)
    loss, gradient = value_and_gradient(scale * ones)
    assert loss.item() == (pytest.approx(scale**2, rel=1e-13) if scale < 1e154 else math.inf)
    torch.testing.assert_close(gradient / scale, 2 / 3 * ones, rtol=1e-12, atol=0)


@given(LEADS, WIDTHS, SEEDS, st.sampled_from([0.3, 1.0, 3.0, 100.0]))
def test_equals_the_numpy_reference(lead, width, seed, scale) -> None:
    m = scale * normal(*lead, width, width, seed=seed)
    np.testing.assert_allclose(dag_loss(m).numpy(), ref.dag_loss(m.numpy()), rtol=1e-8, atol=1e-10)


@given(LEADS, WIDTHS, DTYPES, SEEDS, st.sampled_from([1e-3, 1.0, 50.0, 1e3]))
def test_symmetries(lead, width, dtype, seed, scale) -> None:
    """Never negative; signs, transposition and the order of the nodes do not matter."""
    m = scale * normal(*lead, width, width, seed=seed, dtype=dtype)
    loss = dag_loss(m)
    assert loss.shape == lead and loss.dtype == dtype
    assert (loss >= 0).all()
    assert torch.equal(dag_loss(m.abs()), loss)
    order = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
    bound = 1e-6 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(dag_loss(m.mT), loss, rtol=bound, atol=0)
    torch.testing.assert_close(dag_loss(m[..., order, :][..., :, order]), loss, rtol=bound, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_its_matrices(dtype: torch.dtype) -> None:
    """Matrices of very different magnitude share one call and do not disturb each other."""
    scales = [1e-6, 1e-3, 1.0, 40.0, 1e3, 1e9, 0.0]
    batch = torch.stack([scale * normal(5, 5, seed=i, dtype=dtype) for i, scale in enumerate(scales)])
    batch = torch.cat([batch, (1e3 * positive(1, 5, 5, dtype=dtype)).triu(1)])
    together, gradient = value_and_gradient(batch)
    for index, m in enumerate(batch):
        alone, alone_gradient = value_and_gradient(m)
        torch.testing.assert_close(together[index], alone, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=0)
        torch.testing.assert_close(gradient[index], alone_gradient, rtol=1e-6, atol=0)
    assert dag_loss(torch.empty(0, 3, 3)).shape == (0,)


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_gradcheck(scale: float) -> None:
    m = (scale * normal(2, 3, 4, 4)).requires_grad_()
    assert torch.autograd.gradcheck(dag_loss, m)


def test_is_differentiable_once() -> None:
    m, weight = normal(3, 3).requires_grad_(), torch.ones((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(dag_loss(m), m, grad_outputs=weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_narrow_dtypes_are_computed_wide() -> None:
    m = (100 * normal(4, 4)).bfloat16()
    loss, gradient = value_and_gradient(m)
    wide_loss, wide_gradient = value_and_gradient(m.double())
    assert loss.dtype == gradient.dtype == torch.bfloat16
    assert torch.equal(loss, wide_loss.bfloat16()) and torch.equal(gradient, wide_gradient.bfloat16())


@pytest.mark.parametrize(
    ("m", "message"),
    [
        ([[1.0]], "m is list, expected a torch.Tensor"),
        (torch.ones(2, 2, dtype=torch.long), "m is (2, 2) int64, expected a floating-point dtype"),
        (torch.ones(3), "m is (3,) float32, expected at least 2 axes"),
        (torch.ones(2, 3), "m is (2, 3) float32, expected [..., d, d]"),
        (torch.ones(5, 0, 0), "m is (5, 0, 0) float32, expected [..., d, d] with d >= 1"),
        (torch.full((2, 2), math.nan), "m is (2, 2) float32 with 4 non-finite entries, expected finite entries"),
        (torch.tensor([[math.inf, 0.0], [0.0, 1.0]]), "m is (2, 2) float32 with 1 non-finite entries, expected finite"),
    ],
)
def test_bad_input(m, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        dag_loss(m)


def _chain(length: int, entry: float, loop: float = 1.0) -> torch.Tensor:
    """A path of edges ``entry`` with a loop on its first node: the loop is the only cycle."""
    m = torch.diag(torch.full((length - 1,), entry, dtype=torch.float64), 1)
    m[0, 0] = loop
    return m


@pytest.mark.parametrize(
    ("m", "loss"),
    [
        (torch.full((64, 64), 1e3).triu(1) + torch.eye(64), 1.0),
        (torch.full((64, 64), 1e6).triu(1) + 2 * torch.eye(64), 4.0),
        (_chain(64, 500.0), math.log1p(math.expm1(1) / 64)),
        (_chain(32, 1e4), math.log1p(math.expm1(1) / 32)),
    ],
)
def test_edges_on_no_cycle_do_not_hide_the_cycles(m: torch.Tensor, loss: float) -> None:
    """tr exp is that of the diagonal, however large the rest: (M ⊙ M)^63 / 63! exceeds 1e308 times the trace here."""
    m = m.clone().requires_grad_()
    value = dag_loss(m)
    value.backward()
    assert value.item() == pytest.approx(loss, rel=1e-6 if m.dtype == torch.float32 else 1e-12)
    squares = m.detach().diagonal().double().square()
    expected = torch.diag(2 * m.detach().diagonal().double() * squares.exp() / squares.exp().sum())
    torch.testing.assert_close(m.grad.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [1e100, 1e200])
def test_a_cycle_of_huge_and_tiny_edges(scale: float) -> None:
    """[[0, s], [1/s, 0]] has eigenvalues ±1 whatever s: tr exp = 2 cosh 1, and 1 for each other node."""
    m = torch.zeros(4, 4, dtype=torch.float64)
    m[0, 1], m[1, 0] = scale, 1 / scale
    assert dag_loss(m).item() == pytest.approx(math.log((2 * math.cosh(1) + 2) / 4), rel=1e-12)


def test_a_matrix_does_not_feel_its_neighbours_in_a_batch() -> None:
    ones = torch.ones(3, 3, dtype=torch.float64)
    assert dag_loss(torch.stack([ones * 1e300, ones]))[1].item() == pytest.approx(dag_loss(ones).item(), rel=1e-14)


def _exponential(n: list[list[mpmath.mpf]]) -> list[list[mpmath.mpf]]:
    """exp(N) of non-negative N, by Taylor's series of N / 2^s and s squarings, in the precision that is set."""

    def product(a: list[list[mpmath.mpf]], b: list[list[mpmath.mpf]]) -> list[list[mpmath.mpf]]:
        columns = list(zip(*b, strict=True))
        return [[mpmath.fdot(zip(row, column, strict=True)) for column in columns] for row in a]

    size = range(len(n))
    squarings = 10 + max(0, int(mpmath.ceil(mpmath.log(max(map(sum, n)), 2))))
    x = [[entry / mpmath.mpf(2) ** squarings for entry in row] for row in n]
    result = [[mpmath.mpf(i == j) for j in size] for i in size]
    for order in range(12, 0, -1):  # what is left out is below 2^-130 / 13!
        result = product(x, result)
        result = [[(i == j) + result[i][j] / order for j in size] for i in size]
    for _ in range(squarings):
        result = product(result, result)
    return result


def agrees_with_high_precision(matrices: list[torch.Tensor]) -> None:
    """float32: value within 1e-6, gradient within 1e-5 in norm; float64: both within 1e-10. All have equal entries."""
    entries = matrices[0].double().tolist()
    width = len(entries)
    with mpmath.workdps(60):
        exponential = _exponential([[mpmath.mpf(entry) ** 2 for entry in row] for row in entries])
        trace = mpmath.fsum(exponential[i][i] for i in range(width))
        exact = mpmath.log(trace / width)
        exact_gradient = torch.tensor(
            [[float(2 * entries[i][j] * exponential[j][i] / trace) for j in range(width)] for i in range(width)],
            dtype=torch.float64,
        )
        for m in matrices:
            loss, gradient = value_and_gradient(m)
            bounds = (1e-6, 1e-5) if m.dtype == torch.float32 else (1e-10, 1e-10)
            assert abs(loss.item() - exact) <= bounds[0] * exact
            error = (gradient.double() - exact_gradient).norm()
            assert error <= bounds[1] * exact_gradient.norm()


def scaled_to(m: torch.Tensor, loss: float) -> torch.Tensor:
    """M times the scalar that gives it this loss."""
    low, high = -40.0, 40.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if dag_loss(2.0**middle * m).item() < loss else (low, middle)
    return 2.0**low * m


def _path(d: int) -> torch.Tensor:
    return torch.eye(d, dtype=torch.float64).roll(1, 1).triu()


FAMILIES = {
    "dense": lambda d: normal(d, d),
    "positive": lambda d: positive(d, d, spread=2.0),
    "sparse": lambda d: normal(d, d) * (normal(d, d, seed=1) > 0.7) + torch.eye(d).roll(1, 0),
    "weak cycles": lambda d: normal(d, d).triu(1) + 1e-3 * normal(d, d, seed=1).tril(),
    "one weak edge back": lambda d: positive(d, d).triu(1) + 1e-8 * torch.eye(d).roll(1 - d, 1).tril(),
    "near-nilpotent": lambda d: _path(d) + 1e-6 * torch.eye(d).roll(1, 1).tril(),
    "transient growth": lambda d: positive(d, d, spread=2.0).triu(1) + 1e-5 * normal(d, d, seed=1).tril(-1),
    "ring": lambda d: torch.eye(d, dtype=torch.float64).roll(1, 0) * positive(d, 1),
    "permutation": lambda d: torch.block_diag(*(torch.eye(n).roll(1, 0) for n in (2, 3, d - 5))) * positive(d, 1),
    "blocks": lambda d: torch.block_diag(normal(d // 2, d // 2), 2 * normal(d - d // 2, d - d // 2, seed=1)),
    "block triangle": lambda d: (
        torch.block_diag(normal(d // 2, d // 2), normal(d - d // 2, d - d // 2, seed=1)) + 100 * _path(d)
    ),
}


@pytest.mark.parametrize("loss", [1e-12, 1e-6, 1e-2, 1.0, 50.0, 41460.0, 1e6])
@pytest.mark.parametrize("family", FAMILIES)
def test_accuracy_at_any_magnitude(family: str, loss: float) -> None:
    wide = scaled_to(FAMILIES[family](7), loss)
    agrees_with_high_precision([wide])
    narrow = wide.float()
    agrees_with_high_precision([narrow, narrow.double()])


def test_accuracy_at_full_width() -> None:
    narrow = scaled_to(normal(64, 64), 1.0).float()
    agrees_with_high_precision([narrow, narrow.double()])


@pytest.mark.parametrize(
    ("width", "edge"),
    [(width, edge) for width, weak in [(9, 0.44), (17, 1.19), (64, 4.0)] for edge in (weak, 3.0 * weak, 30.0, 1e3)],
)
def test_accuracy_on_long_cycles(width: int, edge: float) -> None:
    """A ring of edges a: tr exp / d is the mean of exp(a² w) over the roots of unity w. The weak ones have loss 1e-12.

    The one cycle needs more terms of the series than the norm suggests.
    """
    narrow = torch.eye(width).roll(1, 0) * edge
    edge = narrow.max().item()  # as float32 has it
    with mpmath.workdps(40):
        roots = [mpmath.expjpi(mpmath.mpf(2 * j) / width) for j in range(width)]
        shifted = [mpmath.exp(edge**2 * (root - 1)) for root in roots]
        mean = mpmath.fsum(shifted).real / width
        slope = mpmath.fsum(root * term for root, term in zip(roots, shifted, strict=True)).real / width
        exact, exact_slope = edge**2 + mpmath.log(mean), float(2 * edge * slope / mean / width)
        for m, value_bound, bound in [(narrow, 1e-6, 1e-5), (narrow.double(), 1e-10, 1e-10)]:
            value, gradient = value_and_gradient(m)
            assert abs(value.item() - exact) <= value_bound * exact
            expected = exact_slope * (m != 0).double()
            assert (gradient.double() - expected).norm() <= bound * expected.norm()


def test_a_batch_of_several_chunks_is_its_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices are sorted by what they need and worked on a few at a time: every one comes back to its own place."""
    monkeypatch.setattr(acyclicity, "_CPU_CHUNK", 3 * 8**2)
    batch = 10.0 ** torch.linspace(-4, 4, 80, dtype=torch.float64)[:, None, None] * normal(80, 8, 8)
    batch[::2] *= normal(40, 8, 8, seed=1) > 0.8
    batch[60:] *= normal(20, 8, 8, seed=2) > 0.8
    batch = batch[37 * torch.arange(80) % 80]
    loss, gradient = value_and_gradient(batch.reshape(5, 16, 8, 8))
    assert loss.shape == (5, 16) and gradient.shape == (5, 16, 8, 8)
    for m, value, slope in zip(batch, loss.flatten(), gradient.flatten(0, 1), strict=True):
        alone, alone_slope = value_and_gradient(m)
        torch.testing.assert_close(value, alone, rtol=1e-13, atol=0)
        assert (slope - alone_slope).norm() <= 1e-13 * alone_slope.norm()


def test_compiles_to_one_graph() -> None:
    m = normal(2, 4, 4, dtype=torch.float32)

    def regularized(m: torch.Tensor) -> torch.Tensor:
        return (3 * dag_loss(2 * m)).sum()

    outcomes = []
    for function in (regularized, torch.compile(regularized, backend="aot_eager", fullgraph=True)):
        leaf = m.clone().requires_grad_()
        loss = function(leaf)
        loss.backward()
        outcomes.append((loss.detach(), leaf.grad))
    assert all(map(torch.equal, *outcomes))
    torch.library.opcheck(torch.ops.plga.log_trace_exp, (m,))
    assert dag_loss(m.to("meta")).shape == (2,)


def test_autocast_does_not_narrow_the_work() -> None:
    m = 100 * normal(3, 8, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = value_and_gradient(m)
    assert all(map(torch.equal, under_autocast, value_and_gradient(m)))
