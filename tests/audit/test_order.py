"""Section I: by hand, against plga.criticality.order_parameter, and on the two reference checkpoints."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from plga.audit import order
from plga.audit.order import SECTION, Order, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.criticality.order_parameter import SYMBOLS, deductive_outputs, order_parameter
from tests.audit.subjects import by_name, prompt, summary, tiny, trained

NAMES = {
    "RMSE_12 / |mean|": "rmse_12_over_abs_mean",
    "RMSE_1C / |mean|": "rmse_1c_over_abs_mean",
    "RMS-normalized order parameter": "rms_normalized",
    "symmetrized signed order parameter": "symmetrized_signed",
}


def test_by_hand() -> None:
    """Two prompts, one entry: x¹ = 1, 3; x² = 2, 2; xᶜ = 1, 1. Mean of x¹ 2, about it -1 and 1, ⟨x¹²⟩ = 5."""
    column = {
        "squares_12": [1.0, 1.0],
        "squares_1c": [0.0, 4.0],
        "difference_12": [-1.0, 1.0],
        "sum_1": [1.0, 3.0],
        "magnitude_1": [1.0, 3.0],
        "magnitude_2": [2.0, 2.0],
        "squares_1": [1.0, 9.0],
        "squares_about_mean": [1.0, 1.0],
    }
    arrays = {name: np.broadcast_to(np.array(sums)[None, :, None, None], (4, 2, 1, 1)) for name, sums in column.items()}
    none = np.empty((2, 0), dtype=np.int64)
    found = by_name(SECTION, Order(**arrays, width=np.array([1]), tokens_1=none, tokens_2=none))
    for symbol in SYMBOLS:
        assert found[f"RMSE_12 / |mean| of {symbol}"] == pytest.approx(1 / 2)
        assert found[f"RMSE_1C / |mean| of {symbol}"] == pytest.approx(math.sqrt(2) / 2)
        assert found[f"RMS-normalized order parameter of {symbol}"] == pytest.approx(1 / math.sqrt(5))
        assert found[f"symmetrized signed order parameter of {symbol}"] == 0.0
        assert found[f"largest RMS-normalized order parameter of {symbol}"] == pytest.approx(1 / math.sqrt(5))


def test_the_sums_give_the_statistics_of_the_runs() -> None:
    subject = tiny(max_position_embeddings=20)
    assert subject.model is not None
    raw = measure(subject)
    runs = []
    for continuations in (raw.tokens_1, raw.tokens_2):
        texts = (torch.cat((p, torch.from_numpy(c))) for p, c in zip(subject.prompts, continuations, strict=True))
        outputs = [deductive_outputs(subject.model, text[None]) for text in texts]
        runs.append([torch.cat(tensors) for tensors in zip(*outputs, strict=True)])
    cached = [torch.stack(tensors) for tensors in zip(*(v.deductive for v in subject.visits()), strict=True)]
    found = by_name(SECTION, raw)
    for symbol, one, two, kept in zip(SYMBOLS, *runs, cached, strict=True):
        pooled = order_parameter(one, two, kept)
        by_head = [order_parameter(one[:, i, h], two[:, i, h], kept[:, i, h]) for i in range(2) for h in range(2)]
        for name, field in NAMES.items():
            assert found[f"{name} of {symbol}"] == pytest.approx(getattr(pooled, field), rel=1e-6, abs=1e-12)
            values = [getattr(statistics, field) for statistics in by_head]
            expected = [min(values), float(np.median(values)), max(values)]
            assert found[f"{name} of {symbol}, by head"] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_runs_are_seeded_and_independent() -> None:
    raw, again, other = measure(tiny()), measure(tiny()), measure(tiny(seed=1))
    for name, values in vars(raw).items():
        np.testing.assert_array_equal(values, vars(again)[name])
    assert raw.tokens_1.shape == raw.tokens_2.shape == (3, 6)  # what the context of 12 leaves after 6
    assert not np.array_equal(raw.tokens_1, raw.tokens_2)
    assert not np.array_equal(raw.tokens_1, other.tokens_1)
    subject = tiny()
    state = torch.random.get_rng_state()
    measure(subject)
    assert torch.equal(torch.random.get_rng_state(), state)  # sampling is nobody else's randomness


def test_the_whole_distribution_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the generation config says: a logit that is always 2nd of 40 is drawn, and so is the 40th."""
    subject = tiny(max_position_embeddings=200)
    assert subject.model is not None
    torch.nn.init.zeros_(subject.model.lm_head.weight), torch.nn.init.zeros_(subject.model.lm_head.bias)
    subject.model.generation_config.update(top_k=1, temperature=0.1, repetition_penalty=1.0)
    monkeypatch.setattr(order, "_NEW_TOKENS", 100)
    raw = measure(subject)
    assert len(np.unique(raw.tokens_1)) == 40


def test_critical_and_subcritical_are_opposite(reference: Path) -> None:
    critical, subcritical = (summary(SECTION, trained(reference, name)) for name in ("critical", "subcritical"))
    for symbol in SYMBOLS:
        name = f"RMS-normalized order parameter of {symbol}"
        assert critical[name].value < 1e-5 < 0.05 < subcritical[name].value
        assert critical[f"largest {name}"].value < 1e-5 < subcritical[f"{name}, by head"].value[0]
    assert critical["RMSE_1C / |mean| of G_LM"].value < 1e-3 < 10 < subcritical["RMSE_1C / |mean| of G_LM"].value


def test_what_vanishes_has_no_ratio() -> None:
    zero = np.zeros((4, 2, 1, 1))
    names = [name for name in Order.__dataclass_fields__ if name not in ("width", "tokens_1", "tokens_2")]
    none = np.empty((2, 0), dtype=np.int64)
    quantities = SECTION.quantities(
        Order(**dict.fromkeys(names, zero), width=np.array([1]), tokens_1=none, tokens_2=none)
    )
    assert all(quantity.value is None for quantity in quantities)
    assert any(quantity.over.endswith("without 1 of 1 with denominator 0") for quantity in quantities)


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (tiny((5,)), "there is one prompt, and a spread over prompts needs at least 2"),
        (tiny((5, 12)), "a prompt has 12 tokens, which leaves no room in the context of 12"),
        (tiny(operator="constant", constant="identity"), "constant"),
        (Subject(model=tiny().model, prompts=(prompt(3), prompt(1))), "prompt 2 has 1 token"),
    ],
)
def test_reasons(subject: Subject, reason: str) -> None:
    with pytest.raises(NotMeasurable, match=reason):
        measure(subject)


def test_logits_that_are_not_finite_are_named() -> None:
    subject = tiny()
    assert subject.model is not None
    torch.nn.init.constant_(subject.model.lm_head.bias, math.inf)
    with pytest.raises(NotMeasurable, match="logits after 5 tokens are not finite in float32"):
        measure(subject)


def test_an_operator_that_becomes_non_finite_is_named() -> None:
    subject = tiny()
    with torch.no_grad():
        subject.layers[1].self_attn.operator.coupling_bias[1, 2, 3] = math.nan
    with pytest.raises(NotMeasurable, match=r"G_LM of layer 1 is not finite in heads \[1\]"):
        measure(subject)
