"""Fidelity: decoding is Transformers' greedy decoding, comparisons by hand, and on trained checkpoints."""

import argparse
import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plga.collapse.fidelity import Decoding, Fidelity, compare, decode
from plga.collapse.freeze import freeze_on
from plga.model.checkpoint import load_model
from plga.model.tokenizer import load_tokenizer
from tests.training import examples


@pytest.mark.parametrize("mode", ["recompute", "prompt", "constant"])
def test_decoding_is_greedy_generation(mode: str) -> None:
    model = examples.model()
    if mode == "constant":
        model, _ = freeze_on(model, torch.randint(examples.VOCABULARY, (4, 9)))
    prompts = torch.randint(examples.VOCABULARY, (3, 5))
    decoding = decode(model, prompts, 6, mode)
    assert decoding.tokens.shape == (3, 6)
    assert decoding.logits.shape == (3, 6, examples.VOCABULARY)
    for prompt, tokens in zip(prompts, decoding.tokens, strict=True):
        generated = model.generate(
            prompt[None],
            attention_mask=torch.ones(1, 5),  # else Transformers takes a pad token in the prompt for padding
            operator_mode=mode,
            do_sample=False,
            max_new_tokens=6,
            eos_token_id=None,
        )
        assert torch.equal(generated[0, 5:], tokens)
    assert torch.equal(decoding.logits.argmax(dim=-1), decoding.tokens)


def test_recomputed_logits_are_the_online_contract() -> None:
    model = examples.model()
    prompt = torch.randint(examples.VOCABULARY, (1, 5))
    decoding = decode(model, prompt, 4, "recompute")
    sequence = torch.cat([prompt, decoding.tokens], dim=1)
    for step in range(4):
        with torch.no_grad():
            last = model(sequence[:, : 5 + step], use_cache=False).logits[0, -1]
        torch.testing.assert_close(decoding.logits[0, step], last, rtol=1e-5, atol=1e-5)


def test_the_end_token_does_not_stop_a_decoding() -> None:
    model = examples.model()
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] = 100.0
    assert (decode(model, torch.ones(1, 3, dtype=torch.int64), 5).tokens == model.config.eos_token_id).all()


def decoding(tokens: list[list[int]], logits: Tensor, seconds: float = 1.0) -> Decoding:
    return Decoding(torch.tensor(tokens), logits, seconds)


def test_speed_and_margin_by_hand() -> None:
    logits = torch.tensor([[[3.0, 1.0, 2.5], [0.0, -4.0, 7.0]], [[1.0, 2.0, 9.0], [5.0, 5.25, 0.0]]])
    example = decoding([[0, 2], [2, 1]], logits, seconds=0.5)
    assert example.tokens_per_second == 8.0
    assert float(example.margins.min()) == 0.25


def test_comparison_by_hand() -> None:
    reference = decoding([[1, 2, 3, 4], [5, 6, 7, 8]], torch.zeros(2, 4, 10))
    logits = torch.zeros(2, 4, 10)
    other = decoding([[1, 2, 3, 4], [5, 0, 7, 8]], logits)
    logits[0, 3, 1] = 0.5  # on one prefix to the end
    logits[1, 1, 2] = -0.75  # the step that disagrees still read one prefix
    logits[1, 2, 3] = 100.0  # after it the texts differ, although the token agrees again
    assert compare(reference, other) == Fidelity(agreeing=7, total=8, largest_deviation=0.75, within_margin=0)
    assert compare(reference, reference) == Fidelity(agreeing=8, total=8, largest_deviation=0.0, within_margin=0)


def test_a_first_token_that_disagrees_leaves_one_step_to_compare() -> None:
    reference = decoding([[1, 2]], torch.zeros(1, 2, 3))
    logits = torch.tensor([[[0.0, 0.0, 2.0], [9.0, 9.0, 9.0]]])
    assert compare(reference, decoding([[2, 2]], logits)) == Fidelity(
        agreeing=1, total=2, largest_deviation=2.0, within_margin=0
    )


def test_deviation_of_a_decoding_that_broke_down_is_not_hidden() -> None:
    logits = torch.zeros(1, 2, 3)
    reference, broken = decoding([[0, 0]], logits), copy.deepcopy(logits)
    broken[0, 1, 1] = torch.nan
    assert not compare(reference, decoding([[0, 0]], broken)).largest_deviation <= 1e30


@pytest.fixture(scope="module", params=["critical", "subcritical"])
def trained(request: pytest.FixtureRequest, reference: Path) -> tuple[str, list[Fidelity], list[bool], list[float]]:
    """The model frozen on windows of a module, against recomputing, on the three reference cases."""
    name = request.param
    model = load_model(reference / f"{name}.pth")
    expected = load_file(reference / f"{name}.expected.safetensors")
    text = Path(argparse.__file__).read_text(encoding="utf-8")
    ids = load_tokenizer(reference / "tokenizer.json")(text, return_tensors="pt").input_ids[0]
    frozen, _ = freeze_on(model, ids[: 16 * 128].view(16, 128))
    fidelity, published, margins = [], [], []
    for case in ("case0", "case1", "case2"):
        prompt = expected[f"{case}.input_ids"]
        recomputed, constant = decode(model, prompt, 16, "recompute"), decode(frozen, prompt, 16)
        assert torch.equal(recomputed.tokens, expected[f"{case}.greedy_recompute"])
        fidelity.append(compare(recomputed, constant))
        published.append(torch.equal(constant.tokens, expected[f"{case}.greedy_recompute"]))
        margins.append(float(recomputed.margins.min()))
    return name, fidelity, published, margins


def test_what_freezing_costs_a_trained_model(trained: tuple[str, list[Fidelity], list[bool], list[float]]) -> None:
    name, fidelity, published, margins = trained
    deviations = [case.largest_deviation for case in fidelity]
    if name == "critical":
        # Measured: at most 5e-6 beside margins of at least 0.03.
        assert max(deviations) < 1e-4
        assert all(2 * deviation < margin for deviation, margin in zip(deviations, margins, strict=True))
        assert all(published)
        assert all(case.agreeing == case.total == 16 for case in fidelity)
    else:
        # Measured: 0.07 to 0.9, which is above the margins, and two of three texts part.
        assert min(deviations) > 1e-2
        assert not all(published)


def test_a_step_within_half_its_margin_is_counted_by_hand() -> None:
    """Margins 2, 1, 2, 2: deviations 0.9 and 0.5 (not below half of 1), then one that disagrees, then another text."""
    logits = torch.tensor([[[2.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 0.0]]])
    reference = decoding([[0, 0, 0, 0]], logits)
    moved = logits.clone()
    moved[0, 0, 1], moved[0, 1, 1], moved[0, 2, 1] = 0.9, 0.5, 3.0
    assert compare(reference, decoding([[0, 0, 1, 0]], moved)).within_margin == 1
    assert compare(reference, reference).within_margin == 4
