"""Fidelity at every step: each on the recomputed prefix, against calls by hand; summaries by hand."""

import math

import pytest
import torch

from plga.collapse.freeze import freeze
from plga.collapse.steps import Fidelity, Steps, by_step, compare_steps, summary
from plga.criticality.order_parameter import deductive_outputs
from plga.model.modeling import PldrForCausalLM
from tests.training import examples


def pair(**changes: object) -> tuple[PldrForCausalLM, PldrForCausalLM]:
    """A model and a constant that is far from its operator."""
    model = examples.model(dtype=torch.float64, **changes)
    curvature = deductive_outputs(model, torch.randint(examples.VOCABULARY, (2, 6))).curvature
    generator = torch.Generator().manual_seed(1)
    return model, freeze(model, 30 * torch.randn(curvature.shape[1:], generator=generator, dtype=torch.float64))


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"gram": "chunked", "gram_chunk": 3}, {"operator_mode": "prompt"}])
def test_every_step_is_compared_on_the_recomputed_prefix(changes: dict[str, object]) -> None:
    model, constant = pair(**changes)
    prompts = [torch.randint(1, examples.VOCABULARY, (length,)) for length in (2, 5, 3)]
    steps = compare_steps(model, constant, prompts, 4)
    assert steps.tokens.shape == steps.within.shape == (3, 4)
    for n, prompt in enumerate(prompts):
        text, free = prompt[None], prompt[None]
        for t in range(4):
            ours, theirs = (m(text, use_cache=False).logits[0, -1] for m in (model, constant))
            ours = ours.float().double()  # as generation gives logits
            best = ours.topk(2).values
            torch.testing.assert_close(steps.deviation[n, t], (ours - theirs).abs().max(), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(steps.margin[n, t], best[0] - best[1], rtol=1e-9, atol=1e-12)
            divergence = torch.nn.functional.kl_div(
                theirs.log_softmax(-1), ours.log_softmax(-1), log_target=True, reduction="sum"
            )
            torch.testing.assert_close(steps.divergence[n, t], divergence, rtol=1e-8, atol=1e-14)
            assert int(steps.tokens[n, t]) == int(ours.argmax())
            assert bool(steps.same[n, t]) == (int(theirs.argmax()) == int(ours.argmax()))
            written = constant(free, use_cache=False).logits[0, -1].argmax()
            assert bool(steps.free[n, t]) == (int(written) == int(ours.argmax()))
            text = torch.cat([text, ours.argmax().view(1, 1)], dim=1)
            free = torch.cat([free, written.view(1, 1)], dim=1)
    assert bool((steps.divergence > 0).all())


@torch.no_grad()
def test_the_criterion_is_sufficient_at_every_step() -> None:
    """2 · deviation < margin implies the same token (theorem): on constants near and far."""
    model = examples.model()
    prompts = [torch.randint(examples.VOCABULARY, (4,)) for _ in range(4)]
    curvature = deductive_outputs(model, torch.stack(prompts)).curvature.mean(dim=0)
    seen: set[bool] = set()
    for seed in range(8):
        noise = torch.randn(curvature.shape, generator=torch.Generator().manual_seed(seed))
        steps = compare_steps(model, freeze(model, curvature + 10.0 ** (seed / 2 - 3) * noise), prompts, 3)
        assert bool(steps.same[steps.within].all())
        seen |= set(steps.within.flatten().tolist())
    assert seen == {True, False}


def example() -> Steps:
    return Steps(
        tokens=torch.tensor([[1, 2], [3, 4]]),
        deviation=torch.tensor([[0.5, 0.25], [0.125, 1.0]]),
        margin=torch.tensor([[2.0, 0.5], [1.0, 4.0]]),
        divergence=torch.tensor([[0.0, 0.5], [0.25, 0.25]]),
        same=torch.tensor([[True, True], [True, False]]),
        free=torch.tensor([[True, False], [False, False]]),
    )


def test_summaries_by_hand() -> None:
    # 2 · 0.25 is not below 0.5, the other three are within.
    assert summary(example()) == Fidelity(4, 1.0, 0.25, 0.5, 3, 3, 1, 0.25, 0.5)
    assert by_step(example()) == [
        Fidelity(2, 0.5, 0.125, 1.0, 2, 2, 1, 0.125, 0.25),
        Fidelity(2, 1.0, 0.25, 0.5, 1, 1, 0, 0.375, 0.5),
    ]


def test_logits_that_are_not_finite_stop_it() -> None:
    model, constant = pair()
    with torch.no_grad():
        constant.lm_head.bias[3] = math.inf
    with pytest.raises(FloatingPointError, match="logits of the constant operator are not finite"):
        compare_steps(model, constant, [torch.tensor([1, 2])], 2)
