"""Absorption: the same logits without an operator, in every layout and dtype, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from plga.collapse.absorb import absorb, constants, projected, residuals
from plga.collapse.freeze import freeze
from plga.model.checkpoint import load_model, save_model
from plga.model.modeling import PldrForCausalLM
from tests.model.conftest import scatter
from tests.training import examples


def learned(dtype: torch.dtype = torch.float64, **changes: object) -> PldrForCausalLM:
    found = examples.model(dtype=dtype, **changes)
    scatter(found)  # a bias of zero would hide one that is not absorbed
    return found


def curvature(seed: int = 0) -> Tensor:
    return torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens() -> Tensor:
    return torch.randint(examples.VOCABULARY, (3, 9))


@torch.no_grad()
@pytest.mark.parametrize("interleaved", [True, False])
def test_a_commuting_operator_leaves_no_trace_in_the_logits(interleaved: bool) -> None:
    model = learned(rope_interleaved=interleaved)
    frozen = freeze(model, projected(model, curvature()))
    assert float(residuals(frozen, constants(frozen)).max()) < 1e-15
    absorbed, ids = absorb(frozen), tokens()
    torch.testing.assert_close(absorbed(ids).logits, frozen(ids).logits, rtol=1e-11, atol=1e-12)
    assert (absorbed.config.operator, absorbed.config.constant) == ("constant", "identity")
    assert torch.equal(constants(absorbed), torch.eye(4, dtype=torch.float64).expand(2, 2, 4, 4))
    for ours, theirs in zip(absorbed.model.layers, frozen.model.layers, strict=True):
        for name in ("weight", "bias"):
            a, b = getattr(ours.self_attn.q_proj, name), getattr(theirs.self_attn.q_proj, name)
            assert not torch.allclose(a, b)
    # It is not the other layout that was projected for.
    wrong = freeze(learned(rope_interleaved=not interleaved), constants(frozen))
    assert float(residuals(wrong, constants(wrong)).max()) > 0.1


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_rounding_is_that_of_the_dtype(dtype: torch.dtype, tolerance: float) -> None:
    model = learned(dtype)
    frozen = freeze(model, projected(model, curvature()))
    ids = tokens()
    ours, theirs = absorb(frozen)(ids).logits, frozen(ids).logits
    assert ours.dtype == dtype
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < tolerance


@torch.no_grad()
def test_what_does_not_commute_is_dropped() -> None:
    model, ids = learned(), tokens()
    frozen = freeze(model, curvature())
    assert float(residuals(frozen, constants(frozen)).min()) > 0.1
    dropped = freeze(model, projected(model, curvature()))
    torch.testing.assert_close(absorb(frozen)(ids).logits, dropped(ids).logits, rtol=1e-11, atol=1e-12)
    assert not torch.allclose(frozen(ids).logits, dropped(ids).logits, rtol=1e-3)


@torch.no_grad()
def test_generation_with_a_cache_and_a_saved_checkpoint_agree(tmp_path: Path) -> None:
    model = learned()
    frozen = freeze(model, projected(model, curvature()))
    absorbed, ids = absorb(frozen), tokens()[:1, :4]
    save_model(absorbed, tmp_path / "absorbed")
    loaded = load_model(tmp_path / "absorbed", dtype=None)
    assert loaded.config.constant == "identity"
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 6, "eos_token_id": None}
    written = [m.generate(ids, **options) for m in (frozen, absorbed, loaded)]
    assert torch.equal(written[0], written[1])
    assert torch.equal(written[1], written[2])


def test_a_learned_operator_and_an_overflow_are_refused() -> None:
    model = learned()
    with pytest.raises(ValueError, match="learned, expected constant"):
        absorb(model)
    with pytest.raises(ValueError, match="learned, expected constant"):
        constants(model)
    frozen = freeze(model.half(), torch.eye(4).expand(2, 2, 4, 4) * 6e4)
    with torch.no_grad():
        frozen.model.layers[1].self_attn.q_proj.bias.fill_(10.0)
        frozen.model.layers[0].self_attn.q_proj.weight.fill_(0.0)
        frozen.model.layers[0].self_attn.q_proj.bias.fill_(0.0)
        frozen.model.layers[1].self_attn.q_proj.weight.fill_(0.0)
    with pytest.raises(ValueError, match=r"q_proj.bias of layer 1 with G absorbed is not finite in torch.float16"):
        absorb(frozen)
