"""Section E2: how D / S concentrates about its data-set mean as the number S of tokens grows.

D_S is the density operator of the first S rotated queries of a prompt, in the pass over the whole of it. The data-set
mean of D_S / S is that over the prompts at equal S; the spread is the spectral norm of the difference, relative to that
of the mean. A prompt is part of the mean that it is compared with.

Beside it stands the matrix-Bernstein bound (J. Tropp, An Introduction to Matrix Concentration Inequalities,
arXiv:1501.01571, Thm. 6.1.1): were the S matrices q qᵀ independent with mean M, ‖q‖² <= B, then

    E ‖D / S - M‖ <= √(2 v log(2d) / S) + B log(2d) / (3 S),   v = ‖E[(q qᵀ)²] - M²‖,

as ‖q qᵀ - M‖ <= B for positive semidefinite matrices. Queries of a text are not independent: the bound is what
independence would give, not one that text must keep. M, v and B are those of the rows at S, of all prompts together.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plga.audit import ratios
from plga.audit.section import NotMeasurable, Quantity, Section
from plga.audit.subject import Subject
from plga.audit.visits import learned_visits

_INSTANCES = "layer, head and prompt"
_SPREAD = "‖D / S - M‖₂ / ‖M‖₂, M the mean of D / S over prompts at this S"
_BOUND = "(√(2 v log(2d) / S) + B log(2d) / (3 S)) / ‖M‖₂, v = ‖E[(q qᵀ)²] - M²‖₂, B = max ‖q‖²"


@dataclass(frozen=True)
class Concentration:
    """Of N prompts and K prefix lengths.

    Attributes:
        width: d, [].
        lengths: S, the powers of two up to the shortest prompt, [K].
        different: how many of the prompts' first S tokens differ from each other, [K].
        apart: ‖D / S - M‖₂, [K, N, L, H].
        size: ‖M‖₂, [K, L, H].
        largest: B, the largest ‖q‖² of the first S rows of all prompts, [K, L, H].
        variance: v of these rows, [K, L, H].
    """

    width: np.ndarray
    lengths: np.ndarray
    different: np.ndarray
    apart: np.ndarray
    size: np.ndarray
    largest: np.ndarray
    variance: np.ndarray


def measure(subject: Subject) -> Concentration:
    """Take the measurements, in float64 on the rotated queries as the model computed them.

    Raises:
        NotMeasurable: one prompt only, or prompts that all begin with the same tokens as far as they are compared; a
            constant operator or a chunked Gram, no prompts, or a non-finite deductive output.
    """
    queries = [visit.rotated for visit in learned_visits(subject)]
    if len(queries) < 2:
        raise NotMeasurable("there is one prompt only, so there is no mean over prompts to be apart from")
    shortest = min(q.shape[-2] for q in queries)
    lengths = [2**power for power in range(shortest.bit_length())]
    different = [len({tuple(prompt[:length].tolist()) for prompt in subject.prompts}) for length in lengths]
    if different[-1] < 2:
        raise NotMeasurable(f"all prompts begin with the same {lengths[-1]} tokens, so their D / S are one there")
    rows = [_at([q[..., :length, :] for q in queries]) for length in lengths]
    apart, size, largest, variance = (torch.stack(tensors).numpy() for tensors in zip(*rows, strict=True))
    return Concentration(
        width=np.array(queries[0].shape[-1]),
        lengths=np.array(lengths),
        different=np.array(different),
        apart=apart,
        size=size,
        largest=largest,
        variance=variance,
    )


def _at(prefixes: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the first S rows of every prompt, each [L, H, S, d]: ‖D / S - M‖, [N, L, H], ‖M‖, B and v, each [L, H]."""
    moments, fourth_moments, largest = [], [], []
    for prefix in prefixes:  # one prompt at a time: in float64, all rows together would take more memory than a model
        q = prefix.double()
        square_norms = q.square().sum(dim=-1, keepdim=True)
        moments.append(q.mT @ q / q.shape[-2])
        fourth_moments.append(q.mT @ (square_norms * q) / q.shape[-2])  # (q qᵀ)² = ‖q‖² q qᵀ
        largest.append(square_norms.amax(dim=(-2, -1)))
    means = torch.stack(moments)
    mean = means.mean(dim=0)
    return (
        _spectral_norm(means - mean),
        _spectral_norm(mean),
        torch.stack(largest).amax(dim=0),
        _spectral_norm(torch.stack(fourth_moments).mean(dim=0) - mean @ mean),
    )


