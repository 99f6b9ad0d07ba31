"""Section G: greedy decoding with G_LM kept from the prompt, against rebuilding it, at every step of one text.

The text is that of the rebuilt operator (the online contract). The other side reads the same text with keys, values and
G_LM of the prompt, so that a token on which the two disagree does not hide what comes after it. How repetitive the text
is stands beside it, as a description: a text that repeats itself says less.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import NotMeasurable, Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import require_learned
from plga.model.cache import PldrCache

STEPS = 16  # new tokens of a prompt, fewer where the context has less room


@dataclass(frozen=True)
class Decoding:
    """Of N prompts and T steps, each [N, T].

    Attributes:
        tokens: that the rebuilt operator writes.
        deviation: B, the largest difference of a logit between the two.
        margin: between the best and the second best logit of the rebuilt operator.
        operator: ε_G, largest |G_kept - G| over all layers and heads.
        size: largest |G| over them.
        same: whether both have the same best token.
    """

    tokens: np.ndarray
    deviation: np.ndarray
    margin: np.ndarray
    operator: np.ndarray
    size: np.ndarray
    same: np.ndarray


@torch.no_grad()
def measure(subject: Subject) -> Decoding:
    """Take the measurements.

    Raises:
        NotMeasurable: a constant operator, a chunked Gram, no prompts, a full context, or a non-finite operator.
    """
    require_learned(subject)
    model = subject.model
    assert model is not None
    room = model.config.max_position_embeddings - max(map(len, subject.prompts))
    steps = min(STEPS, room)
    if steps < 1:
        raise NotMeasurable("the longest prompt fills the context, so there is no room for a new token")
    rows = []
    for prompt in subject.prompts:
        text = prompt.unsqueeze(0).to(model.device)
        cache, new, kept, found = PldrCache(model.config, "prompt"), text, None, []
        for _ in range(steps):
            try:
                rebuilt = model(text, use_cache=False, logits_to_keep=1, output_deductive=True)
                cached = model(new, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1].double()
            except FloatingPointError as error:
                raise NotMeasurable(str(error)) from error
            curvature = torch.stack([layer.curvature[0] for layer in rebuilt.deductive]).double()
            kept = curvature if kept is None else kept
            logits = rebuilt.logits[0, -1].double()
            best = logits.topk(2)
            token = best.indices[:1]
            found.append(
                (
                    int(token),
                    float((cached - logits).abs().max()),
                    float(best.values[0] - best.values[1]),
                    float((kept - curvature).abs().max()),
                    float(curvature.abs().max()),
                    bool(cached.argmax() == token),
                )
            )
            new = token.unsqueeze(0)
            text = torch.cat([text, new], dim=1)
        rows.append(found)
    arrays = [np.array([[step[field] for step in found] for found in rows]) for field in range(6)]
    return Decoding(*arrays)


def quantities(raw: Decoding) -> list[Quantity]:
    """Deviations, margins, the sufficient criterion, agreement, and repetition."""
    prompts, steps = raw.tokens.shape
    total = f"of {prompts * steps}: {steps} steps of {prompts} prompts"
    within = 2 * raw.deviation < raw.margin
    return [
        Quantity("largest logit deviation", spread(raw.deviation.max(axis=1)), "prompt, largest of its steps"),
        Quantity("smallest decoding margin", spread(raw.margin.min(axis=1)), "prompt, smallest of its steps"),
        Quantity("deviation of G", spread(raw.operator.max(axis=1)), "prompt, largest of its steps"),
        ratios.each(
            "relative deviation of G",
            raw.operator,
            raw.size,
            "step and prompt",
            formula="max |G_kept - G| / max |G|, over all layers and heads",
        ),
        Quantity("steps with the same token", int(raw.same.sum()), total),
        Quantity(
            "steps with another token",
            int((~raw.same).sum()),
            total,
            published=published("cached_decoding_4_prompts_48_steps", "disagreements"),
        ),
        Quantity(
            "steps with 2B < margin",
            int(within.sum()),
            f"{total}; sufficient for the same token",
            formula="B the largest logit deviation of the step",
            claim="theorem",
        ),
        Quantity(
            "steps with 2B < margin and another token", int((within & ~raw.same).sum()), f"{total}", claim="theorem"
        ),
        Quantity("share of distinct pairs of tokens", spread(_distinct_pairs(raw.tokens)), "prompt; a description")
        if steps > 2
        else Quantity("share of distinct pairs of tokens", None, "prompt; a description"),
        Quantity("longest run of one token", int(max(map(_longest_run, raw.tokens))), "largest over prompts"),
    ]


def _distinct_pairs(tokens: np.ndarray) -> np.ndarray:
    """Distinct pairs of neighbours over all pairs of neighbours, of each text."""
    return np.array([len({*pairwise(text)}) / (len(text) - 1) for text in tokens.tolist()])


def _longest_run(text: np.ndarray) -> int:
    longest = run = 1
    for before, token in pairwise(text):
        run = run + 1 if before == token else 1
        longest = max(longest, run)
    return longest


SECTION = Section("G", "Cached against recomputed greedy decoding", "model", Decoding, measure, quantities)
