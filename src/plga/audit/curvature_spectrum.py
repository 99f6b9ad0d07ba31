"""Section B2: spectrum and norms of G_LM, of a model or of published operators without one."""

from dataclasses import dataclass

import numpy as np
import torch

from plga.audit import ratios
from plga.audit.section import NotMeasurable, Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import curvatures
from plga.ops.spectrum import RANK_TOLERANCE, singular_values


@dataclass(frozen=True)
class CurvatureSpectrum:
    """Of N operators: one a prompt, or one in all where G_LM is constant or given.

    Attributes:
        singular: singular values of G_LM in float64, descending, [N, L, H, d].
        largest_entry: of abs(G_LM), [N, L, H].
        curvature: G_LM of the first, [L, H, d, d].
    """

    singular: np.ndarray
    largest_entry: np.ndarray
    curvature: np.ndarray


def measure(subject: Subject) -> CurvatureSpectrum:
    """Take the measurements.

    Raises:
        NotMeasurable: no operator, or a non-finite one; a chunked Gram; a learned operator without prompts; width 1.
    """
    operators = [curvature.double() for curvature in curvatures(subject)]
    if operators[0].shape[-1] < 2:
        raise NotMeasurable("the width of G_LM is 1, so there is no second singular value")
    return CurvatureSpectrum(
        singular=torch.stack([singular_values(g) for g in operators]).numpy(),
        largest_entry=torch.stack([g.abs().amax((-2, -1)) for g in operators]).numpy(),
        curvature=operators[0].numpy(),
    )


def quantities(raw: CurvatureSpectrum) -> list[Quantity]:
    """Norms, s2 / s1 and numerical rank."""
    over = "layer, head and prompt" if len(raw.singular) > 1 else "layer and head"
    first, second = raw.singular[..., 0], raw.singular[..., 1]
    rank = (raw.singular > RANK_TOLERANCE * raw.singular[..., :1]).sum(axis=-1)
    norm = np.linalg.norm(raw.singular, axis=-1)
    return [
        Quantity("spectral norm of G_LM", spread(first), over, formula="s1"),
        Quantity("Frobenius norm of G_LM", spread(norm), over, formula="√(Σ s²)"),
        Quantity("largest magnitude of an entry of G_LM", spread(raw.largest_entry), over),
        ratios.each("s2 / s1 of G_LM", second, first, over),
        ratios.together("pooled s2 / s1 of G_LM", second, first, f"pooled over {over}", formula="√(Σ s2² / Σ s1²)"),
        Quantity(
            "numerical rank of G_LM", spread(rank), over, formula="number of singular values above 64 eps_float32 s1"
        ),
    ]


SECTION = Section("B2", "Spectrum and norms of G_LM", "operators", CurvatureSpectrum, measure, quantities)
