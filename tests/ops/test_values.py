"""Every operator refuses numbers that are none: a fused kernel, for one, would hide them."""

import pytest
import torch

from plga.ops import attention, density, power_law, rotary, spectrum

NAN = torch.full((1, 2, 4, 4), float("nan"))
GOOD = torch.ones(1, 2, 4, 4)
TABLE = torch.ones(4, 2)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("q", lambda: attention.bilinear_attention(NAN, GOOD, GOOD)),
        ("k", lambda: attention.bilinear_attention(GOOD, NAN, GOOD)),
        ("v", lambda: attention.bilinear_attention(GOOD, GOOD, NAN)),
        ("curvature", lambda: attention.bilinear_attention(GOOD, GOOD, GOOD, NAN)),
        ("curvature", lambda: attention.bend(GOOD.half(), GOOD * 1e6)),  # infinite after its cast
        ("u", lambda: power_law.iswiglu(NAN)),
        ("x", lambda: rotary.rotate_interleaved(NAN, TABLE, TABLE)),
        ("x", lambda: rotary.rotate_half(NAN, TABLE, TABLE)),
        ("cos", lambda: rotary.rotate_half(GOOD, TABLE * float("inf"), TABLE)),
    ],
)
def test_a_non_finite_argument_is_named(name: str, call) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is \(.*non-finite"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: density.gram(GOOD, mask=[1, 1, 1, 1]),
        lambda: attention.bilinear_attention(GOOD, GOOD, GOOD, mask=[True]),
        lambda: power_law.metric_tensor(GOOD, None, GOOD),
        lambda: rotary.rotate_half(GOOD, None, TABLE),
    ],
)
def test_what_is_no_tensor_is_named(call) -> None:
    with pytest.raises(ValueError, match=r"expected a torch\.Tensor"):
        call()


def test_a_rank_and_a_root_at_the_edge_of_float32() -> None:
    huge = torch.full((3, 3), 3e38)
    assert spectrum.numerical_rank(huge) == 1
    with pytest.raises(ValueError, match=r"Perron root beyond torch\.float32"):
        spectrum.perron(huge)
