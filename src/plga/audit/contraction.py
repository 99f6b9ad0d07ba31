"""Section E: contraction of the row map φ, which makes the generator of the normalized density operator, A = φ(LN(D)).

φ is the whole composition of the residual units of the learner, from a row of LN(D) to the row of A
(arXiv:2608.10288); the LayerNorm that makes LN(D) is no part of it. It is evaluated on float64 copies of the units, at
rows as they are visited: LN(D) of the density operators that the prompts give. Of each layer and prompt at most
``ROWS`` rows are taken, without replacement and seeded, from all heads together: the Jacobian of a row costs as much as
d passes.

A Jacobian tells of φ near its row; the ratios ‖φ(x) - φ(y)‖ / ‖x - y‖ tell of it between rows, and neither bounds the
other. Singular values of the units alone are a diagnostic: their product only bounds that of the composition. What a
LayerNorm cancels leaves its rounding: a singular value of the composition below 1e-16 of that product is rounding.
"""

import copy
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import learned_visits
from plga.model.operator import MetricLearner

ROWS = 64
"""Rows of LN(D) that are taken of each layer and prompt."""

CHUNK = 32
"""Rows whose Jacobians are taken at once: it bounds the memory."""

ROUNDINGS = 64
"""Rows of LN(D) nearer than this many roundings, of the dtype of D and relative to the longer row, are one row."""


@dataclass(frozen=True)
class Contraction:
    """Of N prompts, U units and R = min(ROWS, H · d) rows; a pair is apart by Euclidean distances.

    Attributes:
        available: rows of LN(D) that there are in a layer and prompt, H · d, [].
        rows: which of them were taken, head · d + row, [N, L, R].
        singular: singular values of the Jacobian of φ, descending, [N, L, R, d].
        unit_largest: largest singular value of the Jacobian of each unit, at what the unit meets there, [N, L, U, R].
        within_input, within_output: ‖x - y‖ and ‖φ(x) - φ(y)‖ of each pair of rows of one prompt, [L, N · R(R-1)/2].
        within_rounding: distance at or below which x and y are one row up to rounding, as within_input.
        across_input, across_output, across_rounding: the same of rows at one place of the samples of two prompts,
            [L, N(N-1)/2 · R]; empty where there is one prompt.
    """

    available: np.ndarray
    rows: np.ndarray
    singular: np.ndarray
    unit_largest: np.ndarray
    within_input: np.ndarray
    within_output: np.ndarray
    within_rounding: np.ndarray
    across_input: np.ndarray
    across_output: np.ndarray
    across_rounding: np.ndarray


class _Pairs(NamedTuple):
    """Of pairs of rows, each [n]: how far apart they are before and after φ, and the rounding of the first."""

    before: Tensor
    after: Tensor
    rounding: Tensor


def measure(subject: Subject) -> Contraction:
    """Take the measurements.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram, no prompts, or a non-finite deductive output.
    """
    densities = torch.stack([visit.density for visit in learned_visits(subject)])  # [N, L, H, d, d]
    rounding = ROUNDINGS * torch.finfo(densities.dtype).eps
    available = densities.shape[2] * densities.shape[3]
    generator = torch.Generator().manual_seed(subject.seed)
    taken = torch.stack(
        [
            torch.stack([torch.randperm(available, generator=generator)[:ROWS] for _ in subject.layers])
            for _ in subject.prompts
        ]
    )
    singular, unit_largest, within, across = [], [], [], []
    for number, learner in enumerate(_learners(subject)):
        x = learner.input_norm(densities[:, number].double()).flatten(1, 2)  # [N, H · d, d]
        x = x.take_along_dim(taken[:, number, :, None], dim=1)
        of_composition, of_units, y = _singular_values(learner.units, x)
        singular.append(of_composition)
        unit_largest.append(of_units)
        within.append(_within(x, y, rounding))
        across.append(_across(x, y, rounding))
    inside = _Pairs(*(torch.stack(tensors) for tensors in zip(*within, strict=True)))
    between = _Pairs(*(torch.stack(tensors) for tensors in zip(*across, strict=True)))
    return Contraction(
        available=np.array(available),
        rows=taken.numpy(),
        singular=torch.stack(singular, dim=1).numpy(),
        unit_largest=torch.stack(unit_largest, dim=1).numpy(),
        within_input=inside.before.numpy(),
        within_output=inside.after.numpy(),
        within_rounding=inside.rounding.numpy(),
        across_input=between.before.numpy(),
        across_output=between.after.numpy(),
        across_rounding=between.rounding.numpy(),
    )


def _learners(subject: Subject) -> list[MetricLearner]:
    """Float64 copies of the learners, whose parameters take no gradient."""
    return [copy.deepcopy(operator.learner).double().requires_grad_(False) for operator in subject.learned]


