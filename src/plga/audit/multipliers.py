"""Section A: the analytic twirl multipliers, which no model is needed for (arXiv:2608.10288)."""

from dataclasses import dataclass

import numpy as np
import torch

from plga.audit.published import published
from plga.audit.section import Quantity, Section, Value
from plga.audit.subject import Subject
from plga.ops.twirl import angular_frequencies, resonant, twirl_frequencies, twirl_multiplier

_WIDTH, _BASE = 64, 10000.0
_LENGTHS = (64, 256, 1024)
_SMALL = (0.1, 0.01)
_PAPER = "twirl_analytic_dk64_base10000"


@dataclass(frozen=True)
class Multipliers:
    """Frequencies and multipliers of the published rotary embedding, and of the model's where it is another one.

    Attributes:
        lengths: S, [3].
        width, base: d and the base of the frequencies, first the published, then the model's if it differs; [1] or [2].
        frequencies: ω of the published, float64 [F], the d/2 in-plane ones first.
        multipliers: m_S(ω) of the published, [3, F].
        model_frequencies, model_multipliers: the same of the model, [F'] and [3, F']; F' = 0 where it does not differ.
    """

    lengths: np.ndarray
    width: np.ndarray
    base: np.ndarray
    frequencies: np.ndarray
    multipliers: np.ndarray
    model_frequencies: np.ndarray
    model_multipliers: np.ndarray


def measure(subject: Subject) -> Multipliers:
    """Compute them."""
    cases = [(_WIDTH, _BASE)]
    if subject.model is not None:
        own = (subject.model.config.head_dim, float(subject.model.config.rope_theta))
        cases += [own] if own != cases[0] else []
    frequencies = [twirl_frequencies(angular_frequencies(*case)) for case in cases]
    frequencies = [*frequencies, torch.empty(0, dtype=torch.float64)][:2]
    multipliers = [torch.stack([twirl_multiplier(omega, length) for length in _LENGTHS]) for omega in frequencies]
    return Multipliers(
        lengths=np.array(_LENGTHS),
        width=np.array([width for width, _ in cases]),
        base=np.array([base for _, base in cases]),
        frequencies=frequencies[0].numpy(),
        multipliers=multipliers[0].numpy(),
        model_frequencies=frequencies[1].numpy(),
        model_multipliers=multipliers[1].numpy(),
    )


def quantities(raw: Multipliers) -> list[Quantity]:
    """C_Θ, nonresonance, and how the multipliers are spread at each S."""
    found = _of_case(raw, 0, raw.frequencies, raw.multipliers)
    return found if len(raw.width) == 1 else found + _of_case(raw, 1, raw.model_frequencies, raw.model_multipliers)


def _of_case(raw: Multipliers, case: int, frequencies: np.ndarray, multipliers: np.ndarray) -> list[Quantity]:
    width, base = int(raw.width[case]), float(raw.base[case])
    known = (width, base) == (_WIDTH, _BASE)
    of = f"d = {width}, base {base:g}"
    over = f"2θ_a, and |θ_a - θ_b|, θ_a + θ_b over ordered pairs a ≠ b; {of}"
    resonances = int(resonant(torch.from_numpy(frequencies)).sum())
    found = [
        Quantity(f"resonant frequencies ({of})", resonances, over, formula="number of ω in 2πℤ", claim="theorem"),
        Quantity(
            f"C_Θ ({of})",
            float(1 / np.abs(np.sin(frequencies / 2)).min()) if not resonances else None,
            over,
            formula="max 1 / |sin(ω / 2)|",
            claim="theorem",
            published=published(_PAPER, "C_theta") if known else None,
        ),
    ]
    for length, values in zip(raw.lengths.tolist(), multipliers, strict=True):
        figures: dict[str, tuple[str, float]] = {
            "worst": ("worst multiplier", float(values.max())),
            "median": ("median multiplier", float(np.median(values))),
        }
        for limit in _SMALL:
            below = float((values < limit).mean())
            figures[f"fraction_below_{limit:g}"] = (f"fraction of multipliers below {limit:g}", below)
        for key, (name, value) in figures.items():
            at = published(_PAPER, f"S={length}", key) if known else None
            found.append(_multiplier(f"{name} at S = {length} ({of})", value, over, at))
        known_slowest = known and length == 1024
        found.append(
            _multiplier(
                f"slowest in-plane multiplier at S = {length} ({of})",
                float(values[: width // 2].max()),
                f"2θ_a; {of}",
                published(_PAPER, "slowest_in_plane_multiplier_S=1024") if known_slowest else None,
            )
        )
    return found


def _multiplier(name: str, value: float, over: str, at: Value) -> Quantity:
    formula = "|sin(S ω / 2)| / (S |sin(ω / 2)|)"
    return Quantity(name, value, over, formula=formula, claim="theorem", published=at)


SECTION = Section("A", "Twirl multipliers", "nothing", Multipliers, measure, quantities)