def _spectral_norm(symmetric: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(symmetric).abs().amax(dim=-1)


def quantities(raw: Concentration) -> list[Quantity]:
    """Spread and bound at each S, how the spread goes with S, and where it is above the bound."""
    bound = bernstein(raw)
    longest = int(raw.lengths[-1])
    size = np.broadcast_to(raw.size[:, None], raw.apart.shape)
    above = raw.apart.mean(axis=1) > bound
    found = [
        ratios.each(
            "relative spread of D / S at the longest prefix",
            raw.apart[-1],
            size[-1],
            f"{_INSTANCES}{_prefixes(raw, -1)}, S = {longest}",
            formula=_SPREAD,
        ),
        _of_bound("matrix-Bernstein bound of the expected relative spread at the longest prefix", raw, bound, -1),
        Quantity(
            "mean spread above the matrix-Bernstein bound at the longest prefix",
            int(above[-1].sum()),
            f"of {above[-1].size}, layer and head, the mean over {raw.apart.shape[1]} prompts, S = {longest}",
            formula="mean over prompts of ‖D / S - M‖₂ > the bound",
            claim="conditional theorem",
        ),
        _exponent(raw),
    ]
    for index, length in enumerate(raw.lengths.tolist()):
        found += [
            ratios.each(
                f"relative spread of D / S at S = {length}",
                raw.apart[index],
                size[index],
                f"{_INSTANCES}{_prefixes(raw, index)}",
                formula=_SPREAD,
            ),
            ratios.together(
                f"pooled relative spread of D / S at S = {length}",
                raw.apart[index],
                size[index],
                f"pooled over {_INSTANCES}{_prefixes(raw, index)}",
                formula="√(Σ ‖D / S - M‖₂² / Σ ‖M‖₂²)",
            ),
            _of_bound(f"matrix-Bernstein bound of the expected relative spread at S = {length}", raw, bound, index),
        ]
    return found


def _prefixes(raw: Concentration, index: int) -> str:
    """What is to be said where some prompts begin with the same S tokens, and so show nothing of their spread."""
    different, prompts = int(raw.different[index]), raw.apart.shape[1]
    return "" if different == prompts else f" ({different} different prefixes of {prompts} prompts)"


def bernstein(raw: Concentration) -> np.ndarray:
    """Of E ‖D / S - M‖₂, not relative, [K, L, H]."""
    log = math.log(2 * int(raw.width))
    tokens = raw.lengths[:, None, None]
    return np.sqrt(2 * raw.variance * log / tokens) + raw.largest * log / (3 * tokens)


def _of_bound(name: str, raw: Concentration, bound: np.ndarray, index: int) -> Quantity:
    return ratios.each(
        name,
        bound[index],
        raw.size[index],
        f"layer and head, S = {int(raw.lengths[index])}, if the rows were independent",
        kind="bound",
        formula=_BOUND,
        claim="conditional theorem",
    )


def _exponent(raw: Concentration) -> Quantity:
    """Slope of log spread over log S; only where every prefix has a spread."""
    size = np.where(raw.size > 0, raw.size, 1.0)
    relative = raw.apart.mean(axis=1) / size
    exists = (relative > 0).all(axis=0)
    missing = int(exists.size - exists.sum())
    value = None
    if exists.any():
        slopes = np.polyfit(np.log(raw.lengths), np.log(relative[:, exists]), 1)[0]
        value = [float(slopes.min()), float(np.median(slopes)), float(slopes.max())]
    return Quantity(
        "exponent of the relative spread in S",
        value,
        f"layer and head, S = {raw.lengths[0]} to {raw.lengths[-1]}"
        + (f", without {missing} of {exists.size} with spread 0" if missing else ""),
        formula="slope of log(mean over prompts of ‖D / S - M‖₂ / ‖M‖₂) over log S; -1/2 if the rows were independent",
    )


SECTION = Section("E2", "Concentration of D / S", "model", Concentration, measure, quantities)
