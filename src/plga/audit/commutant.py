"""Section D2: how far each G_LM is from commuting with the rotary rotations."""

from dataclasses import dataclass

import numpy as np
import torch

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import NotMeasurable, Quantity, Section
from plga.audit.subject import Subject
from plga.audit.visits import curvatures
from plga.ops.commutant import commutant_residual


@dataclass(frozen=True)
class CommutantResidual:
    """Of N operators: one a prompt, or one in all where G_LM is constant or given.

    Attributes:
        distance: ‖G - Π(G)‖_F, Π the projection onto the commutant, [N, L, H].
        norm: ‖G‖_F, [N, L, H].
    """

    distance: np.ndarray
    norm: np.ndarray


def measure(subject: Subject) -> CommutantResidual:
    """Take the measurements in float64; without a model the pairs are interleaved, as published.

    Raises:
        NotMeasurable: no operator, or a non-finite one; a chunked Gram; a learned operator without prompts; an odd
            width, which has no rotary pairs.
    """
    interleaved = subject.model is None or bool(subject.model.config.rope_interleaved)
    distance, norm = [], []
    for curvature in curvatures(subject):
        if curvature.shape[-1] % 2:
            raise NotMeasurable(f"the width of G_LM is {curvature.shape[-1]}, so its coordinates form no rotary pairs")
        norm.append(torch.linalg.matrix_norm(curvature.double()))
        distance.append(commutant_residual(curvature, interleaved) * norm[-1])
    return CommutantResidual(torch.stack(distance).numpy(), torch.stack(norm).numpy())


def quantities(raw: CommutantResidual) -> list[Quantity]:
    """The residual of each operator, and pooled."""
    over = "layer, head and prompt" if len(raw.norm) > 1 else "layer and head"
    formula = "‖G - Π(G)‖_F / ‖G‖_F"
    return [
        ratios.each(
            "commutant residual of G_LM",
            raw.distance,
            raw.norm,
            over,
            formula=formula,
            published=published("curvature_commutant_residual"),
        ),
        ratios.together(
            "pooled commutant residual of G_LM",
            raw.distance,
            raw.norm,
            f"pooled over {over}",
            formula="√(Σ ‖G - Π(G)‖_F² / Σ ‖G‖_F²)",
        ),
    ]


SECTION = Section("D2", "Commutant residual of G_LM", "operators", CommutantResidual, measure, quantities)
