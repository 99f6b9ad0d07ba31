import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from plga.ops.attention import bend, bilinear_attention
from tests import numpy_reference as ref
from tests.ops.examples import DTYPES, LEADS, SEEDS, close, normal

SIZES = st.integers(1, 5)


def left_padding(batch: int, length: int) -> torch.Tensor:
    """[B, 1, 1, S]: sequence b begins with b padded positions. Under a causal mask those rows see nothing."""
    return (torch.arange(length) >= torch.arange(batch)[:, None])[:, None, None]


def explicit(q, k, v, curvature, allowed, scale):
    """The definition, with its S x T matrix, in float64."""
    q, k, v, curvature = (x.double() for x in (q, k, v, curvature))
    scores = (q @ curvature @ k.mT * scale).masked_fill(~allowed, -torch.inf)
    return scores.softmax(dim=-1) @ v


def test_by_hand() -> None:
    """One query (1, 0), two keys; G swaps the coordinates, so the scores are ln 3 and 0: weights 3/4 and 1/4."""
    q = torch.tensor([[1.0, 0.0]])
    k = torch.tensor([[5.0, math.log(3.0)], [-9.0, 0.0]])
    v = torch.tensor([[4.0, 8.0, 0.0], [0.0, 4.0, 4.0]])
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    torch.testing.assert_close(bilinear_attention(q, k, v, swap, scale=1.0), torch.tensor([[3.0, 7.0, 1.0]]))
    # G = 0: every score is 0, the mean of the values that may be seen.
    torch.testing.assert_close(bilinear_attention(q, k, v, torch.zeros(2, 2)), v.mean(dim=0, keepdim=True))
    only_second = torch.tensor([[False, True]])
    assert torch.equal(bilinear_attention(q, k, v, swap, mask=only_second), v[1:])
    # G is not symmetric here, and multiplies q from the right: q G = (0, 1) G = (2, 0).
    lower = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert torch.equal(bend(torch.tensor([[0.0, 1.0]]), lower), torch.tensor([[2.0, 0.0]]))


@given(LEADS, SIZES, SIZES, SIZES, SIZES, DTYPES, SEEDS)
def test_is_the_definition(lead, queries, keys, width, value_width, dtype, seed) -> None:
    q = normal(*lead, queries, width, seed=seed, dtype=dtype)
    k = normal(*lead, keys, width, seed=seed + 1, dtype=dtype)
    v = normal(*lead, keys, value_width, seed=seed + 2, dtype=dtype)
    curvature = normal(*lead, width, width, seed=seed + 3, dtype=dtype)
    everything = torch.ones(queries, keys, dtype=torch.bool)
    out = bilinear_attention(q, k, v, curvature)
    assert out.dtype == dtype
    close(out, explicit(q, k, v, curvature, everything, width**-0.5), roundings=1e3)
    close(
        bilinear_attention(q, k, v, curvature, scale=0.3),
        explicit(q, k, v, curvature, everything, 0.3),
        roundings=1e3,
    )
    some = normal(queries, keys, seed=seed + 4) > 0
    some[:, 0] = True
    expected = explicit(q, k, v, curvature, some, width**-0.5)
    close(bilinear_attention(q, k, v, curvature, mask=some), expected, roundings=1e3)
    added = torch.zeros(queries, keys, dtype=dtype).masked_fill(~some, -torch.inf)
    close(bilinear_attention(q, k, v, curvature, mask=added), expected, roundings=1e3)


@given(st.integers(1, 3), st.integers(1, 3), SIZES, SIZES, SEEDS)
def test_equals_the_numpy_reference(batch, heads, length, width, seed) -> None:
    q, k, v = (normal(batch, heads, length, width, seed=seed + i) for i in range(3))
    curvature = normal(batch, heads, width, width, seed=seed + 3)
    mask = normal(batch, length, seed=seed + 4) > 0
    mask[:, 0] = True
    ours = bilinear_attention(q, k, v, curvature, mask=mask[:, None, None], causal=True)
    arrays = (x.numpy() for x in (q, k, v, curvature, mask))
    theirs = ref.attend(*arrays, scale=width**-0.5)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (3, 2, 5, 8), (2, 4, 33, 32), (2, 14, 17, 64)])
def test_identity_is_sdpa_bit_for_bit(dtype, causal, padded, shape) -> None:
    batch, heads, length, width = shape
    q, k, v = (normal(*shape, seed=i, dtype=dtype) for i in range(3))
    q[..., 0] = -0.0  # a sign that q @ I does not keep, and no score shows
    mask = left_padding(batch, length) if padded else None
    if padded and causal:
        sdpa = scaled_dot_product_attention(q, k, v, attn_mask=mask & torch.ones(length, length).bool().tril())
    else:
        sdpa = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    eye = torch.eye(width)  # cast to the dtype of q
    for curvature in (None, eye, eye.expand(heads, width, width), eye.double().expand(batch, heads, width, width)):
        ours = bilinear_attention(q, k, v, curvature, mask=mask, causal=causal)
        assert ours.dtype == dtype
        assert torch.equal(ours.nan_to_num(nan=77.0), sdpa.nan_to_num(nan=77.0))
    assert torch.equal(bend(q, eye), q)


@given(LEADS, st.integers(2, 6), SIZES, DTYPES, SEEDS)
def test_causal_rows_are_those_of_their_prefix(lead, length, width, dtype, seed) -> None:
    q, k, v = (normal(*lead, length, width, seed=seed + i, dtype=dtype) for i in range(3))
    curvature = normal(width, width, seed=seed + 3, dtype=dtype)
    whole = bilinear_attention(q, k, v, curvature, causal=True)
    assert torch.equal(whole[..., 0, :], v[..., 0, :])  # the first row sees itself alone
    prefix = bilinear_attention(*(x[..., : length - 1, :] for x in (q, k, v)), curvature, causal=True)
    close(prefix, whole[..., : length - 1, :], roundings=1e3)


