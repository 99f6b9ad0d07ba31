"""Section F: Lipschitz constants of the operator, and what a change of G_LM can do to the logits.

Norms of vectors are Euclidean, of weights and of G_LM spectral, of A Frobenius; extrema are over the visited rows, so
that every bound here is of the visited prompts and of no other: it quantifies, it does not certify (arXiv:2608.10288).

From A to G_LM, for one head, between any two visited A:

    ‖G - G'‖_F <= ‖a‖ · max |P| x^(P - 1) · max |d iSwiGLU / du| on [-U, U] · ‖W‖ · ‖A - A'‖_F,   U = max |W A + b_W|,

with x between a floor of A_LM, the measured or the architectural one, and the largest measured A_LM. From D to A, whose
rows are mapped one by one, for any two visited D of one layer:

    ‖A - A'‖_F <= λ_D · λ_φ · ‖D - D'‖_F,   λ_φ = Π_u λ_u (1 + Π_b β_b),

as the head of ``learner_factors.py`` says, with the product of both from D to G_LM.

From G_LM to the logits, to first order: G of every head of every layer is changed by at most r, whatever the rows
before it do. With χ, κ, ν = max ‖q‖, ‖k‖, ‖v‖ of a head, layer by layer:

1. Scores change by (‖W_q‖ ‖G‖ κ + χ ‖G‖ ‖W_k‖) δ / √d + (χ κ / √d) r where the rows of the hidden states do by δ.
2. Attention changes by at most α δ + ι r: α = ‖W_o‖ √Σ_h (first factor · ν + ‖W_v‖)², ι = ‖W_o‖ √Σ_h (χ κ ν / √d)².
3. The remainder of the layer is ρ = λ₁ (1 + φ) λ₂: LayerNorms λ = (max abs γ) / min √(variance + eps), gated FFN
   φ = ‖W_down‖ (max |silu'| ‖W_gate‖ max |u| + ‖W_up‖ max |silu(g)|), residuals the 1.
4. So what a layer injects is ι ρ, having passed the layer's own remainder, and every later layer multiplies it by
   τ = (1 + α) ρ. A logit changes by at most max ‖row of W_head‖ · Σ_l ι_l ρ_l Π_{m > l} τ_m · r.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from plga.audit.budget import Budget, measure
from plga.audit.published import published
from plga.audit.section import Quantity, Section, Value, spread
from plga.collapse.bound import LABEL
from plga.ops.envelopes import iswiglu_slope, silu_slope
from plga.ops.power_law import EPSILON

_HEADS = "layer and head"
_LAYERS = "layer"
_ALL = "all prompts"
_ROUNDING = 2.0**-24  # of float32, relative


class Factors(NamedTuple):
    """Factors of every layer, [L] each; see the head of this file.

    Attributes:
        injection: ι, from a change of G to one of the attention's output.
        attention: α, from a change of the rows to one of the attention's output.
        attention_norm: λ₁.
        feed_forward: φ.
        feed_forward_norm: λ₂.
    """

    injection: np.ndarray
    attention: np.ndarray
    attention_norm: np.ndarray
    feed_forward: np.ndarray
    feed_forward_norm: np.ndarray

    @property
    def remainder(self) -> np.ndarray:
        """ρ = λ₁ (1 + φ) λ₂, what follows the attention within the layer."""
        return self.attention_norm * (1 + self.feed_forward) * self.feed_forward_norm

    @property
    def transfer(self) -> np.ndarray:
        """τ = (1 + α) ρ, of a change of the rows before the layer."""
        return (1 + self.attention) * self.remainder


def factors(raw: Budget) -> Factors:
    """The factors of every layer."""
    operator, scaling = raw.operator, raw.scaling[0]
    scores = scaling * operator * (raw.query_weight * raw.key + raw.query * raw.key_weight)
    slope = silu_slope(torch.from_numpy(raw.gate_range)).numpy()
    norms = raw.gamma / raw.row_scale
    return Factors(
        injection=raw.output_weight * np.linalg.norm(scaling * raw.query * raw.key * raw.value, axis=-1),
        attention=raw.output_weight * np.linalg.norm(scores * raw.value + raw.value_weight, axis=-1),
        attention_norm=norms[:, 0],
        feed_forward=raw.down_weight * (slope * raw.gate_weight * raw.up_range + raw.up_weight * raw.gate_size),
        feed_forward_norm=norms[:, 1],
    )


class LearnerConstants(NamedTuple):
    """Lipschitz constants of every layer's metric learner, [L] each; see the head of ``learner_factors.py``.

    Attributes:
        norm: λ_D, of the LayerNorm that makes LN(D).
        log10_row_map: log10 λ_φ, of φ.
    """

    norm: np.ndarray
    log10_row_map: np.ndarray


def learner_constants(raw: Budget) -> LearnerConstants:
    """From D to LN(D), and from there to A."""
    slope = silu_slope(torch.from_numpy(raw.learner_gate_range)).numpy()
    blocks = raw.learner_down_weight * (
        slope * raw.learner_gate_weight * raw.learner_up_range + raw.learner_up_weight * raw.learner_gate_size
    )
    norms = raw.learner_gamma / raw.learner_row_scale
    units = _log10(norms[:, 1:]) + np.log10(1 + blocks.prod(axis=-1))
    return LearnerConstants(norms[:, 0], units.sum(axis=-1))


def log10_contributions(raw: Budget) -> np.ndarray:
    """log10 of what each layer's injection adds to the end-to-end coefficient, [L]: head · ι ρ Π τ of later layers."""
    found = factors(raw)
    transfer = _log10(found.transfer)
    later = np.append(np.cumsum(transfer[::-1])[::-1][1:], 0.0)
    return _log10(raw.head) + _log10(found.injection) + _log10(found.remainder) + later


