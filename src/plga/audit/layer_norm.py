"""Section C: the scale error of the learner's first LayerNorm, LN(D) against LN(D / S), S the number of tokens.

Without ε a LayerNorm takes the scale away, and the two are one. With it, a row x of D of variance v_D gives
γ (x - x̄) / √(v_D + ε) + β, and the same row of D / S gives γ (x - x̄) / √(v_D + S² ε) + β (arXiv:2608.10288). Both
are evaluated in float64, from the density operator as the model computed it and with the checkpoint's own γ, β, ε.
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
from plga.model.operator import LayerNorm

_ROWS = "row of D, of every layer, head and prompt"
_NOT_STATED = "norm and normalization of the published figure are not stated"


@dataclass(frozen=True)
class ScaleError:
    """Of N prompts; a row of D is an instance.

    Attributes:
        tokens: S of each prompt, [N].
        eps: ε of each layer, [L].
        variance: of the row of D / S, biased, [N, L, H, d]; exactly 0 where all its entries are equal.
        difference: ‖LN(D) - LN(D / S)‖₂ of the row, [N, L, H, d].
        norm, norm_scaled: ‖LN(D)‖₂ and ‖LN(D / S)‖₂ of the row, [N, L, H, d].
    """

    tokens: np.ndarray
    eps: np.ndarray
    variance: np.ndarray
    difference: np.ndarray
    norm: np.ndarray
    norm_scaled: np.ndarray


def measure(subject: Subject) -> ScaleError:
    """Take the measurements.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram, no prompts, or a non-finite deductive output.
    """
    rows = []
    for visit in learned_visits(subject):
        norms = _first_norms(subject)
        rows.append(
            [
                torch.stack(tensors)
                for tensors in zip(
                    *(
                        _errors(density.double(), visit.queries.shape[-2], norm)
                        for density, norm in zip(visit.density, norms, strict=True)
                    ),
                    strict=True,
                )
            ]
        )
    variance, difference, norm, norm_scaled = (torch.stack(tensors).numpy() for tensors in zip(*rows, strict=True))
    return ScaleError(
        tokens=np.array([len(prompt) for prompt in subject.prompts]),
        eps=np.array([norm.eps for norm in _first_norms(subject)]),
        variance=variance,
        difference=difference,
        norm=norm,
        norm_scaled=norm_scaled,
    )


def _first_norms(subject: Subject) -> list[LayerNorm]:
    return [operator.learner.input_norm for operator in subject.learned]


@torch.no_grad()
def _errors(density: Tensor, tokens: int, norm: LayerNorm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of D, [H, d, d]: variance of the rows of D / S, ‖LN(D) - LN(D / S)‖, ‖LN(D)‖ and ‖LN(D / S)‖, each [H, d]."""
    gamma, beta = norm.weight.double(), norm.bias.double()
    # Counted from the first entry, a row of equal entries has variance 0, not the rounding of its mean.
    shift = density - density[..., :1]
    centered = shift - shift.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    scaled = variance / tokens**2
    of_density = gamma * centered / (variance + norm.eps).sqrt()
    of_mean = gamma * (centered / tokens) / (scaled + norm.eps).sqrt()
    return (
        scaled[..., 0],
        (of_density - of_mean).norm(dim=-1),
        (of_density + beta).norm(dim=-1),
        (of_mean + beta).norm(dim=-1),
    )


def quantities(raw: ScaleError) -> list[Quantity]:
    """Relative and absolute error of each row and pooled, the proxy, and the rows without variance."""
    varies = raw.variance > 0
    eps = np.broadcast_to(raw.eps[:, None, None], raw.variance.shape)
    proxy = spread(eps[varies] / (2 * raw.variance[varies])) if varies.any() else None
    missing = int((~varies).sum())
    return [
        Quantity("rows of D", raw.variance.size, _ROWS),
        Quantity(
            "rows of D without variance",
            missing,
            f"of {raw.variance.size}",
            published=published("layernorm_scale_error", "zero_variance_rows"),
        ),
        Quantity(
            "absolute LayerNorm scale error",
            spread(raw.difference),
            _ROWS,
            formula=f"‖LN(D) - LN(D / S)‖₂ ({_NOT_STATED})",
            published=published("layernorm_scale_error", "direct_absolute"),
        ),
        ratios.each(
            "relative LayerNorm scale error",
            raw.difference,
            raw.norm,
            _ROWS,
            formula=f"‖LN(D) - LN(D / S)‖₂ / ‖LN(D)‖₂ ({_NOT_STATED})",
            published=published("layernorm_scale_error", "direct_relative"),
        ),
        ratios.each(
            "LayerNorm scale error relative to LN(D / S)",
            raw.difference,
            raw.norm_scaled,
            _ROWS,
            formula=f"‖LN(D) - LN(D / S)‖₂ / ‖LN(D / S)‖₂ ({_NOT_STATED})",
            published=published("layernorm_scale_error", "direct_relative"),
        ),
        ratios.together(
            "pooled relative LayerNorm scale error",
            raw.difference,
            raw.norm,
            "pooled over all rows",
            formula="√(Σ ‖LN(D) - LN(D / S)‖² / Σ ‖LN(D)‖²)",
        ),
        Quantity(
            "first-order proxy of the relative LayerNorm scale error",
            proxy,
            f"{_ROWS}, without {missing} without variance" if missing else _ROWS,
            kind="proxy",
            formula="ε / (2 v), v the variance of the row of D / S: to first order in ε and 1 / S², with β = 0",
        ),
    ]


SECTION = Section("C", "ε-LayerNorm scale error", "model", ScaleError, measure, quantities)
