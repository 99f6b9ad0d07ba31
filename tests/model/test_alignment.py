"""Gram alignment of a model: each layer's operator on blocks of a sequence, against the one of all of it."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from plga.model.cache import PldrCache
from plga.model.modeling import PldrForCausalLM
from plga.ops.density import gram
from tests.model.conftest import constant, pad, relative, tiny, tokens


@torch.no_grad()
def queries(model: PldrForCausalLM, ids: Tensor) -> list[Tensor]:
    """Rotated queries of each layer, [B, H, S, d]."""
    seen: list[Tensor] = []
    hooks = [
        layer.self_attn.operator.register_forward_hook(lambda module, args, outputs: seen.append(args[0]))
        for layer in model.model.layers
    ]
    model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


@torch.no_grad()
@pytest.mark.parametrize("blocks", [2, 3])
def test_equals_the_operators_built_from_the_blocks_by_hand(blocks: int) -> None:
    model, ids = tiny(), tokens(2, 12)
    outputs = model(ids, alignment_blocks=blocks, output_deductive=True)
    assert torch.equal(outputs.logits, model(ids).logits)
    for layer, q, alignment, deductive in zip(
        model.model.layers, queries(model, ids), outputs.alignment, outputs.deductive, strict=True
    ):
        total = 0.0
        for part in q.chunk(blocks, dim=2):
            difference = layer.self_attn.operator.build(gram(part)).curvature - deductive.curvature
            total += (difference.square().sum((-2, -1)) / deductive.curvature.square().sum((-2, -1))).mean()
        assert relative(alignment, (total / blocks).sqrt()) < 1e-12
        assert float(alignment) > 1e-3


@torch.no_grad()
def test_an_operator_that_does_not_read_its_input_is_aligned_exactly() -> None:
    model = tiny()
    for layer in model.model.layers:
        layer.self_attn.operator.metric_weight.zero_()
    assert [float(alignment) for alignment in model(tokens(2, 12), alignment_blocks=4).alignment] == [0.0, 0.0]


@torch.no_grad()
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_changes_nothing(left: bool) -> None:
    model, sequences = tiny(), [tokens(length, seed=length) for length in (5, 12, 9)]
    ids, mask = pad(sequences, left, filler=7)
    together = model(ids, attention_mask=mask, alignment_blocks=3).alignment
    alone = [model(sequence[None], alignment_blocks=3).alignment for sequence in sequences]
    for layer, alignment in enumerate(together):
        squares = torch.stack([alignments[layer].square() for alignments in alone])
        assert relative(alignment, squares.mean().sqrt()) < 1e-9


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_gradient_through_every_kind_of_checkpoint(reentrant: bool | None) -> None:
    plain, saving = tiny().train(), tiny().train()
    if reentrant is not None:
        enable = getattr(saving, "activation_checkpointing_enable", saving.gradient_checkpointing_enable)
        enable({"use_reentrant": reentrant})
    saving.checkpoint_metric_learner()
    for model in (plain, saving):
        outputs = model(tokens(2, 6), labels=tokens(2, 6), alignment_blocks=2)
        (outputs.loss + torch.stack(outputs.alignment).sum()).backward()
    plain_gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in saving.named_parameters():
        torch.testing.assert_close(parameter.grad, plain_gradients[name], rtol=1e-12, atol=1e-14, msg=name)


def test_gradient_reaches_the_operator_and_the_queries() -> None:
    model = tiny().train()
    torch.stack(model(tokens(2, 6), alignment_blocks=2).alignment).sum().backward()
    for name, parameter in model.named_parameters():
        if ".operator." in name or "q_proj" in name:
            assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_is_float32_in_low_precision() -> None:
    model = tiny(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(tokens(2, 12), alignment_blocks=2)
    assert {alignment.dtype for alignment in outputs.alignment} == {torch.float32}
    assert tiny(torch.bfloat16)(tokens(2, 12), alignment_blocks=2).alignment[0].dtype == torch.float32


@torch.no_grad()
def test_is_not_there_unless_asked_for() -> None:
    assert tiny()(tokens(2, 12)).alignment is None


@torch.no_grad()
def test_what_cannot_be_aligned() -> None:
    model, ids = tiny(), tokens(2, 6)
    for blocks in (-1, 0, 1, 7):
        with pytest.raises(ValueError, match=f"alignment_blocks is {blocks}, expected from 2 to the 6 tokens"):
            model(ids, alignment_blocks=blocks)
    padded, mask = pad([tokens(2), tokens(6)], left=True)
    with pytest.raises(ValueError, match="alignment_blocks is 3, expected from 2 to the 2 tokens"):
        model(padded, attention_mask=mask, alignment_blocks=3)
    for cache in (PldrCache(model.config, "recompute"), PldrCache(model.config, "prompt")):
        model(ids, cache=cache)
        with pytest.raises(ValueError, match="alignment_blocks is 2, but the cache holds 6 tokens"):
            model(ids, cache=cache, alignment_blocks=2)
    with pytest.raises(ValueError, match="alignment_blocks is 2, but the operator of this model is constant"):
        constant()(ids, cache=DynamicCache(), alignment_blocks=2)


@torch.no_grad()
def test_a_block_whose_operator_is_not_finite_is_named() -> None:
    model = tiny(torch.float32)
    operator = model.model.layers[1].self_attn.operator
    finite = operator.build

    def broken(density: Tensor):
        outputs = finite(density)
        return outputs if density.dim() == 4 else outputs._replace(curvature=outputs.curvature / 0)

    operator.build = broken
    with pytest.raises(FloatingPointError, match=r"G_LM of layer 1 is not finite in heads \[0, 1\]"):
        model(tokens(2, 6), alignment_blocks=2)