def quantities(raw: Budget) -> list[Quantity]:
    """Constants of the operator, factors of the layers, the end-to-end coefficient, and the criterion with it."""
    found = factors(raw)
    contributions = log10_contributions(raw)
    coefficient = _log10_sum(contributions)
    radius = _ROUNDING * float(raw.operator_size.max())
    bound = coefficient + float(_log10(np.array(radius)))
    margin = float(raw.margin.min())
    orders = bound - math.log10(margin / 2) if margin > 0 else math.nan
    return [
        *_constants(raw),
        _factor("attention factor of a change of G_LM", found.injection, "ι = ‖W_o‖ √Σ_h (χ κ ν / √d)²"),
        _factor(
            "attention factor of a change of the rows",
            found.attention,
            "α = ‖W_o‖ √Σ_h ((‖W_q‖ ‖G‖ κ + χ ‖G‖ ‖W_k‖) ν / √d + ‖W_v‖)²",
        ),
        _factor("first LayerNorm factor", found.attention_norm, "λ₁ = max |γ| / min √(variance + eps)"),
        _factor(
            "gated FFN factor",
            found.feed_forward,
            "φ = ‖W_down‖ (max |silu'| ‖W_gate‖ max |u| + ‖W_up‖ max |silu(g)|)",
        ),
        _factor("second LayerNorm factor", found.feed_forward_norm, "λ₂ = max |γ| / min √(variance + eps)"),
        _factor("factor of a layer's own remainder", found.remainder, "ρ = λ₁ (1 + φ) λ₂"),
        _factor("factor of a whole layer", found.transfer, "τ = (1 + α) ρ"),
        _logs(
            "log10 of a layer's part of the end-to-end coefficient",
            contributions,
            _LAYERS,
            "log10(max ‖row of W_head‖ ι_l ρ_l Π_{m > l} τ_m)",
        ),
        _bound(
            "end-to-end coefficient",
            _number(coefficient),
            _ALL,
            "max ‖row of W_head‖ Σ_l ι_l ρ_l Π_{m > l} τ_m: largest change of a logit for a change of every G_LM by at "
            "most 1 in the spectral norm, to first order; none where it exceeds float64",
            "end_to_end_coefficient",
        ),
        _bound("log10 of the end-to-end coefficient", _finite(coefficient), _ALL, "log10 of the same"),
        _bound(
            "single-rounding radius",
            radius,
            f"{_HEADS} and prompt, the largest",
            "2^-24 max ‖G_LM‖_F: above the spectral norm of one rounding of every entry of G_LM to float32 (the norm "
            "of the published figure is not stated)",
            "single_rounding_radius",
        ),
        _bound(
            "radius of one rounded entry",
            _ROUNDING * float(raw.operator_entry.max()),
            f"{_HEADS} and prompt, the largest",
            "2^-24 max |G_LM|: the spectral norm of one rounding of one entry alone, at most",
            "single_rounding_radius",
        ),
        _bound(
            "bound at the single-rounding radius",
            _number(bound),
            _ALL,
            "end-to-end coefficient · radius; none where it exceeds float64",
            "bound_at_that_radius",
        ),
        _bound("log10 of the bound at the single-rounding radius", _finite(bound), _ALL, "log10 of the same"),
        Quantity(
            "smallest decoding margin",
            margin,
            "last row of each prompt; published: 48 decoding steps",
            formula="largest minus second largest logit",
            published=published("bound_chain", "smallest_decoding_margin"),
        ),
        _bound(
            "2 · bound < margin",
            orders < 0,
            _ALL,
            "at the single-rounding radius; false where the margin is 0",
            "satisfied",
        ),
        _bound(
            "orders above half the margin",
            _finite(orders),
            _ALL,
            "log10(bound / (margin / 2)) at the single-rounding radius; none where either is 0",
            "orders_above_half_margin",
        ),
    ]