def _singular_values(units: nn.ModuleList, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows [N, R, d]: all of φ, [N, R, d]; the largest of each unit, [N, U, R]; and φ of the rows, [N, R, d]."""
    sample = x.shape[:2]
    rows = x.flatten(0, 1)
    of_composition = _of_jacobians(nn.Sequential(*units), rows).unflatten(0, sample)
    of_units = []
    for unit in units:
        of_units.append(_of_jacobians(unit, rows)[:, 0].unflatten(0, sample))
        rows = unit(rows)
    return of_composition, torch.stack(of_units, dim=1), rows.unflatten(0, sample)


def _of_jacobians(function: nn.Module, rows: Tensor) -> Tensor:
    """Singular values of the Jacobian of a function at each of some rows, [n, d], descending: [n, d]."""
    # In reverse mode: it takes a small part of the time that torch's forward mode takes of the same unit.
    jacobians = torch.func.vmap(torch.func.jacrev(function))
    return torch.cat([torch.linalg.svdvals(jacobians(chunk)) for chunk in rows.split(CHUNK)])


def _within(x: Tensor, y: Tensor, rounding: float) -> _Pairs:
    """Every two rows of the sample of one prompt; x and y = φ(x), [N, R, d]."""
    first, second = torch.triu_indices(x.shape[1], x.shape[1], offset=1)
    return _apart(x[:, first], x[:, second], y[:, first], y[:, second], rounding)


def _across(x: Tensor, y: Tensor, rounding: float) -> _Pairs:
    """Rows at one place of the samples of every two prompts: the samples are in random order, so these are random."""
    numbers = torch.tensor(list(combinations(range(len(x)), 2)), dtype=torch.long).reshape(-1, 2)
    first, second = numbers.unbind(dim=1)
    return _apart(x[first], x[second], y[first], y[second], rounding)


def _apart(x0: Tensor, x1: Tensor, y0: Tensor, y1: Tensor, rounding: float) -> _Pairs:
    level = rounding * torch.maximum(x0.norm(dim=-1), x1.norm(dim=-1))
    return _Pairs((x0 - x1).norm(dim=-1).flatten(), (y0 - y1).norm(dim=-1).flatten(), level.flatten())


def quantities(raw: Contraction) -> list[Quantity]:
    """Singular values of the composition and of the units, and the ratios of the pairs that are retained."""
    largest = raw.singular[..., 0]
    taken = f"{raw.rows.shape[-1]} of the {int(raw.available)} rows of LN(D) of each layer and prompt, seeded"
    found = [
        Quantity("rows of LN(D) with a Jacobian", largest.size, taken),
        Quantity(
            "largest singular value of the Jacobian of φ",
            spread(largest),
            taken,
            formula="σ₁(∂φ/∂x) at x, a row of LN(D); φ the composition of all units",
            published=published("row_map", "composite_largest_singular_value"),
        ),
        Quantity(
            "largest singular value of the Jacobian of φ, largest of each layer",
            spread(largest.max(axis=(0, 2))),
            f"layer, each the largest over {taken}",
        ),
        Quantity("rows where φ does not contract", int((largest >= 1).sum()), f"of {largest.size}", formula="σ₁ >= 1"),
        Quantity("second singular value of the Jacobian of φ", spread(raw.singular[..., 1]), taken),
        Quantity(
            "diagnostic: largest singular value of the Jacobian of one unit",
            spread(raw.unit_largest),
            f"unit, at what it meets for {taken}",
            published=published("row_map", "per_unit_largest_singular_value"),
        ),
        Quantity(
            "diagnostic: product of the largest singular values of the units",
            spread(raw.unit_largest.prod(axis=2)),
            taken,
            kind="bound",
            formula="σ₁(∂φ/∂x) <= Π_u σ₁(∂unit_u/∂x_u), by the chain rule",
            claim="theorem",
        ),
    ]
    found += _of_pairs(
        "within a prompt",
        "pair of sampled rows of one layer and prompt",
        _kept(raw.within_input, raw.within_output, raw.within_rounding),
        raw.within_input.size,
        "pairwise_ratio_within_prompt",
    )
    reason = ", not measurable: there is one prompt only" if len(raw.rows) == 1 else ""
    return found + _of_pairs(
        "across prompts",
        f"pair of sampled rows of one layer and two prompts{reason}",
        _kept(raw.across_input, raw.across_output, raw.across_rounding),
        raw.across_input.size,
        "pairwise_ratio_across_prompts",
    )


def _kept(before: np.ndarray, after: np.ndarray, rounding: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances of the pairs that rounding does not make, before and after φ."""
    retained = before > rounding
    return before[retained], after[retained]


def _of_pairs(
    where: str, what: str, distances: tuple[np.ndarray, np.ndarray], attempted: int, key: str
) -> list[Quantity]:
    before, after = distances
    formula = "‖φ(x) - φ(y)‖ / ‖x - y‖"
    over = f"{what}, {before.size} retained"
    return [
        Quantity(
            f"retained pairs {where}",
            before.size,
            f"of {attempted} attempted, {what}",
            formula=f"‖x - y‖ > {ROUNDINGS} roundings of max(‖x‖, ‖y‖)",
        ),
        Quantity(f"retained pairs {where} with one image", int((after == 0).sum()), over, formula="φ(x) = φ(y)"),
        ratios.each(
            f"pairwise contraction ratio {where}",
            after,
            before,
            over,
            formula=formula,
            published=published("row_map", key),
        ),
        ratios.together(
            f"pooled pairwise contraction ratio {where}",
            after,
            before,
            f"pooled over {before.size} retained pairs",
            formula="√(Σ ‖φ(x) - φ(y)‖² / Σ ‖x - y‖²)",
        ),
    ]


SECTION = Section("E", "Contraction of the row map", "model", Contraction, measure, quantities)
