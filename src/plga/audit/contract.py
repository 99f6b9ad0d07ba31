"""Section J: what a pass of this model may be relied on for: its rows, its repetition, and padding at its Gram.

G_LM is built from all tokens given, so a causal mask does not keep what comes later from the rows before it
(arXiv:2608.10288): the logits of the rows of a prompt are compared between continuations of it. Padding is put on
either side of a prompt. With its mask it enters neither the Gram nor attention, nor does it count as a position. In
the published setting there is no mask: padding on the right then enters the Gram alone, as attention is causal, and on
the left it also enters attention and moves the positions.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import NotMeasurable, Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import dtype_name, room

_ADDED = 8
_TRIALS = 2
_PLAIN, _ONES, _PADDED = _MASKS = ("without a mask", "with a mask of ones", "with masked padding on the left")
_LEFT, _RIGHT = _SIDES = ("left", "right")
_PAPER = "online_contract"
_CHANGE = "max |logit - logit with the other suffix|, over the rows of the prompt and the vocabulary"
_OTHER_CHECKPOINT = "published of SOC-110M-1"


@dataclass(frozen=True)
class Contract:
    """Of N prompts; every change is the largest of a logit.

    Attributes:
        suffixes: tokens after every prompt, [N, 2 + R, K]: two fixed suffixes, and R random ones.
        change: of the rows of the prompt, from its first suffix to each other one, [3, N, 1 + R]: without a mask, with
            a mask of ones, and with masked padding on the left.
        changed_size: largest |logit| of these rows with the first suffix, [3, N].
        repeat_equal: whether a second pass over the prompt gives the same bits, [N].
        repeat_change: from the first pass to the second, [N].
        padding_change: of the last row of the prompt, from the prompt alone to a padded batch, [2, 2, N]: padding on
            the left and on the right, with its mask and without one.
        size: largest |logit| of the last row of the prompt alone, [N].
    """

    suffixes: np.ndarray
    change: np.ndarray
    changed_size: np.ndarray
    repeat_equal: np.ndarray
    repeat_change: np.ndarray
    padding_change: np.ndarray
    size: np.ndarray


@torch.no_grad()
def measure(subject: Subject) -> Contract:
    """Take the measurements; suffixes and padding have K = 8 tokens, or what the context has room for.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram; no prompts, or one that fills the context; or a non-finite
            operator or logit.
    """
    added = room(subject, _ADDED)
    try:
        suffixes = _suffixes(subject, added)
        changes = [_changes(subject, *of_prompt) for of_prompt in zip(subject.prompts, suffixes, strict=True)]
        equal, repeat_change, alone = zip(*(_twice(subject, prompt) for prompt in subject.prompts), strict=True)
        last = torch.stack(alone)
        padded = torch.stack([_padded(subject, side, masked, added) for side in _SIDES for masked in (True, False)])
    except FloatingPointError as error:
        raise NotMeasurable(str(error)) from error
    change, changed_size = (torch.stack(tensors, dim=1).cpu().numpy() for tensors in zip(*changes, strict=True))
    return Contract(
        suffixes=suffixes.numpy(),
        change=change,
        changed_size=changed_size,
        repeat_equal=np.array(equal),
        repeat_change=np.array(repeat_change),
        padding_change=(padded - last).abs().amax(dim=-1).unflatten(0, (2, 2)).cpu().numpy(),
        size=last.abs().amax(dim=-1).cpu().numpy(),
    )


def _suffixes(subject: Subject, added: int) -> Tensor:
    """[N, 2 + R, K]. The fixed ones are the end of the vocabulary and what stands before it, for special tokens stand
    at its beginning."""
    assert subject.model is not None
    vocabulary = subject.model.config.vocab_size
    fixed = torch.arange(vocabulary - 1, vocabulary - 1 - 2 * added, -1).remainder(vocabulary).view(2, added)
    generator = torch.Generator().manual_seed(subject.seed)
    count = len(subject.prompts)
    drawn = torch.randint(vocabulary, (count, _TRIALS, added), generator=generator)
    return torch.cat((fixed.expand(count, -1, -1), drawn), dim=1)


def _changes(subject: Subject, prompt: Tensor, suffixes: Tensor) -> tuple[Tensor, Tensor]:
    """``change`` [3, 1 + R] and ``changed_size`` [3] of one prompt [S] with its suffixes [2 + R, K]."""
    changes, sizes = [], []
    for mask in _MASKS:
        # One call for each suffix, all of one shape, so that what does not depend on the suffix gives the same bits.
        # And no more than two at a time, as the logits of all rows are the largest thing here.
        first = _of_prompt_rows(subject, prompt, suffixes[0], mask)
        changes.append(
            torch.stack([(_of_prompt_rows(subject, prompt, other, mask) - first).abs().max() for other in suffixes[1:]])
        )
        sizes.append(first.abs().max())
    return torch.stack(changes), torch.stack(sizes)


def _of_prompt_rows(subject: Subject, prompt: Tensor, suffix: Tensor, mask: str) -> Tensor:
    """Logits of the rows of a prompt that a suffix follows, [S, V]."""
    text, start = torch.cat((prompt, suffix)), 0
    attention_mask = None if mask == _PLAIN else torch.ones_like(text)
    if mask == _PADDED:
        start = len(suffix)
        assert attention_mask is not None
        text = torch.cat((_padding(subject, start), text))
        attention_mask = torch.cat((torch.zeros(start, dtype=torch.long), attention_mask))
    return _logits(subject, text, attention_mask, torch.arange(start, start + len(prompt)))


def _twice(subject: Subject, prompt: Tensor) -> tuple[bool, float, Tensor]:
    """Of two passes over one prompt: whether all bits agree, the largest difference, and the last row's logits, [V]."""
    one, two = _logits(subject, prompt), _logits(subject, prompt)
    return torch.equal(one, two), float((one - two).abs().max()), one[-1]


