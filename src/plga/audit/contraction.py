"""Section E: how far the row map φ contracts, φ being all residual units of the metric learner, one after the other.

A = φ(LN(D)), row by row (arXiv:2608.10288), so the Jacobian is taken with respect to a row of LN(D). That of the whole
composition is the product of those of its units, each at the row that reaches it (chain rule); their own singular
values are shown as a diagnostic: the product of them bounds that of the composition, loosely. All in float64. Of the rows
that the prompts visit a seeded sample is taken, so the largest value is that of the sample.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import learned_visits
from plga.model.operator import LearnedOperator, MetricLearner

ROWS = 64  # of a layer and prompt, at most
_CHUNK = 32  # rows whose Jacobians are computed together
_SAME = 1e-12  # relative distance below which two rows are one but for rounding


@dataclass(frozen=True)
class Contraction:
    """Of N prompts and R sampled rows of each layer.

    Attributes:
        visited: rows that a layer and prompt visits, [1].
        singular: singular values of the Jacobian of φ, [N, L, R, d].
        units: largest singular value of the Jacobian of each of U units, [N, L, R, U].
        within_before, within_after: ‖x - y‖ and ‖φ(x) - φ(y)‖ of R pairs of rows of one prompt, [N, L, R].
        across_before, across_after: the same of rows of one prompt and of the next, [N - 1, L, R].
        within_scale, across_scale: (‖x‖ + ‖y‖) / 2 of these pairs.
    """

    visited: np.ndarray
    singular: np.ndarray
    units: np.ndarray
    within_before: np.ndarray
    within_after: np.ndarray
    within_scale: np.ndarray
    across_before: np.ndarray
    across_after: np.ndarray
    across_scale: np.ndarray


def measure(subject: Subject) -> Contraction:
    """Take the measurements.

    Raises:
        NotMeasurable: as learned_visits.
    """
    visits = list(learned_visits(subject))
    generator = torch.Generator().manual_seed(subject.seed)
    rows: list[list[Tensor]] = [[] for _ in visits]  # [N][L] of [R, d], sampled
    images: list[list[Tensor]] = [[] for _ in visits]
    singular: list[list[Tensor]] = [[] for _ in visits]
    units: list[list[Tensor]] = [[] for _ in visits]
    count = 0
    for layer, learner in enumerate(_learners(subject)):
        for number, visit in enumerate(visits):
            with torch.no_grad():
                visited = learner.input_norm(visit.density[layer].double()).flatten(0, -2).cpu()
            count = len(visited)
            sample = visited[torch.randperm(count, generator=generator)[:ROWS]]
            image, of_phi, of_units = jacobians(learner, sample)
            rows[number].append(sample)
            images[number].append(image)
            singular[number].append(torch.linalg.svdvals(of_phi))
            units[number].append(of_units)
    x, y = (torch.stack([torch.stack(layers) for layers in found]) for found in (rows, images))
    within, across = (x, x.roll(1, dims=2), y, y.roll(1, dims=2)), (x[1:], x[:-1], y[1:], y[:-1])
    pairs = [
        [a.sub(b).norm(dim=-1), c.sub(d).norm(dim=-1), (a.norm(dim=-1) + b.norm(dim=-1)) / 2]
        for a, b, c, d in (within, across)
    ]
    arrays = [tensor.numpy() for pair in pairs for tensor in pair]
    stacked = [torch.stack([torch.stack(layers) for layers in found]).numpy() for found in (singular, units)]
    return Contraction(np.array([count]), *stacked, *arrays)


def _learners(subject: Subject) -> list[MetricLearner]:
    """Copies in float64 on the CPU."""
    operators = (layer.self_attn.operator for layer in subject.layers)
    return [copy.deepcopy(o.learner).double().cpu() for o in operators if isinstance(o, LearnedOperator)]


def jacobians(learner: MetricLearner, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """φ and its Jacobian at rows, and the largest singular value of the Jacobian of each unit where the row reaches it.

    Args:
        learner: in the dtype of ``rows``.
        rows: [R, d].

    Returns:
        [R, d], [R, d, d] and [R, U].
    """
    images, products, largest = [], [], []
    for part in rows.detach().split(_CHUNK):
        product = torch.eye(part.shape[-1], dtype=part.dtype).expand(len(part), -1, -1)
        of_units = []
        for unit in learner.units:
            jacobian = vmap(jacrev(unit))(part).detach()
            of_units.append(torch.linalg.matrix_norm(jacobian, ord=2))
            product = jacobian @ product
            part = unit(part).detach()
        images.append(part)
        products.append(product)
        largest.append(torch.stack(of_units, dim=-1))
    return torch.cat(images), torch.cat(products), torch.cat(largest)


def quantities(raw: Contraction) -> list[Quantity]:
    """Largest singular values of φ and of its units, and contraction ratios of pairs, retained pairs counted."""
    prompts, layers, sampled = raw.singular.shape[:3]
    rows = f"{sampled} of {int(raw.visited[0])} rows of every layer and prompt"
    found = [
        Quantity(
            "largest singular value of the Jacobian of φ",
            spread(raw.singular[..., 0]),
            rows,
            published=published("row_map", "composite_largest_singular_value"),
        ),
        Quantity(
            "rows where the Jacobian of φ contracts",
            int((raw.singular[..., 0] < 1).sum()),
            f"of {prompts * layers * sampled}: {rows}",
        ),
        Quantity(
            "largest singular value of the Jacobian of a unit",
            spread(raw.units),
            f"unit, {rows}; a diagnostic",
            published=published("row_map", "per_unit_largest_singular_value"),
        ),
    ]
    for where, key, before, after, scale in (
        ("within a prompt", "pairwise_ratio_within_prompt", raw.within_before, raw.within_after, raw.within_scale),
        ("across prompts", "pairwise_ratio_across_prompts", raw.across_before, raw.across_after, raw.across_scale),
    ):
        kept = before > _SAME * scale
        total = int(kept.sum())
        over = f"{total} retained pairs of {kept.size}, distance above {_SAME:g} of the norms"
        found.append(Quantity(f"pairs retained {where}", total, f"of {kept.size}"))
        if total:
            found.append(
                ratios.each(
                    f"contraction ratio {where}",
                    after[kept],
                    before[kept],
                    over,
                    formula="‖φ(x) - φ(y)‖ / ‖x - y‖",
                    published=published("row_map", key),
                )
            )
            found.append(
                ratios.together(
                    f"pooled contraction ratio {where}",
                    after[kept],
                    before[kept],
                    f"pooled over {total} retained pairs",
                    formula="√(Σ ‖φ(x) - φ(y)‖² / Σ ‖x - y‖²)",
                )
            )
    return found


SECTION = Section("E", "Row-map contraction", "model", Contraction, measure, quantities)
