"""Section J: by hand, against passes of the model, and on the two reference checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plga.audit.contract import SECTION, Contract, measure
from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from tests.audit.subjects import by_name, summary, tiny, trained

MASKS = ("without a mask", "with a mask of ones", "with masked padding on the left")
KINDS = ("fixed suffixes", "random suffixes")


def test_by_hand() -> None:
    """Two prompts, one fixed pair and two random ones each, the same with every mask but for the factor of it."""
    change = np.array([[0.0, 1.0, 2.0], [4.0, 0.0, 0.0]])
    raw = Contract(
        suffixes=np.zeros((2, 4, 3), dtype=np.int64),
        change=np.stack([change, 2 * change, 3 * change]),
        changed_size=np.array([[2.0, 8.0]] * 3),
        repeat_equal=np.array([True, False]),
        repeat_change=np.array([0.0, 0.5]),
        padding_change=np.array([[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0], [6.0, 7.0]]]),
        size=np.array([1.0, 0.0]),
    )
    found = by_name(SECTION, raw)
    for factor, mask in enumerate(MASKS, start=1):
        assert found[f"largest logit change by a suffix: fixed suffixes, {mask}"] == 4.0 * factor
        assert found[f"largest logit change by a suffix: random suffixes, {mask}"] == 2.0 * factor
        half = 0.5 * factor
        assert found[f"relative logit change by a suffix: fixed suffixes, {mask}"] == [0.0, half / 2, half]
        assert found[f"relative logit change by a suffix: random suffixes, {mask}"] == [0.0, half / 2, 2 * half]
        assert found[f"pairs that change no logit: fixed suffixes, {mask}"] == 1
        assert found[f"pairs that change no logit: random suffixes, {mask}"] == 2
    assert found["prompts whose second pass gives the same bits"] == 1
    assert found["largest logit change of a second pass"] == 0.5
    assert found["logit change by padding on the left, with its mask"] == [0.0, 0.5, 1.0]
    assert found["largest logit change by padding on the left, without a mask"] == 3.0
    assert found["largest logit change by padding on the right, with its mask"] == 5.0
    assert found["largest logit change by padding on the right, without a mask"] == 7.0
    # The second prompt's logits are 0, so only the first has a ratio.
    assert found["relative logit change by padding on the right, without a mask"] == [6.0] * 3


@torch.no_grad()
def test_the_changes_are_those_of_passes_of_the_model() -> None:
    subject = tiny((5, 4), dtype=torch.float64)
    model = subject.model
    assert model is not None
    raw = measure(subject)
    assert raw.suffixes.shape == (2, 4, 7) and raw.change.shape == (3, 2, 3)
    assert raw.suffixes[0, :2].tolist() == [list(range(39, 32, -1)), list(range(32, 25, -1))]
    for number, prompt in enumerate(subject.prompts):
        texts = [torch.cat((prompt, torch.from_numpy(suffix))) for suffix in raw.suffixes[number]]
        logits = model(torch.stack(texts), use_cache=False).logits[:, : len(prompt)]
        expected = (logits[1:] - logits[0]).abs().amax(dim=(1, 2)).numpy()
        # Masked padding on the left changes nothing, and neither does a mask of ones.
        for change, size in zip(raw.change[:, number], raw.changed_size[:, number], strict=True):
            np.testing.assert_allclose(change, expected, rtol=1e-7)
            assert size == pytest.approx(float(logits[0].abs().max()))
        alone = model(prompt[None], use_cache=False).logits[0, -1]
        # Of 12 columns, without a mask.
        padding = torch.zeros(12 - len(prompt), dtype=torch.long)
        left = model(torch.cat((padding, prompt))[None], use_cache=False).logits[0, -1]
        right = model(torch.cat((prompt, padding))[None], use_cache=False).logits[0, len(prompt) - 1]
        for index, row in enumerate((left, right)):
            change = float((row - alone).abs().max())
            assert change > 1e-4 and raw.padding_change[index, 1, number] == pytest.approx(change, rel=1e-7)
        assert (raw.padding_change[:, 0, number] < 1e-12).all()
    assert raw.repeat_equal.all() and (raw.repeat_change == 0).all()


def test_random_suffixes_are_seeded() -> None:
    one, same, other = (measure(Subject(tiny().model, tiny().prompts, seed=seed)).suffixes for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert np.array_equal(one[:, :2], other[:, :2]) and not np.array_equal(one[:, 2:], other[:, 2:])
    assert (one < 40).all() and (one >= 0).all()


def test_reference_checkpoints(reference: Path) -> None:
    """The rows of the critical one are changed by roundings alone, those of the subcritical one are not."""
    for name in ("critical", "subcritical"):
        found = summary(SECTION, trained(reference, name))
        for kind in KINDS:
            for mask in MASKS:
                least, _, most = found[f"relative logit change by a suffix: {kind}, {mask}"].value
                assert most < 1e-6 if name == "critical" else least > 1e-3
        assert found["prompts whose second pass gives the same bits"].value == 4
        for side in ("left", "right"):
            masked = found[f"relative logit change by padding on the {side}, with its mask"].value
            assert masked[2] < 1e-5
        gram_alone = found["relative logit change by padding on the right, without a mask"].value
        assert gram_alone[2] < 1e-6 if name == "critical" else gram_alone[0] > 1e-3
        # On the left padding also enters attention, whatever the operator is.
        assert found["relative logit change by padding on the left, without a mask"].value[0] > 1e-3


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
    with pytest.raises(NotMeasurable, match=r"logits are not finite in float32"):
        measure(subject)
