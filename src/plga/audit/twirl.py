"""Section D: what the rotary twirl does to the second moment of the queries of a prompt (arXiv:2608.10288).

Before the rotation it is M = (1/S) Σ_t q_t q_tᵀ, after it D / S = (1/S) Σ_t R_t q_t q_tᵀ R_tᵀ, each energy that of the
position average, ‖·‖_F², in the rotary eigenbasis of :mod:`plga.ops.twirl`. What commutes with the rotations has the
same energy in both. Were the queries stationary, E[q_t q_tᵀ] the same at every t, each mode outside the commutant
would be reduced by its multiplier. They need not be, so the energy outside may also grow: then the suppression

    1 - (off-commutant energy after) / (off-commutant energy before)

is negative.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import Quantity, Section, spread
from plga.audit.subject import Subject
from plga.audit.visits import learned_visits
from plga.ops.twirl import angular_frequencies, mode_frequencies, rotary_modes, twirl_multiplier

_INSTANCES = "layer, head and prompt"
_POOLED = "layer and prompt, energies pooled over heads"
_OFF = "Σ |(U M Uᴴ)_jk|² over j ≠ k"


@dataclass(frozen=True)
class Twirl:
    """Of N prompts; energies are squared Frobenius norms.

    Attributes:
        kept_before, kept_after: energy in the commutant, [N, L, H].
        off_before, off_after: energy outside the commutant, [N, L, H].
        off_stationary: what ``off_after`` would be of stationary queries, Σ m_S(ω)² |M_ω|², [N, L, H].
        halves_apart: ‖M₁ - M₂‖_F, M₁ and M₂ of the first and the last ⌊S/2⌋ tokens, not rotated, [N, L, H].
        halves_size: (‖M₁‖_F + ‖M₂‖_F) / 2, [N, L, H].
        modes_before, modes_after: energy of each mode, mean over prompts and heads, [L, d, d].
        frequencies: ω of each mode, [d, d].
    """

    kept_before: np.ndarray
    kept_after: np.ndarray
    off_before: np.ndarray
    off_after: np.ndarray
    off_stationary: np.ndarray
    halves_apart: np.ndarray
    halves_size: np.ndarray
    modes_before: np.ndarray
    modes_after: np.ndarray
    frequencies: np.ndarray


def measure(subject: Subject) -> Twirl:
    """Take the measurements, in float64 on the queries as the model computed them.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram, no prompts, or a non-finite deductive output.
    """
    rows, modes = [], []
    for visit in learned_visits(subject):
        assert subject.model is not None
        config = subject.model.config
        omega = mode_frequencies(angular_frequencies(config.head_dim, config.rope_theta))
        queries = visit.queries.double()
        before, after = (
            rotary_modes(_second_moment(q), config.rope_interleaved).abs().square()
            for q in (queries, visit.rotated.double())
        )
        half = queries.shape[-2] // 2
        first, last = _second_moment(queries[..., :half, :]), _second_moment(queries[..., -half:, :])
        rows.append(
            (
                _kept(before),
                _kept(after),
                _off(before),
                _off(after),
                _off(before * twirl_multiplier(omega, queries.shape[-2]).square()),
                torch.linalg.matrix_norm(first - last),
                (torch.linalg.matrix_norm(first) + torch.linalg.matrix_norm(last)) / 2,
            )
        )
        modes.append((before.mean(dim=1), after.mean(dim=1)))
    names = ("kept_before", "kept_after", "off_before", "off_after", "off_stationary", "halves_apart", "halves_size")
    modes_before, modes_after = (torch.stack(tensors).mean(dim=0).numpy() for tensors in zip(*modes, strict=True))
    return Twirl(
        **{name: torch.stack(tensors).numpy() for name, tensors in zip(names, zip(*rows, strict=True), strict=True)},
        modes_before=modes_before,
        modes_after=modes_after,
        frequencies=omega.numpy(),
    )


def _second_moment(queries: Tensor) -> Tensor:
    """(1/S) Σ_t q_t q_tᵀ of [..., S, d]: [..., d, d]."""
    return queries.mT @ queries / queries.shape[-2]


def _kept(energy: Tensor) -> Tensor:
    return energy.diagonal(dim1=-2, dim2=-1).sum(-1)


def _off(energy: Tensor) -> Tensor:
    """Summed without the diagonal, not as a difference: what is little beside the commutant keeps its digits."""
    return torch.where(torch.eye(energy.shape[-1], dtype=torch.bool), 0.0, energy).sum((-2, -1))


def quantities(raw: Twirl) -> list[Quantity]:
    """Fractions and suppression of each instance and pooled, and how stationary the queries are."""
    found = []
    for when, kept, off in (("before", raw.kept_before, raw.off_before), ("after", raw.kept_after, raw.off_after)):
        name, formula = f"commutant fraction {when} rotation", "Σ |(U M Uᴴ)_jj|² / ‖M‖_F²"
        at = published("twirl_measured_per_prompt_and_layer", f"commutant_fraction_{when}_rotation")
        found += [
            Quantity(
                f"energy of the query second moment {when} rotation", spread(kept + off), _INSTANCES, formula="‖M‖_F²"
            ),
            Quantity(f"off-commutant energy {when} rotation", spread(off), _INSTANCES, formula=_OFF),
            ratios.each(f"{name}, by head", kept, kept + off, _INSTANCES, formula=formula),
            ratios.each(name, kept.sum(-1), (kept + off).sum(-1), _POOLED, formula=formula, published=at),
        ]
    formula = f"1 - after / before, each {_OFF}"
    at = published("twirl_measured_per_prompt_and_layer", "off_commutant_suppression")
    removed, before = raw.off_before - raw.off_after, raw.off_before
    found += [
        ratios.each("off-commutant suppression, by head", removed, before, _INSTANCES, formula=formula),
        ratios.each(
            "off-commutant suppression", removed.sum(-1), before.sum(-1), _POOLED, formula=formula, published=at
        ),
        _pooled("pooled off-commutant suppression", removed, before, formula),
        ratios.each(
            "off-commutant suppression that stationary queries would have",
            (before - raw.off_stationary).sum(-1),
            before.sum(-1),
            _POOLED,
            formula="1 - Σ m_S(ω)² |M_ω|² / Σ |M_ω|²",
            claim="conditional theorem",
        ),
    ]
    formula = "‖M₁ - M₂‖_F / ((‖M₁‖_F + ‖M₂‖_F) / 2)"
    return [
        *found,
        ratios.each(
            "relative difference of the second moments of two halves",
            raw.halves_apart,
            raw.halves_size,
            _INSTANCES,
            formula=formula,
        ),
        ratios.together(
            "pooled relative difference of the second moments of two halves",
            raw.halves_apart,
            raw.halves_size,
            f"pooled over {_INSTANCES}",
            formula="√(Σ ‖M₁ - M₂‖_F² / Σ ((‖M₁‖_F + ‖M₂‖_F) / 2)²)",
        ),
    ]


def _pooled(name: str, part: np.ndarray, whole: np.ndarray, formula: str) -> Quantity:
    """Of energies, which add up: the sum of all parts over that of all wholes."""
    total = float(whole.sum())
    value = float(part.sum()) / total if total else None
    return Quantity(name, value, f"pooled over {_INSTANCES}", formula=formula)


SECTION = Section("D", "Rotary twirl of the queries", "model", Twirl, measure, quantities)
