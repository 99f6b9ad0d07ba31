import math
import re

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from plga.ops.spectrum import RANK_TOLERANCE, cycle_share, numerical_rank, perron, singular_values
from tests.ops.examples import DTYPES, LEADS, SEEDS, WIDTHS, close, normal, positive


def test_singular_values_by_hand() -> None:
    close(singular_values(torch.tensor([[0.0, -5.0], [3.0, 0.0]])), torch.tensor([5.0, 3.0]), roundings=4)
    close(singular_values(torch.tensor([[3.0, 4.0]])), torch.tensor([5.0]), roundings=4)
    assert torch.equal(singular_values(torch.zeros(2, 3, 4)), torch.zeros(2, 3))


@given(LEADS, WIDTHS, WIDTHS, DTYPES, SEEDS)
def test_singular_values_equal_numpy(lead, rows, columns, dtype, seed) -> None:
    m = normal(*lead, rows, columns, seed=seed, dtype=dtype)
    s = singular_values(m)
    assert s.shape == (*lead, min(rows, columns)) and s.dtype == dtype
    assert (s.diff(dim=-1) <= 0).all()
    close(s, torch.from_numpy(np.linalg.svd(m.double().numpy(), compute_uv=False)))
    close(s.square().sum(-1), m.double().square().sum((-2, -1)))


def test_singular_values_gradient() -> None:
    assert torch.autograd.gradcheck(singular_values, normal(2, 3, 4).requires_grad_())


def test_rank_rule() -> None:
    """A singular value counts when it is above 64 float32 roundings of the largest, in every dtype."""
    assert RANK_TOLERANCE == 64 * 2.0**-23
    for dtype in (torch.float32, torch.float64):
        diagonal = torch.tensor([1.0, 1.001 * RANK_TOLERANCE, 0.999 * RANK_TOLERANCE, 0.0], dtype=dtype).diag()
        assert int(numerical_rank(diagonal)) == 2
        assert int(numerical_rank(1e-20 * diagonal)) == 2  # relative to s1
        assert int(numerical_rank(diagonal, tolerance=0.5)) == 1
        assert int(numerical_rank(diagonal, tolerance=0.0)) == 3
    assert numerical_rank(torch.eye(3)).dtype == torch.int64
    assert int(numerical_rank(torch.zeros(3, 3))) == 0
    assert int(numerical_rank(torch.eye(5)[:3])) == 3


@given(LEADS, WIDTHS, WIDTHS, DTYPES, SEEDS)
def test_rank_of_a_product(lead, rank, extra, dtype, seed) -> None:
    rows, columns = rank + extra, rank + 2
    left = torch.linalg.qr(normal(*lead, rows, rank, seed=seed)).Q
    right = torch.linalg.qr(normal(*lead, columns, rank, seed=seed + 1)).Q
    product = (left @ right.mT).to(dtype)  # singular values 1 (rank times) and 0
    assert torch.equal(numerical_rank(product), torch.full(lead, rank))


