"""Log-probabilities of candidates under the block and the sequential protocol (arXiv:2608.10288).

Block: one pass over a whole item, every row read. With a learned operator each row then sees a G_LM built from later
tokens too, its target among them (target exposure). Sequential: each token is read off the last row of a call on
exactly what comes before it, which is how the model generates (online contract). Where rows do not change when tokens
are added (constant operator, chunked Gram) both are one (theorem), and one pass gives either.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from plga.model.cache import PldrCache
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.scoring.items import Item, Row, fit

# Prefixes share a padded batch up to this difference in length: 8 tokens, or an eighth of the longest.
_LEAST, _SHARE = 8, 8


class Scores(NamedTuple):
    """Scores of one item with M candidate tokens, on the CPU.

    Attributes:
        logprobs: of each candidate token, nats, [M], float32 or wider.
        greedy: whether it is the likeliest, [M].
        truncated: how many tokens of the context did not fit.
    """

    logprobs: Tensor
    greedy: Tensor
    truncated: int


def causal(config: PldrConfig) -> bool:
    """Whether no row changes when tokens are added, so that both protocols give the same scores (theorem)."""
    return config.operator == "constant" or config.gram == "chunked"


@torch.no_grad()
def block_logprobs(model: PldrForCausalLM, items: Sequence[Item], batch: int = 16) -> list[Scores]:
    """Scores of every item in one pass over its context and candidate.

    Padding on the right never enters the Gram. With a constant operator, items of one context share its keys and
    values.

    Args:
        model: run as it is, so in evaluation mode to be a function of the items.
        batch: rows a pass, >= 1.

    Raises:
        ValueError: an item that cannot be scored, named (:func:`plga.scoring.items.fit`), or a batch below 1.
        FloatingPointError: a score that is not finite.
    """
    rows = _rows(model, items, batch)
    alone = list(range(len(rows)))
    found: dict[int, Scores] = {}
    if model.config.operator == "constant":
        for places in _by_context(rows):
            if len(places) > 1:
                found |= _after_context(model, rows, places, batch)
        alone = [place for place in alone if place not in found]
    for portion in _portions(sorted(alone, key=lambda place: -len(rows[place].ids)), batch):
        found |= _whole(model, rows, portion)
    return _finite(items, [found[place] for place in range(len(rows))])


@torch.no_grad()
def sequential_logprobs(model: PldrForCausalLM, items: Sequence[Item], batch: int = 16) -> list[Scores]:
    """Scores of every item, each token read off the last row of a call on its prefix.

    Equal prefixes are read once. Others of about the same length share a batch, padded on the left, which never enters
    the Gram: up to rounding each is a single call. Where the protocols are one (:func:`causal`), this is
    :func:`block_logprobs`.

    Args:
        model: run as it is, so in evaluation mode to be a function of the items.
        batch: rows a pass, >= 1.

    Raises:
        ValueError, FloatingPointError: as :func:`block_logprobs`.
    """
    if causal(model.config):
        return block_logprobs(model, items, batch)
    rows = _rows(model, items, batch)
    asked = _prefixes(rows)
    logprobs = [torch.empty(len(row.ids) - row.first, dtype=_wide(model.dtype)) for row in rows]
    greedy = [torch.empty(len(row.ids) - row.first, dtype=torch.bool) for row in rows]
    for portion in _equal_cost(asked, batch):
        logits = _last_rows(model, [rows[prefix.targets[0]].ids[: prefix.length] for prefix in portion])
        for prefix, line in zip(portion, logits, strict=True):
            for place in prefix.targets:
                row = rows[place]
                score, likeliest = _score(line[None], row.ids[prefix.length : prefix.length + 1])
                logprobs[place][prefix.length - row.first] = score[0]
                greedy[place][prefix.length - row.first] = likeliest[0]
    found = [
        Scores(*scores, row.truncated) for scores, row in zip(zip(logprobs, greedy, strict=True), rows, strict=True)
    ]
    return _finite(items, found)


def _rows(model: PldrForCausalLM, items: Sequence[Item], batch: int) -> list[Row]:
    if batch < 1:
        raise ValueError(f"batch is {batch}, expected >= 1 rows a pass")
    return fit(items, model.config)


def _finite(items: Sequence[Item], found: list[Scores]) -> list[Scores]:
    for item, scores in zip(items, found, strict=True):
        finite = scores.logprobs.isfinite()
        if not bool(finite.all()):
            token = int(finite.int().argmin())
            raise FloatingPointError(
                f"{item.name}: token {token} of the candidate has the score {float(scores.logprobs[token])}, expected "
                "a finite one; a weight or an activation of the model is not finite"
            )
    return found


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _score(logits: Tensor, targets: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``targets`` [M] in ``logits`` [M, V], and whether each is the likeliest."""
    wanted = torch.tensor(targets, device=logits.device)
    scores = -nn.functional.cross_entropy(logits.to(_wide(logits.dtype)), wanted, reduction="none")
    return scores.cpu(), (logits.argmax(dim=-1) == wanted).cpu()


