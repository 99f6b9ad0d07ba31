"""Section H: DAG losses of A_LM, A_P and G_LM, beside the floors that no such matrix can go below.

With entries of magnitude ε or more, tr exp(M ⊙ M) - d >= tr(M ⊙ M) >= d ε², so that ℓ(M) = log(tr exp(M ⊙ M) / d) is
at least log(1 + ε²) (arXiv:2608.10288): a matrix without zeros is not acyclic. The floor is taken at the smallest
magnitude that each matrix has, and for A_LM also at its architectural one, the ε that is added to every entry.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from plga.audit.published import published
from plga.audit.section import Quantity, Section, Value, spread
from plga.audit.subject import Subject
from plga.audit.visits import learned_visits
from plga.ops.acyclicity import dag_loss
from plga.ops.power_law import EPSILON

_INSTANCES = "layer, head and prompt"
_SYMBOLS = ("A_LM", "A_P", "G_LM")
_ROUNDING = 1e-12  # of loss and floor in float64, relative; where all entries are ε the two are equal to d ε⁴


@dataclass(frozen=True)
class Acyclicity:
    """Of N prompts; the first axis is A_LM, A_P, G_LM.

    Attributes:
        loss: ℓ(M), float64 [3, N, L, H].
        smallest: the smallest magnitude of an entry, [3, N, L, H].
        width: d, [1].
        eps: the architectural floor of A_LM, in the dtype of the deductive branch, [1].
    """

    loss: np.ndarray
    smallest: np.ndarray
    width: np.ndarray
    eps: np.ndarray


def measure(subject: Subject) -> Acyclicity:
    """Take the measurements in float64.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram, no prompts, or a non-finite deductive output.
    """
    losses, smallest = [], []
    for visit in learned_visits(subject):
        outputs = [t.double() for t in (visit.deductive.metric, visit.deductive.potential, visit.deductive.curvature)]
        losses.append(torch.stack([dag_loss(m) for m in outputs]))
        smallest.append(torch.stack([m.abs().amin((-2, -1)) for m in outputs]))
        metric = visit.deductive.metric
    return Acyclicity(
        loss=torch.stack(losses, dim=1).numpy(),
        smallest=torch.stack(smallest, dim=1).numpy(),
        width=np.array([metric.shape[-1]]),
        eps=np.array([float(torch.tensor(EPSILON, dtype=metric.dtype))]),
    )


def quantities(raw: Acyclicity) -> list[Quantity]:
    """Losses of each matrix and their mean, both floors, and whether they hold."""
    width, eps = int(raw.width[0]), float(raw.eps[0])
    found = []
    for symbol, loss, smallest in zip(_SYMBOLS, raw.loss, raw.smallest, strict=True):
        floor = np.log1p(np.square(smallest))
        found += [
            Quantity(
                f"DAG loss of {symbol}",
                spread(loss),
                _INSTANCES,
                formula="log(tr exp(M ⊙ M) / d)",
                published=published("dag_losses", symbol),
            ),
            Quantity(f"mean DAG loss of {symbol}", float(loss.mean()), f"pooled over {_INSTANCES}"),
            Quantity(
                f"floor of the DAG loss of {symbol}",
                spread(floor),
                _INSTANCES,
                kind="bound",
                formula="log(1 + ε²), ε the smallest magnitude of an entry",
                claim="theorem",
            ),
            Quantity(
                f"DAG losses of {symbol} below their floor",
                int((loss < floor * (1 - _ROUNDING)).sum()),
                f"of {loss.size}, {_INSTANCES}",
                formula=f"ℓ < log(1 + ε²), to a relative rounding of {_ROUNDING:g}",
                claim="theorem",
            ),
            Quantity(
                f"log10(tr exp(M ⊙ M) - d) of {symbol}",
                _log_excess(loss, width),
                _INSTANCES,
                formula="log10(d (e^ℓ - 1)), by logarithms, so that it is finite at any magnitude",
            ),
            Quantity(
                f"floor of log10(tr exp(M ⊙ M) - d) of {symbol}",
                spread(math.log10(width) + 2 * np.log10(smallest)) if (smallest > 0).all() else None,
                _INSTANCES,
                kind="bound",
                formula="log10(d ε²), ε the smallest magnitude of an entry",
                claim="theorem",
            ),
        ]
    return [
        *found,
        Quantity(
            "architectural floor of the DAG loss of A_LM",
            math.log1p(eps**2),
            "every A_LM",
            kind="bound",
            formula=f"log(1 + ε²), ε = {EPSILON:g} added to every entry",
            claim="theorem",
        ),
        Quantity(
            "architectural floor of log10(tr exp(M ⊙ M) - d) of A_LM",
            math.log10(width) + 2 * math.log10(eps),
            "every A_LM",
            kind="bound",
            formula=f"log10(d ε²), ε = {EPSILON:g} added to every entry",
            claim="theorem",
        ),
        Quantity(
            "DAG losses of A_LM below the architectural floor",
            int((raw.loss[0] < math.log1p(eps**2) * (1 - _ROUNDING)).sum()),
            f"of {raw.loss[0].size}, {_INSTANCES}",
            claim="theorem",
        ),
    ]


def _log_excess(loss: np.ndarray, width: int) -> Value:
    """log10(d (e^ℓ - 1)) as ℓ + log(1 - e^-ℓ), where ℓ > 0; None where every ℓ is 0."""
    positive = loss[loss > 0]
    if not positive.size:
        return None
    return spread((positive + np.log(-np.expm1(-positive))) / math.log(10) + math.log10(width))


SECTION = Section("H", "DAG losses and their floors", "model", Acyclicity, measure, quantities)