def test_perron_by_hand() -> None:
    """[[1, 2], [2, 1]] has root 3. [[1, 4], [2, 3]] has root 5, right vector (1, 1), left vector (1, 2)."""
    root, right, left, residual, _ = perron(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert float(root) == 3.0 and float(residual) == 0.0
    close(right, torch.tensor([0.5, 0.5])), close(left, torch.tensor([1.0, 1.0]))
    root, right, left, residual, _ = perron(torch.tensor([[1.0, 4.0], [2.0, 3.0]], dtype=torch.float64))
    assert float(root) == pytest.approx(5.0, rel=1e-13) and float(residual) <= 64 * 2.0**-52
    close(right, torch.tensor([0.5, 0.5]).double())
    close(left, torch.tensor([2.0, 4.0]).double() / 3)
    root, right, left, residual, iterations = perron(torch.tensor([[7.0]]))
    assert (float(root), float(right), float(left), float(residual), iterations) == (7.0, 1.0, 1.0, 0.0, 1)
    # Rank one, u vᵀ: root u·v after one step.
    u, v = torch.tensor([1.0, 2.0, 5.0]).double(), torch.tensor([3.0, 1.0, 1.0]).double()
    root, right, left, _, iterations = perron(torch.outer(u, v))
    assert float(root) == pytest.approx(10.0, rel=1e-14) and iterations == 2
    close(right, u / 8), close(left, v / 1.25)


@given(LEADS, WIDTHS, SEEDS)
def test_perron_equals_numpy(lead, width, seed) -> None:
    m = positive(*lead, width, width, seed=seed)
    root, right, left, residual, iterations = perron(m)
    assert 1 <= iterations < 10_000 and (residual <= 64 * 2.0**-52).all()
    assert root.shape == residual.shape == lead and right.shape == left.shape == (*lead, width)
    values, vectors = np.linalg.eig(m.numpy())
    at = np.abs(values).argmax(axis=-1)[..., None]
    expected_root = np.take_along_axis(values, at, -1)[..., 0].real
    expected_right = np.take_along_axis(vectors, at[..., None, :], -1)[..., 0].real
    expected_right /= expected_right.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(root.numpy(), expected_root, rtol=1e-11)
    np.testing.assert_allclose(right.numpy(), expected_right, rtol=1e-9)
    # The left vector is the right one of the transpose, normalized by u·v = 1.
    mirrored = perron(m.mT).right
    mirrored = mirrored / (mirrored * right).sum(-1, keepdim=True)
    torch.testing.assert_close(left, mirrored, rtol=1e-9, atol=0)


def measured_residual(m: torch.Tensor, root: torch.Tensor, right: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """The docstring's residual, from what was returned, in float64."""
    m, root, right, left = (x.double() for x in (m, root, right, left))
    ahead = (m @ right[..., None])[..., 0] - root[..., None] * right
    back = (m.mT @ left[..., None])[..., 0] - root[..., None] * left
    return torch.maximum(
        ahead.abs().sum(-1) / (root * right.abs().sum(-1)), back.abs().sum(-1) / (root * left.abs().sum(-1))
    )


@given(LEADS, WIDTHS, DTYPES, SEEDS, st.sampled_from([1, 2, 3, 8, 10_000]), st.sampled_from([1.0, 4.0]))
def test_perron_contract(lead, width, dtype, seed, max_iterations, spread) -> None:
    """The normalizations hold and the residual is that of the returned numbers, however early the iteration stops."""
    m = positive(*lead, width, width, seed=seed, dtype=dtype, spread=spread)
    root, right, left, residual, iterations = perron(m, max_iterations=max_iterations)
    eps = torch.finfo(dtype).eps
    assert iterations <= max_iterations
    assert all(x.dtype == dtype for x in (root, right, left, residual))
    assert (right > 0).all() and (left > 0).all() and (root > 0).all()
    torch.testing.assert_close(right.sum(-1), torch.ones(lead, dtype=dtype), rtol=20 * eps, atol=0)
    torch.testing.assert_close((left * right).sum(-1), torch.ones(lead, dtype=dtype), rtol=20 * eps, atol=0)
    torch.testing.assert_close(residual.double(), measured_residual(m, root, right, left), rtol=1e-6, atol=60 * eps)
    if iterations < max_iterations:
        assert (residual <= 64 * eps).all()


def test_an_early_stop_says_so() -> None:
    m = positive(6, 6, spread=2.0)
    early, late = perron(m, max_iterations=2), perron(m)
    assert early.iterations == 2 and float(early.residual) > 1e-3
    assert float(late.residual) <= 64 * 2.0**-52
    assert perron(m, tolerance=1e-3).iterations < late.iterations
    assert float(perron(m, tolerance=1e-3).residual) <= 1e-3


@given(WIDTHS, DTYPES, SEEDS, st.integers(-99, 99))
def test_perron_scales_with_its_matrix(width, dtype, seed, power) -> None:
    """A power of two changes no digit: entries down to 1e-30 and up to 1e30 behave like those around 1."""
    m = positive(width, width, seed=seed, dtype=dtype)
    assume(float(m.max()) < 1e3)
    plain, scaled = perron(m), perron(m * 2.0**power)
    assert torch.equal(scaled.root, plain.root * 2.0**power)
    for name in ("right", "left", "residual"):
        assert torch.equal(getattr(scaled, name), getattr(plain, name))
    assert scaled.iterations == plain.iterations


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_perron_of_tiny_and_huge_entries(scale: float, dtype: torch.dtype) -> None:
    m = (scale * positive(5, 5)).to(dtype)
    root, right, _, residual, _ = perron(m)
    expected = np.abs(np.linalg.eigvals(m.double().numpy())).max()
    assert float(root) == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-12)
    assert float(residual) <= 64 * torch.finfo(dtype).eps and (right > 0).all()


def test_perron_of_tiny_and_huge_entries_together() -> None:
    """[[s, 1/s], [1/s, s]] with s = 1e-30: root s + 1/s. And [[1/s, s], [s, s]]: the vector leans on one coordinate."""
    root, right, left, residual, _ = perron(torch.tensor([[1e-30, 1e30], [1e30, 1e-30]], dtype=torch.float64))
    assert float(root) == pytest.approx(1e30) and float(residual) <= 64 * 2.0**-52
    close(right, torch.tensor([0.5, 0.5]).double()), close(left, torch.tensor([1.0, 1.0]).double())
    root, right, _, _, _ = perron(torch.tensor([[1e30, 1e-30], [1e-30, 1e-30]], dtype=torch.float64))
    assert float(root) == pytest.approx(1e30)
    assert 0 < float(right[1]) < 1e-50 and float(right[0]) == 1.0


def test_perron_of_a_batch() -> None:
    """The slowest matrix of a batch decides when to stop; the others only get better."""
    batch = torch.stack([positive(4, 4, seed=i, spread=i) for i in range(4)]).reshape(2, 2, 4, 4)
    together = perron(batch)
    for i in range(2):
        for j in range(2):
            alone = perron(batch[i, j])
            assert alone.iterations <= together.iterations
            torch.testing.assert_close(together.root[i, j], alone.root, rtol=1e-12, atol=0)
            torch.testing.assert_close(together.right[i, j], alone.right, rtol=1e-9, atol=0)
    assert perron(torch.ones(0, 3, 3)).right.shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_singular_values_of_narrow_dtypes(dtype: torch.dtype) -> None:
    """PyTorch has no kernel for them: the entries are widened, so the values are good to float32."""
    m = normal(2, 3, 3).to(dtype)
    torch.testing.assert_close(singular_values(m).double(), singular_values(m.double()), rtol=1e-5, atol=1e-6)
    assert numerical_rank(torch.eye(3, dtype=dtype)[:2]).item() == 2


ONE = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: singular_values([[1.0]]), "m is list, expected a torch.Tensor"),
        (lambda: singular_values(ONE.long()), "m is (2, 2) int64, expected a floating-point dtype"),
        (lambda: singular_values(ONE[0]), "m is (2,) float32, expected at least 2 axes"),
        (lambda: singular_values(ONE * math.nan), "m is (2, 2) float32 with 4 non-finite entries, expected finite"),
        (lambda: numerical_rank(ONE[0]), "m is (2,) float32, expected at least 2 axes"),
        (lambda: numerical_rank(ONE * math.inf), "m is (2, 2) float32 with 4 non-finite entries, expected finite"),
        (lambda: numerical_rank(ONE, tolerance=-0.1), "tolerance is -0.1, expected a number in [0, 1)"),
        (lambda: numerical_rank(ONE, tolerance=1.0), "tolerance is 1.0, expected a number in [0, 1)"),
        (lambda: numerical_rank(ONE, tolerance=math.nan), "tolerance is nan, expected a number in [0, 1)"),
        (lambda: perron(ONE.long()), "m is (2, 2) int64, expected a floating-point dtype"),
        (lambda: perron(ONE[:1]), "m is (1, 2) float32, expected [..., d, d]"),
        (lambda: perron(torch.eye(2)), "m is (2, 2) float32 with smallest entry 0, expected entries > 0"),
        (lambda: perron(ONE - 3 * torch.eye(2)), "m is (2, 2) float32 with smallest entry -2, expected entries > 0"),
        (lambda: perron(ONE * math.nan), "m is (2, 2) float32 with 4 non-finite entries, expected finite"),
        (lambda: perron(ONE, max_iterations=0), "max_iterations is 0, expected >= 1"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()


def test_perron_settles_on_a_nearly_periodic_matrix() -> None:
    """[[s, 1], [2, s]] has eigenvalues s ± √2: plain power iteration would swing for ever."""
    root, right, _, residual, _ = perron(torch.tensor([[1e-6, 1.0], [2.0, 1e-6]], dtype=torch.float64))
    assert float(root) == pytest.approx(2**0.5 + 1e-6, rel=1e-13) and float(residual) <= 64 * 2.0**-52
    close(right, torch.tensor([1.0, 2**0.5], dtype=torch.float64) / (1 + 2**0.5))


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([[0.0, 1.0], [0.0, 0.0]], 0.0),  # no cycle
        ([[0.0, 1.0], [1.0, 0.0]], 1.0),  # nothing but one
        ([[0.0, 4.0], [1.0, 0.0]], 0.5),  # ρ = √(4 · 1), σ₁ = 4
        ([[3.0, 0.0], [0.0, 1.0]], 1.0),
        ([[1.0, 1.0], [0.0, 0.0]], 0.5**0.5),
        ([[0.0, 0.0], [0.0, 0.0]], 0.0),
    ],
)
def test_cycle_share_by_hand(rows: list[list[float]], share: float) -> None:
    assert float(cycle_share(torch.tensor(rows))) == pytest.approx(share, abs=1e-12)


