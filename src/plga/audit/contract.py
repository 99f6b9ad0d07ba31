"""Section J: the online contract: what a later token, a second call and padding change in the rows of a prompt.

A learned operator reads the whole sequence, so rows that are known may change with what comes after them
(arXiv:2608.10288). Padding never enters the Gram of this project's model; in the published setting, which this section
imitates by padding without a mask, it does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plga.audit.published import published
from plga.audit.section import NotMeasurable, Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import require_learned

SUFFIX = 4  # tokens behind a prompt
TRIALS = 4  # seeded pairs of suffixes of a prompt


@dataclass(frozen=True)
class Contract:
    """Largest change of a logit, of N prompts; [N] but for the random suffixes, [N, trials].

    Attributes:
        fixed, fixed_masked: of the rows of the prompt when the tokens after its first ones in the vocabulary follow it
            instead of its first ones; without and with an attention mask of ones.
        random, random_masked: when one seeded suffix follows instead of another.
        suffix_masked: when a seeded suffix follows that the mask calls padding, instead of nothing.
        repeated: between two calls alike.
        left, right: of the last row of the prompt in a batch with a longer one, padded on that side, with the mask.
        unmasked: the same padded on the right without a mask, as in the published setting.
    """

    fixed: np.ndarray
    fixed_masked: np.ndarray
    random: np.ndarray
    random_masked: np.ndarray
    suffix_masked: np.ndarray
    repeated: np.ndarray
    left: np.ndarray
    right: np.ndarray
    unmasked: np.ndarray


@torch.no_grad()
def measure(subject: Subject) -> Contract:
    """Take the measurements.

    Raises:
        NotMeasurable: a constant operator, a chunked Gram, no prompts, no room for a suffix, a non-finite operator.
    """
    require_learned(subject)
    model = subject.model
    assert model is not None
    if model.config.max_position_embeddings - max(map(len, subject.prompts)) < SUFFIX:
        raise NotMeasurable(f"the longest prompt leaves no room for {SUFFIX} more tokens in the context")
    generator = torch.Generator().manual_seed(subject.seed)
    pad = model.config.pad_token_id or 0

    def logits(ids: Tensor, mask: Tensor | None = None) -> Tensor:
        known = None if mask is None else mask.to(model.device)
        out = model(ids.unsqueeze(0).to(model.device), attention_mask=known, use_cache=False).logits[0]
        return out.double().cpu()

    def drawn() -> Tensor:
        return torch.randint(model.config.vocab_size, (SUFFIX,), generator=generator)

    rows = []
    try:
        for prompt in subject.prompts:
            rows.append(_changes(prompt, pad, model.config.vocab_size, logits, drawn))
    except FloatingPointError as error:
        raise NotMeasurable(str(error)) from error
    return Contract(*(np.array(values) for values in zip(*rows, strict=True)))


def _changes(
    prompt: Tensor, pad: int, vocabulary: int, logits: Callable[..., Tensor], drawn: Callable[[], Tensor]
) -> tuple[float | list[float], ...]:
    """The fields of Contract for one prompt, in their order."""
    length = len(prompt)
    ones, alone = torch.ones(1, length + SUFFIX, dtype=torch.long), logits(prompt)
    hidden = ones.clone()
    hidden[:, length:] = 0

    def history(suffix: Tensor, mask: Tensor | None = None) -> Tensor:
        return logits(torch.cat([prompt, suffix]), mask)[:length]

    def change(one: Tensor, two: Tensor, mask: Tensor | None = None) -> float:
        return _apart(history(one, mask), history(two, mask))

    first = prompt[torch.arange(SUFFIX) % length]
    other = (first + 1) % vocabulary  # another token in every place, whatever the prompt
    pairs = [(drawn(), drawn()) for _ in range(TRIALS)]
    padding = torch.full((SUFFIX,), pad)
    return (
        change(first, other),
        change(first, other, ones),
        [change(*pair) for pair in pairs],
        [change(*pair, ones) for pair in pairs],
        _apart(history(drawn(), hidden), alone),
        _apart(logits(prompt), alone),
        _apart(logits(torch.cat([padding, prompt]), hidden.flip(-1))[-1], alone[-1]),
        _apart(history(padding, hidden)[-1], alone[-1]),
        _apart(history(padding)[-1], alone[-1]),
    )


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def quantities(raw: Contract) -> list[Quantity]:
    """Largest changes, and whether a repeated call gives the same bits."""
    trials = f"prompt and {raw.random.shape[1]} seeded pairs of suffixes"

    def change(what: str, values: np.ndarray, over: str = "prompt", reference: str | None = None) -> Quantity:
        known = None if reference is None else published("online_contract", reference)
        return Quantity(
            f"change of a logit {what}", spread(values), f"{over}, largest over rows and vocabulary", published=known
        )

    return [
        change("under a fixed change of suffix", raw.fixed),
        change("under a fixed change of suffix, with a mask of ones", raw.fixed_masked),
        change("under a seeded change of suffix", raw.random, trials, "SOC-110M-5_suffix_change_max_logit"),
        change("under a seeded change of suffix, with a mask of ones", raw.random_masked, trials),
        change("under a suffix that the mask calls padding", raw.suffix_masked),
        Quantity("repeated calls with the same bits", int((raw.repeated == 0).sum()), f"of {len(raw.repeated)}"),
        change("of the last row by padding on the left, with its mask", raw.left),
        change("of the last row by padding on the right, with its mask", raw.right),
        change("of the last row by padding without a mask (published setting)", raw.unmasked),
    ]


SECTION = Section("J", "Online contract", "model", Contract, measure, quantities)
