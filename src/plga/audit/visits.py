"""What a section may read of a subject, or the reason why it cannot."""

from collections.abc import Iterator

import torch
from torch import Tensor

from plga.audit.section import NotMeasurable
from plga.audit.subject import Subject, Visit
from plga.model.operator import ConstantOperator


def dtype_name(dtype: torch.dtype) -> str:
    """As people write it: "float32"."""
    return str(dtype).removeprefix("torch.")


def require_learned(subject: Subject) -> None:
    """Raise NotMeasurable unless the subject has prompts and a model that builds one operator from each."""
    if subject.model is None:
        raise NotMeasurable("there is no model, only operators")
    config = subject.model.config
    if config.operator != "learned":
        raise NotMeasurable("the operator of this model is constant, so nothing is built from the prompts")
    if config.gram != "global":
        raise NotMeasurable(f"the Gram of this model is {config.gram}, so a prompt has no one operator")
    if not subject.prompts:
        raise NotMeasurable("there are no prompts")
    for number, prompt in enumerate(subject.prompts, start=1):
        if len(prompt) < 2:
            raise NotMeasurable(f"prompt {number} has {len(prompt)} token, expected at least 2")


def room(subject: Subject, wanted: int) -> int:
    """Tokens that may follow every prompt, at most ``wanted``.

    Raises:
        NotMeasurable: as :func:`require_learned`, or a prompt that fills the context.
    """
    require_learned(subject)
    assert subject.model is not None
    context, longest = subject.model.config.max_position_embeddings, max(len(prompt) for prompt in subject.prompts)
    if context <= longest:
        raise NotMeasurable(f"a prompt has {longest} tokens, which leaves no room in the context of {context}")
    return min(wanted, context - longest)


def learned_visits(subject: Subject) -> Iterator[Visit]:
    """A pass over every prompt in turn.

    Raises:
        NotMeasurable: as :func:`require_learned`, or a non-finite deductive output.
    """
    require_learned(subject)
    try:
        yield from subject.visits()
    except FloatingPointError as error:
        raise NotMeasurable(str(error)) from error


def curvatures(subject: Subject) -> Iterator[Tensor]:
    """G_LM, [L, H, d, d]: of every prompt in turn where it is built from them, and once where it is constant or given.

    Raises:
        NotMeasurable: as :func:`learned_visits`, a non-finite operator, or a subject without any.
    """
    if subject.model is None:
        if subject.operators is None:
            raise NotMeasurable("there is neither a model nor operators")
        yield _finite(subject.operators)
    elif subject.model.config.operator == "constant":
        operators = (layer.self_attn.operator for layer in subject.layers)
        yield _finite(torch.stack([o.curvature.detach() for o in operators if isinstance(o, ConstantOperator)]))
    else:
        yield from (visit.deductive.curvature for visit in learned_visits(subject))


def _finite(operators: Tensor) -> Tensor:
    wrong = int((~operators.isfinite()).sum())
    if wrong:
        raise NotMeasurable(f"G_LM has {wrong} non-finite entries")
    return operators