@given(LEADS, WIDTHS, SEEDS, st.integers(-900, 900))
def test_cycle_share_does_not_see_the_scale(lead, width, seed, exponent) -> None:
    m = normal(*lead, width, width, seed=seed)
    share = cycle_share(m)
    assert share.shape == lead and bool(((share >= 0) & (share <= 1)).all())
    assert torch.equal(cycle_share(torch.ldexp(m, torch.tensor(exponent))), share)


def test_cycle_share_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="m is"):
        cycle_share(torch.full((2, 2), torch.nan))


@pytest.mark.parametrize("coupling", [1e-3, 1e-6, 1e-9])
def test_perron_of_a_nearly_reducible_matrix(coupling: float) -> None:
    """Two blocks with nearly the same root, which hardly touch: plain power iteration needs about 1/coupling steps.

    [[A, c], [c, A]] with A = [[1, 1], [1, 1]] and c everywhere: root 2 + 2c, and 2 - 2c next to it.
    """
    m = torch.full((4, 4), coupling, dtype=torch.float64)
    m[:2, :2] = m[2:, 2:] = 1.0
    m[0, 0] += 1e-6  # or the uniform vector, where the iteration begins, would be the one looked for
    root, right, left, residual, iterations = perron(m)
    assert iterations < 150 and float(residual) <= 64 * 2.0**-52
    values, vectors = np.linalg.eigh(m.numpy())
    assert float(root) == pytest.approx(values[-1], rel=1e-14)
    expected = np.abs(vectors[:, -1]) / np.abs(vectors[:, -1]).sum()
    np.testing.assert_allclose(right.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose((left / left.sum()).numpy(), expected, rtol=1e-6)
