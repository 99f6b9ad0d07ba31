"""Section G: by hand, against passes over the prefixes, and on the two reference checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plga.audit.decoding import SECTION, CachedDecoding, measure
from plga.audit.section import NotMeasurable
from tests.audit.subjects import by_name, summary, tiny, trained


def test_by_hand() -> None:
    """Two prompts of three steps; 2 B / margin is 0.5, 1, 4 and 0 three times."""
    raw = CachedDecoding(
        tokens=np.array([[5, 5, 5], [1, 2, 1]]),
        logits=np.array([[[2.0, 4.0, 3.0], [1.0, 3.0, 5.0]], [[1.5, 4.0, 2.0], [1.0, 3.0, 5.0]]]),
        deviation=np.array([[0.5, 1.0, 2.0], [0.0, 0.0, 0.0]]),
        margin=np.array([[2.0, 2.0, 1.0], [1.0, 3.0, 0.25]]),
        same=np.array([[True, True, False], [True, True, True]]),
        curvature_apart=np.array([[[0.0], [1.0], [2.0]], [[0.0], [0.0], [0.0]]]),
        curvature_size=np.array([[[4.0], [4.0], [4.0]], [[0.0], [2.0], [2.0]]]),
    )
    found = by_name(SECTION, raw)
    assert found["logit of the written token, recomputed"] == [1.0, 3.0, 5.0]
    assert found["logit of the written token, kept"] == [1.0, 2.5, 5.0]
    assert found["logit deviation B"] == [0.0, 0.25, 2.0] and found["largest logit deviation B"] == 2.0
    assert found["decoding margin"] == [0.25, 1.5, 3.0]
    assert found["smallest decoding margin of a prompt"] == [0.25, 0.625, 1.0]
    assert found["logit deviation over half the margin"] == [0.0, 0.25, 4.0]
    # 2 B = margin is not enough.
    assert found["steps with 2 B < margin"] == 4
    assert found["steps with the same token"] == 5 and found["steps with another token"] == 1
    # The one step where G = 0 has no ratio.
    assert found["ε_G"] == [0.0, 0.0, 0.5] and found["largest |G_kept - G_rebuilt|"] == 2.0
    assert found["share of distinct 2-grams of the text"] == [0.5, 0.75, 1.0]
    assert found["longest run of one token in the text"] == [1.0, 2.0, 3.0]


@torch.no_grad()
def test_each_step_is_a_pass_over_its_prefix() -> None:
    subject = tiny((5, 4))
    model = subject.model
    assert model is not None
    model.double()  # in float32 a pass over all rows and one over the new row round differently; logits come as float32
    raw = measure(subject)
    assert raw.tokens.shape == (2, 7) and raw.curvature_apart.shape == (2, 7, 2)
    for number, prompt in enumerate(subject.prompts):
        kept = subject.visit(number).deductive.curvature
        for step in range(7):
            prefix = torch.cat((prompt, torch.from_numpy(raw.tokens[number, :step])))
            out = model(prefix[None], use_cache=False, output_deductive=True)
            best = out.logits[0, -1].topk(2)
            assert int(best.indices[0]) == raw.tokens[number, step]
            assert raw.margin[number, step] == pytest.approx(float(best.values[0] - best.values[1]), abs=1e-6)
            assert raw.logits[0, number, step] == pytest.approx(float(best.values[0]), abs=1e-6)
            gap = abs(raw.logits[1, number, step] - raw.logits[0, number, step])
            assert gap <= raw.deviation[number, step]
            rebuilt = torch.cat([layer.curvature for layer in out.deductive])
            size = rebuilt.abs().amax(dim=(1, 2, 3)).numpy()
            np.testing.assert_allclose(raw.curvature_size[number, step], size, rtol=1e-3)
            # The first step has the prompt alone, so both have one operator.
            apart = (kept - rebuilt).abs().amax(dim=(1, 2, 3)).numpy()
            np.testing.assert_allclose(raw.curvature_apart[number, step] / size, apart / size, atol=1e-3)


def test_the_first_step_is_one_and_a_rebuilt_operator_is_not_kept() -> None:
    raw = measure(tiny((5, 4), dtype=torch.float64))
    assert (raw.curvature_apart[:, 0] <= 1e-9 * raw.curvature_size[:, 0]).all() and raw.same[:, 0].all()
    assert (raw.curvature_apart[:, 1:] > 0).all()


def test_reference_checkpoints(reference: Path) -> None:
    """At the critical one both decode one text, with logits apart by roundings; at the subcritical one they do not."""
    found = summary(SECTION, trained(reference, "critical"))
    assert found["steps with another token"].value == 0 and found["steps with 2 B < margin"].value == 4 * 16
    assert found["largest logit deviation B"].value < 1e-4
    assert found["ε_G"].value[2] < 1e-4
    found = summary(SECTION, trained(reference, "subcritical"))
    assert found["largest logit deviation B"].value > 0.1
    assert found["steps with 2 B < margin"].value < 4 * 16
    assert found["ε_G"].value[2] > 0.01


def test_reasons() -> None:
    with pytest.raises(NotMeasurable, match="constant"):
        measure(tiny(operator="constant", constant="identity"))
    with pytest.raises(NotMeasurable, match="12 tokens, which leaves no room in the context of 12"):
        measure(tiny((5, 12)))
    with pytest.raises(NotMeasurable, match="prompt 2 has 1 token"):
        measure(tiny((5, 1)))
    subject = tiny((4,))
    assert subject.model is not None
    with torch.no_grad():
        subject.model.lm_head.bias[3] = torch.nan
    with pytest.raises(NotMeasurable, match="logits of the recomputed operator are not finite"):
        measure(subject)


def test_one_new_token_has_no_2_grams() -> None:
    assert summary(SECTION, tiny((11,)))["share of distinct 2-grams of the text"].value is None
