"""What a section may read, and the reasons why it cannot."""

import math

import pytest
import torch

from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject
from plga.audit.visits import curvatures, learned_visits
from tests.audit.subjects import prompt, tiny


def test_curvatures_of_each_kind_of_subject() -> None:
    learned = tiny()
    assert [tuple(g.shape) for g in curvatures(learned)] == [(2, 2, 4, 4)] * 3
    assert torch.equal(next(curvatures(learned)), learned.visit(0).deductive.curvature)
    (constant,) = curvatures(tiny(operator="constant", constant="identity"))
    assert torch.equal(constant, torch.eye(4).expand(2, 2, 4, 4))
    given = torch.randn(3, 2, 4, 4)
    assert next(curvatures(Subject(operators=given))) is given


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (Subject(operators=torch.eye(4).expand(1, 1, 4, 4)), "there is no model, only operators"),
        (tiny(operator="constant", constant="identity"), "the operator of this model is constant"),
        (tiny(gram="chunked"), "the Gram of this model is chunked"),
        (Subject(model=tiny().model), "there are no prompts"),
        (Subject(model=tiny().model, prompts=(prompt(4), prompt(1))), "prompt 2 has 1 token, expected at least 2"),
    ],
)
def test_reasons(subject: Subject, reason: str) -> None:
    with pytest.raises(NotMeasurable, match=reason):
        next(learned_visits(subject))


def test_what_is_not_finite_is_named() -> None:
    broken = tiny()
    with torch.no_grad():
        broken.layers[1].self_attn.operator.coupling_bias[1, 2, 3] = math.nan
    with pytest.raises(NotMeasurable, match=r"G_LM of layer 1 is not finite in heads \[1\]"):
        list(learned_visits(broken))
    with pytest.raises(NotMeasurable, match="G_LM has 16 non-finite entries"):
        next(curvatures(Subject(operators=torch.full((1, 1, 4, 4), math.nan))))
    with pytest.raises(NotMeasurable, match="neither a model nor operators"):
        next(curvatures(Subject()))