# Block ----------------------------------------------------------------------------------------------------------------


def _portions(places: list[int], batch: int) -> Iterator[list[int]]:
    for start in range(0, len(places), batch):
        yield places[start : start + batch]


def _padded(sequences: Sequence[Sequence[int]], left: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and mask, [B, S] each."""
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        start = longest - len(sequence) if left else 0
        ids[row, start : start + len(sequence)] = torch.tensor(sequence)
        mask[row, start : start + len(sequence)] = 1
    return ids.to(device), mask.to(device)


def _whole(model: PldrForCausalLM, rows: Sequence[Row], places: Sequence[int]) -> dict[int, Scores]:
    """Scores of the rows at ``places``, in one pass."""
    ids, mask = _padded([rows[place].ids[:-1] for place in places], left=False, device=model.device)
    start = min(rows[place].first for place in places) - 1
    # A constant operator reads no later token, so what stands behind a row changes nothing and needs no mask.
    needed = mask if model.config.operator == "learned" and not bool(mask.all()) else None
    logits = model(ids, attention_mask=needed, use_cache=False, logits_to_keep=ids.shape[1] - start).logits
    found = {}
    for line, place in zip(logits, places, strict=True):
        row = rows[place]
        targets = row.ids[row.first :]
        begin = row.first - 1 - start
        found[place] = Scores(*_score(line[begin : begin + len(targets)], targets), row.truncated)
    return found


def _by_context(rows: Sequence[Row]) -> list[list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault(row.ids[: row.first], []).append(place)
    return list(found.values())


def _after_context(model: PldrForCausalLM, rows: Sequence[Row], places: Sequence[int], batch: int) -> dict[int, Scores]:
    """Scores of the rows at ``places``, which share a context, over the keys and values of that context."""
    context = rows[places[0]].ids[: rows[places[0]].first]
    kept = PldrCache(model.config, "constant")
    ids = torch.tensor([context], device=model.device)
    first = model(ids, cache=kept, use_cache=True, logits_to_keep=1).logits[0]
    found = {}
    for portion in _portions(sorted(places, key=lambda place: -len(rows[place].ids)), batch):
        candidates = [rows[place].ids[len(context) :] for place in portion]
        later: Sequence[Tensor] = [first[:0]] * len(portion)
        if len(candidates[0]) > 1:
            cache = copy.deepcopy(kept)
            cache.batch_repeat_interleave(len(portion))
            ids, _ = _padded([candidate[:-1] or (0,) for candidate in candidates], left=False, device=model.device)
            later = list(model(ids, cache=cache, use_cache=True).logits)
        for place, candidate, logits in zip(portion, candidates, later, strict=True):
            lines = torch.cat([first, logits[: len(candidate) - 1]])
            found[place] = Scores(*_score(lines, candidate), rows[place].truncated)
    return found


# Sequential -----------------------------------------------------------------------------------------------------------


class _Prefix(NamedTuple):
    """A prefix of ``length`` tokens that the rows at ``targets`` share, and whose next token each of them asks for."""

    length: int
    targets: list[int]


def _prefixes(rows: Sequence[Row]) -> list[_Prefix]:
    """Every prefix of which a next token is asked for, once; the longest first."""
    nodes: dict[tuple[int, int], int] = {}  # a prefix by the one without its last token, and that token
    found: dict[int, _Prefix] = {}
    for place, row in enumerate(rows):
        node = 0
        for length, token in enumerate(row.ids[:-1], start=1):
            node = nodes.setdefault((node, token), len(nodes) + 1)
            if length >= row.first:
                found.setdefault(node, _Prefix(length, [])).targets.append(place)
    return sorted(found.values(), key=lambda prefix: -prefix.length)


def _equal_cost(prefixes: Sequence[_Prefix], batch: int) -> Iterator[list[_Prefix]]:
    """Portions of at most ``batch`` prefixes of about one length."""
    portion: list[_Prefix] = []
    for prefix in prefixes:
        longest = portion[0].length if portion else prefix.length
        if len(portion) == batch or prefix.length < longest - max(_LEAST, longest // _SHARE):
            yield portion
            portion = []
        portion.append(prefix)
    if portion:
        yield portion


def _last_rows(model: PldrForCausalLM, prefixes: Sequence[Sequence[int]]) -> Tensor:
    """Logits of the next token after each prefix, [B, V]."""
    ids, mask = _padded(prefixes, left=True, device=model.device)
    needed = None if bool(mask.all()) else mask
    return model(ids, attention_mask=needed, use_cache=False, logits_to_keep=1).logits[:, -1]