def _constants(raw: Budget) -> list[Quantity]:
    """From A to G_LM, from D to A, and from D to G_LM."""
    learner = learner_constants(raw)
    slope = iswiglu_slope(torch.from_numpy(raw.metric_range)).numpy()
    linear = _log10(raw.coupling_weight) + _log10(slope) + _log10(raw.metric_weight)
    floors = {
        "measured": (raw.power_measured, "x from min A_LM to max A_LM, both measured"),
        "architectural": (raw.power_architectural, f"x from ε = {EPSILON:g} to the measured max A_LM"),
    }
    found = [
        Quantity("spectral norm of W", spread(raw.metric_weight), _HEADS),
        Quantity("spectral norm of a", spread(raw.coupling_weight), _HEADS),
        Quantity("range U of W A + b_W", spread(raw.metric_range), f"{_HEADS}, over all prompts"),
        Quantity("measured floor of A_LM", spread(raw.metric_floor), f"{_HEADS}, over all prompts"),
        _bound("slope of iSwiGLU", spread(slope), _HEADS, "max |d/du u² σ(u)| on [-U, U], at U"),
    ]
    for name, (power, where) in floors.items():
        found.append(
            _logs(
                f"log10 of the slope of the power law at the {name} floor",
                power,
                _HEADS,
                f"log10 max |P| x^(P - 1), {where}",
            )
        )
    for name, (power, where) in floors.items():
        found.append(
            _logs(
                f"log10 of the Lipschitz constant from A to G_LM at the {name} floor",
                linear + power,
                _HEADS,
                f"log10(‖a‖ max |P| x^(P - 1) max |d iSwiGLU / du| ‖W‖), in the Frobenius norm; {where}",
            )
        )
    found += [
        _factor("LayerNorm factor of a row of D", learner.norm, "λ_D = max |γ| / min √(variance + eps)"),
        _logs(
            "log10 of the Lipschitz constant of φ",
            learner.log10_row_map,
            _LAYERS,
            "log10 λ_φ, λ_φ = Π_u λ_u (1 + Π_b ‖W_down‖ (max |silu'| ‖W_gate‖ max |u| + ‖W_up‖ max |silu(g)|)) over "
            "units u and their blocks b",
        ),
    ]
    of_learner = (_log10(learner.norm) + learner.log10_row_map)[:, None]
    for name, (power, where) in floors.items():
        found.append(
            _logs(
                f"log10 of the Lipschitz constant from D to G_LM at the {name} floor",
                of_learner + linear + power,
                _HEADS,
                f"log10(λ_D λ_φ · that from A to G_LM), in the Frobenius norm; {where}",
            )
        )
    return found


def _bound(name: str, value: Value, over: str, formula: str, key: str | None = None) -> Quantity:
    figure = published("bound_chain", key) if key else None
    return Quantity(name, value, over, kind="bound", formula=f"{formula}; {LABEL}", published=figure)


def _factor(name: str, values: np.ndarray, formula: str) -> Quantity:
    return _bound(name, spread(values) if np.isfinite(values).all() else None, _LAYERS, formula)


def _logs(name: str, values: np.ndarray, over: str, formula: str) -> Quantity:
    """[min, median, max] of the finite logarithms; those of zero or of what exceeds float64 are counted in ``over``."""
    finite = values[np.isfinite(values)]
    if finite.size < values.size:
        over = f"{over}, without {values.size - finite.size} of {values.size} without a finite logarithm"
    return _bound(name, spread(finite) if finite.size else None, over, formula)


def _log10(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log10(values)


def _log10_sum(logs: np.ndarray) -> float:
    """log10 Σ 10^x, at any size."""
    largest = float(logs.max())
    return largest + math.log10(float((10 ** (logs - largest)).sum())) if math.isfinite(largest) else largest


def _number(log: float) -> float | None:
    """10^log: 0 of -inf, None where it exceeds float64."""
    return 10.0**log if log < math.log10(np.finfo(np.float64).max) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


SECTION = Section("F", "Budget and bound chain", "model", Budget, measure, quantities)