def _padding(subject: Subject, count: int) -> Tensor:
    """[count]"""
    assert subject.model is not None
    return torch.full((count,), subject.model.config.pad_token_id or 0)


def _logits(subject: Subject, text: Tensor, attention_mask: Tensor | None = None, rows: Tensor | int = 0) -> Tensor:
    """Logits in float64 of a pass over one text [S], of some of its rows or of all, [rows, V]."""
    model = subject.model
    assert model is not None
    mask = None if attention_mask is None else attention_mask.unsqueeze(0).to(model.device)
    out = model(text.unsqueeze(0).to(model.device), attention_mask=mask, use_cache=False, logits_to_keep=rows)
    return _finite(out.logits[0])


def _padded(subject: Subject, side: str, masked: bool, added: int) -> Tensor:
    """Logits in float64 of the last row of every prompt, all in one batch with padding on one side, [N, V].

    The longest prompt gets ``added`` tokens of it, the others more.
    """
    model = subject.model
    assert model is not None
    total = max(len(prompt) for prompt in subject.prompts) + added
    rows, masks = [], []
    for prompt in subject.prompts:
        padding, real = _padding(subject, total - len(prompt)), torch.ones(len(prompt), dtype=torch.long)
        parts = ((padding, torch.zeros_like(padding)), (prompt, real))
        tokens, mask = zip(*(parts if side == _LEFT else reversed(parts)), strict=True)
        rows.append(torch.cat(tokens))
        masks.append(torch.cat(mask))
    ids, attention_mask = (torch.stack(tensors).to(model.device) for tensors in (rows, masks))
    # The last rows stand in different columns, so the head takes them alone, not every row of the batch.
    hidden = model.model(
        input_ids=ids, attention_mask=attention_mask if masked else None, use_cache=False
    ).last_hidden_state
    column = [total - 1 if side == _LEFT else len(prompt) - 1 for prompt in subject.prompts]
    return _finite(model.lm_head(hidden[torch.arange(len(column)), column]))


def _finite(logits: Tensor) -> Tensor:
    if not bool(logits.isfinite().all()):
        raise FloatingPointError(f"logits are not finite in {dtype_name(logits.dtype)}")
    return logits.double()


def quantities(raw: Contract) -> list[Quantity]:
    """The changes, absolute and relative, and how many there are."""
    found = []
    for index, mask in enumerate(_MASKS):
        for kind, of_kind in (("fixed suffixes", slice(0, 1)), ("random suffixes", slice(1, None))):
            found += _of_suffixes(
                f"{kind}, {mask}", raw.change[index, :, of_kind], raw.changed_size[index], kind[:5], mask == _PLAIN
            )
    passes = f"of {raw.repeat_equal.size} prompts"
    found += [
        Quantity("prompts whose second pass gives the same bits", int(raw.repeat_equal.sum()), passes),
        Quantity("largest logit change of a second pass", float(raw.repeat_change.max()), "maximum over the prompts"),
    ]
    for side, of_side in zip(_SIDES, raw.padding_change, strict=True):
        for setting, change in zip(("with its mask", "without a mask"), of_side, strict=True):
            found += _of_padding(f"padding on the {side}, {setting}", change, raw.size)
    return found


def _of_suffixes(what: str, change: np.ndarray, size: np.ndarray, kind: str, plain: bool) -> list[Quantity]:
    """Of change [N, trials] and size [N]."""
    pairs = f"{change.shape[0]} prompts, {change.shape[1]} pairs of suffixes each"
    over, at = f"maximum over {pairs}", None
    if plain and kind == "fixed":
        at = published(_PAPER, "SOC-110M-5_suffix_change_max_logit")
    elif plain:
        at = published(_PAPER, "SOC-110M-1_suffix_change_max_logit_16_random_trials")
        over = f"{over}; {_OTHER_CHECKPOINT}, 16 trials"
    return [
        Quantity(f"largest logit change by a suffix: {what}", float(change.max()), over, formula=_CHANGE, published=at),
        ratios.each(
            f"relative logit change by a suffix: {what}",
            change,
            np.broadcast_to(size[:, None], change.shape),
            f"prompt and pair of suffixes, {pairs}",
            formula=f"{_CHANGE}, / max |logit| over the same",
        ),
        Quantity(f"pairs that change no logit: {what}", int((change == 0).sum()), f"of {change.size} pairs"),
    ]


def _of_padding(what: str, change: np.ndarray, size: np.ndarray) -> list[Quantity]:
    """Of change [N] and size [N]."""
    formula = "max |logit of the last row in the batch - alone|, over the vocabulary"
    over, at = "maximum over the prompts", None
    if what == f"padding on the {_RIGHT}, without a mask":
        at = published(_PAPER, "padding_enters_gram_SOC-110M-1_final_row_max")
        over = f"{over}; {_OTHER_CHECKPOINT}"
    return [
        Quantity(f"largest logit change by {what}", float(change.max()), over, formula=formula, published=at),
        Quantity(f"logit change by {what}", spread(change), "prompt", formula=formula),
        ratios.each(
            f"relative logit change by {what}", change, size, "prompt", formula=f"{formula}, / max |logit alone|"
        ),
    ]


SECTION = Section("J", "Online contract", "model", Contract, measure, quantities)
