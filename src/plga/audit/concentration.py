"""Section E2: how D / S gathers around its mean over the data set as the number S of tokens grows.

D / S is the mean of the matrices q qᵀ of the first S rotated queries, which are those of one pass over the whole prompt:
with a learned operator a pass over the prefix alone has others behind the first layer. Beside the measured spread stands the
matrix-Bernstein bound for the mean of S independent matrices of the same second moment: a *conditional theorem*, whose
hypothesis, independence, the tokens of a text do not satisfy.
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
from plga.ops.density import gram


@dataclass(frozen=True)
class Concentration:
    """Of N prompts and K lengths.

    Attributes:
        lengths: S, powers of two up to the shortest prompt, [K].
        width: d, [1].
        deviation: ‖D / S - mean‖₂, the mean over the prompts, [K, N, L, H].
        mean: ‖mean‖₂, [K, L, H].
        moment: ‖M‖₂, M the mean of q qᵀ over all rows of all prompts, [L, H].
        variance: ‖mean of ‖q‖² q qᵀ - M²‖₂ over the same rows, [L, H].
        largest: max ‖q‖² over them, [L, H].
    """

    lengths: np.ndarray
    width: np.ndarray
    deviation: np.ndarray
    mean: np.ndarray
    moment: np.ndarray
    variance: np.ndarray
    largest: np.ndarray


def measure(subject: Subject) -> Concentration:
    """Take the measurements.

    Raises:
        NotMeasurable: as learned_visits, or one prompt, which has no data-set mean.
    """
    visits = list(learned_visits(subject))
    if len(visits) < 2:
        raise NotMeasurable("one prompt only, expected two or more: one has no mean over a data set")
    shortest = min(visit.rotated.shape[-2] for visit in visits)
    lengths = [2**power for power in range(int(math.log2(shortest)) + 1)]
    deviation, mean = [], []
    for length in lengths:
        of_prompts = torch.stack([gram(visit.rotated[..., :length, :].double()) / length for visit in visits])
        middle = of_prompts.mean(dim=0)
        deviation.append(_norm(of_prompts - middle))
        mean.append(_norm(middle))
    rows = torch.cat([visit.rotated.double() for visit in visits], dim=-2)
    squares = rows.square().sum(dim=-1, keepdim=True)
    moment = gram(rows) / rows.shape[-2]
    fourth = (rows * squares).mT @ rows / rows.shape[-2]
    return Concentration(
        np.array(lengths),
        np.array([rows.shape[-1]]),
        torch.stack(deviation).numpy(),
        torch.stack(mean).numpy(),
        _norm(moment).numpy(),
        _norm(fourth - moment @ moment).numpy(),
        squares.amax(dim=(-2, -1)).cpu().numpy(),
    )


def _norm(matrices: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrices, ord=2).cpu()


def bernstein(raw: Concentration) -> np.ndarray:
    """Bound of the expected ‖D / S - M‖₂, [K, L, H]: √(2 v log(2d) / S) + b log(2d) / (3 S).

    v is the ``variance`` and b the ``largest``, which bounds ‖q qᵀ - M‖₂.
    """
    logarithm = math.log(2 * int(raw.width[0]))
    lengths = raw.lengths[:, None, None].astype(np.float64)
    return np.asarray(np.sqrt(2 * raw.variance * logarithm / lengths) + raw.largest * logarithm / (3 * lengths))


def quantities(raw: Concentration) -> list[Quantity]:
    """Spread and bound at each length, and the slope of the spread's median against S."""
    found = []
    means = np.broadcast_to(raw.mean[:, None], raw.deviation.shape)
    moments = np.broadcast_to(raw.moment, raw.mean.shape)
    for length, deviation, mean, bound, moment in zip(
        raw.lengths.tolist(), raw.deviation, means, bernstein(raw), moments, strict=True
    ):
        found.append(
            ratios.each(
                f"spread of D / S at S = {length}",
                deviation,
                mean,
                "layer, head and prompt; rows of the pass over the whole prompt",
                formula="‖D / S - mean over prompts‖₂ / ‖mean over prompts‖₂",
            )
        )
        found.append(
            ratios.each(
                f"matrix-Bernstein bound of the spread of D / S at S = {length}",
                bound,
                moment,
                "layer and head",
                kind="bound",
                formula="(√(2 v log(2d) / S) + b log(2d) / (3S)) / ‖M‖₂, of the expectation, v = ‖E (q qᵀ)² - M²‖₂, "
                "b = max ‖q‖²; hypothesis: independent rows of one second moment, which rotated rows of a text are not",
                claim="conditional theorem",
            )
        )
    if len(raw.lengths) > 1:
        medians = np.array(
            [
                np.median(d[m > 0] / m[m > 0]) if (m > 0).any() else 0.0
                for d, m in zip(raw.deviation, means, strict=True)
            ]
        )
        slope = float(np.polyfit(np.log(raw.lengths), np.log(medians), 1)[0]) if (medians > 0).all() else None
        found.append(
            Quantity(
                "exponent of the spread of D / S in S",
                slope,
                "medians over layer, head and prompt, all lengths",
                formula="slope of log(median spread) against log(S), least squares; -1/2 for independent rows",
            )
        )
    return found


SECTION = Section("E2", "Concentration of D / S", "model", Concentration, measure, quantities)
