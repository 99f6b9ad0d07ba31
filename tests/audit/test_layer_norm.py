"""Section C: by hand, against torch's LayerNorm, and on the two reference checkpoints."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from plga.audit.layer_norm import SECTION, ScaleError, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.model.modeling import PldrForCausalLM
from plga.model.operator import LearnedOperator
from tests.audit.subjects import by_name, shown, summary, tiny, trained


def first_norm(model: PldrForCausalLM) -> torch.nn.LayerNorm:
    operator = model.model.layers[0].self_attn.operator
    assert isinstance(operator, LearnedOperator)
    return operator.learner.input_norm


def with_density(density: Tensor, tokens: int, gamma: float = 1.0, beta: float = 0.0, eps: float = 1e-6) -> Subject:
    """A model of one layer and head whose one prompt has this density operator, [d, d]."""
    width = len(density)
    subject = tiny((tokens,), num_hidden_layers=1, num_attention_heads=1, hidden_size=width, layer_norm_eps=eps)
    assert subject.model is not None
    norm = first_norm(subject.model)
    torch.nn.init.constant_(norm.weight, gamma), torch.nn.init.constant_(norm.bias, beta)
    return shown(subject, density=density[None, None, None])


def test_by_hand() -> None:
    """Rows (1, -1) with v = 1 and (2, 2) without variance; ε = 3, S = 2, γ = 4: 4 / √4 = 2 against 2 / √(1/4 + 3)."""
    found = by_name(SECTION, measure(with_density(torch.tensor([[1.0, -1.0], [2.0, 2.0]]), 2, gamma=4.0, eps=3.0)))
    scaled = 2 / math.sqrt(3.25)
    error = math.sqrt(2) * (2 - scaled)
    assert found["rows of D"] == 2 and found["rows of D without variance"] == 1
    assert found["absolute LayerNorm scale error"] == pytest.approx([0.0, error / 2, error])
    # β = 0, so LN of the row without variance is 0, and there is nothing to be relative to.
    assert found["relative LayerNorm scale error"] == pytest.approx([(2 - scaled) / 2] * 3)
    assert found["LayerNorm scale error relative to LN(D / S)"] == pytest.approx([(2 - scaled) / scaled] * 3)
    assert found["pooled relative LayerNorm scale error"] == pytest.approx((2 - scaled) / 2)
    assert found["first-order proxy of the relative LayerNorm scale error"] == pytest.approx([3 / (2 * 0.25)] * 3)


def test_with_a_bias_the_row_without_variance_has_no_error() -> None:
    raw = measure(with_density(torch.full((4, 4), 0.1), 3, beta=0.5))
    assert by_name(SECTION, raw)["relative LayerNorm scale error"] == [0.0, 0.0, 0.0]
    assert by_name(SECTION, raw)["rows of D without variance"] == 4
    assert by_name(SECTION, raw)["first-order proxy of the relative LayerNorm scale error"] is None


def test_the_proxy_is_of_first_order() -> None:
    """With many tokens and a small ε the error is ε / (2 v) up to relative 1 / S² and ε / v."""
    raw = measure(with_density(torch.tensor([[1.0, -1.0], [3.0, 1.0]]) * 1e4, 10, eps=1e-3))
    proxy = raw.eps / (2 * raw.variance)
    np.testing.assert_allclose(raw.difference / raw.norm, proxy, rtol=0.011)


def test_it_is_the_layer_norm_of_the_model() -> None:
    subject = tiny((6, 3))
    assert subject.model is not None
    norm = first_norm(subject.model)
    torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)
    raw = measure(subject)
    norm = norm.double()
    for number, tokens in enumerate((6, 3)):
        density = subject.visit(number).density[0].double()
        ours, scaled = norm(density), norm(density / tokens)
        np.testing.assert_allclose(raw.norm[number, 0], ours.norm(dim=-1).detach(), rtol=1e-12)
        np.testing.assert_allclose(raw.norm_scaled[number, 0], scaled.norm(dim=-1).detach(), rtol=1e-12)
        # The outputs are about 1, so their difference is known to the roundings of 1.
        apart = (ours - scaled).norm(dim=-1).detach()
        np.testing.assert_allclose(raw.difference[number, 0], apart, rtol=0, atol=1e-14)


def test_reference_checkpoints(reference: Path) -> None:
    for name in ("critical", "subcritical"):
        found = summary(SECTION, trained(reference, name))
        assert found["rows of D"].value == 4 * 2 * 4 * 32
        relative = found["relative LayerNorm scale error"].value
        assert 0 < relative[0] < relative[2] < 1e-3
        assert found["first-order proxy of the relative LayerNorm scale error"].kind == "proxy"


def test_raw_shapes_and_reasons() -> None:
    raw = measure(tiny())
    assert isinstance(raw, ScaleError) and raw.variance.shape == (3, 2, 2, 4) and raw.tokens.tolist() == [5, 4, 6]
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