def test_padded_keys_have_no_say() -> None:
    q, k, v = (normal(3, 2, 6, 4, seed=i) for i in range(3))
    curvature, mask = normal(3, 2, 4, 4, seed=3), left_padding(3, 6)
    clean = bilinear_attention(q, k, v, curvature, mask=mask, causal=True)
    real = mask.expand(3, 2, 1, 6).mT
    garbage = bilinear_attention(
        q, k.where(real, torch.tensor(1e6).double()), v.where(real, torch.tensor(-1e9).double()), curvature, mask, True
    )
    for b in range(3):
        assert torch.equal(garbage[b, :, b:], clean[b, :, b:])
        alone = bilinear_attention(*(x[b, :, b:] for x in (q, k, v)), curvature[b], causal=True)
        close(clean[b, :, b:], alone)


def test_curvature_broadcasts_over_batch_and_heads() -> None:
    q, k, v = (normal(3, 2, 5, 4, seed=i) for i in range(3))
    for shape in [(4, 4), (2, 4, 4), (1, 2, 4, 4), (3, 1, 4, 4), (3, 2, 4, 4)]:
        curvature = normal(*shape, seed=3)
        together = bilinear_attention(q, k, v, curvature, causal=True)
        full = curvature.expand(3, 2, 4, 4)
        for b in range(3):
            for h in range(2):
                alone = bilinear_attention(q[b, h], k[b, h], v[b, h], full[b, h], causal=True)
                close(together[b, h], alone)


def test_gradient() -> None:
    q, k, v = (normal(2, 2, 3, 2, seed=i).requires_grad_() for i in range(3))
    curvature = normal(2, 2, 2, seed=3).requires_grad_()
    mask = torch.tensor([[True, True, True], [True, True, False]])[:, None, None]
    inputs = (q, k, v, curvature)
    assert torch.autograd.gradcheck(lambda *x: bilinear_attention(*x, mask=mask, causal=True), inputs, fast_mode=True)
    assert torch.autograd.gradcheck(bilinear_attention, inputs, fast_mode=True)


Q, EYE = torch.ones(2, 3, 5, 4), torch.eye(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bend(Q.long(), EYE), "q is (2, 3, 5, 4) int64, expected a floating-point dtype"),
        (lambda: bend(Q[0, 0, 0], EYE), "q is (4,) float32, expected at least 2 axes"),
        (lambda: bend(Q, EYE.long()), "curvature is (4, 4) int64, expected a floating-point dtype"),
        (lambda: bend(Q, torch.ones(4, 5)), "curvature is (4, 5) float32, expected [..., d, d]"),
        (lambda: bend(Q, torch.eye(3)), "curvature is (3, 3) float32, expected [..., H, d, d]"),
        (lambda: bend(Q, torch.ones(2, 4, 4)), "curvature is (2, 4, 4) float32, expected [..., H, d, d]"),
        (lambda: bend(Q, torch.ones(7, 2, 3, 4, 4)), "curvature is (7, 2, 3, 4, 4) float32, expected [..., H, d, d]"),
        (lambda: bilinear_attention(Q, Q, Q, torch.eye(3)), "curvature is (3, 3) float32, expected [..., H, d, d]"),
        (lambda: bilinear_attention(Q.long(), Q, Q), "q is (2, 3, 5, 4) int64, expected a floating-point dtype"),
        (lambda: bilinear_attention(Q, [1.0], Q), "k is list, expected a torch.Tensor"),
        (lambda: bilinear_attention(Q, Q, Q[0, 0, 0]), "v is (4,) float32, expected at least 2 axes"),
        (lambda: bilinear_attention(Q, Q.double(), Q), "k is (2, 3, 5, 4) float64, expected the dtype of q"),
        (lambda: bilinear_attention(Q, Q, Q.double()), "v is (2, 3, 5, 4) float64, expected the dtype of q"),
        (lambda: bilinear_attention(Q, Q[..., :3], Q), "k is (2, 3, 5, 3), expected [..., H, T, d] with the d = 4"),
        (
            lambda: bilinear_attention(Q, Q, Q[..., :2, :]),
            "v is (2, 3, 2, 4), expected [..., H, T, d_v] with the T = 5",
        ),
        (lambda: bilinear_attention(Q, Q[:, :2], Q), "k is (2, 2, 5, 4) float32, expected the leading axes of q"),
        (lambda: bilinear_attention(Q, Q, Q[:, :2]), "v is (2, 2, 5, 4) float32, expected the leading axes of q"),
        (
            lambda: bilinear_attention(Q[..., :2, :], Q, Q, causal=True),
            "causal needs as many queries as keys, got q (2, 3, 2, 4) and k (2, 3, 5, 4)",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()


@pytest.mark.parametrize(
    ("mask", "causal", "message"),
    [
        (
            torch.ones(2, 5, dtype=torch.bool),
            False,
            r"^mask is \(2, 5\) bool, expected \[\.\.\., H, S, T\].*\(2, 3, 5, 5\)",
        ),
        (torch.ones(5, 5, dtype=torch.long), False, r"^mask is \(5, 5\) .*int64, expected bool or the dtype of q"),
        (torch.ones(5, 5, dtype=torch.float64), False, r"^mask is \(5, 5\) .*float64, expected bool or the dtype of q"),
        (torch.zeros(5, 5), True, r"^mask is \(5, 5\) .*float32, expected bool together with causal=True"),
    ],
)
def test_bad_mask(mask, causal, message) -> None:
    with pytest.raises(ValueError, match=message):
        bilinear_attention(Q, Q, Q, EYE, mask=mask, causal=causal)
