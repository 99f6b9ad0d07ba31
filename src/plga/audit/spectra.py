"""Section B: spectra of A and A_LM, trained and at random initialization, and the Perron triple of A_LM.

One matrix of one prompt, layer and head is an instance; all is computed in float64. Two relative spreads of A, with the
RMS over all entries of what is named:

* cross-head, of one prompt and layer: RMS of A_h - mean of A over the heads, over RMS of A;
* row-variance ratio: Σ_ij (A_ij - Ā_j)² / Σ_ij A_ij², Ā the mean row. It is 0 where all rows are one, and near 1 where
  they have no common part, as at random initialization. Rows that are equal give exactly 0 here; a mean taken in
  float32 leaves about 1e-13 of them.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plga.audit import ratios
from plga.audit.published import published
from plga.audit.section import Quantity, Section, Value, spread
from plga.audit.subject import Subject
from plga.audit.visits import learned_visits, require_learned
from plga.model.configuration import INITIALIZATIONS
from plga.model.modeling import PldrForCausalLM
from plga.ops.spectrum import RANK_TOLERANCE, perron, singular_values

_INSTANCES = "layer, head and prompt"
_WEIGHTS = ("trained", *INITIALIZATIONS)  # the order of the first axis of what is measured of each
_SYMBOLS = ("A", "A_LM")


@dataclass(frozen=True)
class Spectra:
    """Of N prompts; W = 3: the weights as trained, then drawn anew by the Xavier-normal and the Xavier-uniform law.

    Attributes:
        generator_singular, metric_singular: singular values of A and A_LM, descending, [W, N, L, H, d].
        metric_min, metric_max: smallest and largest entry of A_LM, [W, N, L, H].
        heads_apart, generator_size: RMS of A about its mean over the heads, and of A, [W, N, L].
        rows_apart, rows_size: RMS of A about its mean row, and of A, [W, N, L, H].
        perron_root, perron_residual: of A_LM as trained, [N, L, H]; see plga.ops.spectrum.perron. NaN, as the vectors,
            where an entry is not positive.
        perron_right, perron_left: Perron vectors, Σv = 1 and u·v = 1, [N, L, H, d].
        eigenvalue_moduli: the two largest of A_LM as trained, [N, L, H, 2].
        determinant_float32, determinant_float64: of A and A_LM as trained, in either precision, [2, N, L, H].
        log_determinant: log abs det by slogdet in float64, -inf where singular, [2, N, L, H].
        generator: A of the first prompt as trained, [L, H, d, d].
    """

    generator_singular: np.ndarray
    metric_singular: np.ndarray
    metric_min: np.ndarray
    metric_max: np.ndarray
    heads_apart: np.ndarray
    generator_size: np.ndarray
    rows_apart: np.ndarray
    rows_size: np.ndarray
    perron_root: np.ndarray
    perron_residual: np.ndarray
    perron_right: np.ndarray
    perron_left: np.ndarray
    eigenvalue_moduli: np.ndarray
    determinant_float32: np.ndarray
    determinant_float64: np.ndarray
    log_determinant: np.ndarray
    generator: np.ndarray


class _OfWeights(NamedTuple):
    """What is measured of trained and of random weights alike, for one prompt."""

    generator_singular: Tensor
    metric_singular: Tensor
    metric_min: Tensor
    metric_max: Tensor
    heads_apart: Tensor
    generator_size: Tensor
    rows_apart: Tensor
    rows_size: Tensor


class _OfTrained(NamedTuple):
    """What is measured of the trained weights alone, for one prompt."""

    perron_root: Tensor
    perron_residual: Tensor
    perron_right: Tensor
    perron_left: Tensor
    eigenvalue_moduli: Tensor
    determinants: Tensor


def measure(subject: Subject) -> Spectra:
    """Take the measurements, on the same prompts for all weights.

    Raises:
        NotMeasurable: a constant operator or a chunked Gram, no prompts, or a non-finite deductive output.
    """
    require_learned(subject)
    weights, trained = [], []
    for subject_of in _subjects(subject):
        rows = []
        for visit in learned_visits(subject_of):
            rows.append(_of_weights(visit.deductive.generator.double(), visit.deductive.metric.double()))
            if subject_of is subject:
                trained.append(_of_trained(visit.deductive.generator, visit.deductive.metric))
        weights.append([torch.stack(tensors) for tensors in zip(*rows, strict=True)])
    shared = {
        name: torch.stack(tensors).numpy()
        for name, tensors in zip(_OfWeights._fields, zip(*weights, strict=True), strict=True)
    }
    alone = {
        name: torch.stack(tensors).numpy()
        for name, tensors in zip(_OfTrained._fields, zip(*trained, strict=True), strict=True)
    }
    determinants = np.moveaxis(alone.pop("determinants"), 0, 2)  # [3, 2, N, L, H]
    return Spectra(
        **shared,
        **alone,
        determinant_float32=determinants[0],
        determinant_float64=determinants[1],
        log_determinant=determinants[2],
        generator=subject.visit(0).deductive.generator.numpy(),
    )


def _subjects(subject: Subject) -> Iterator[Subject]:
    """The subject, then a model of its shape as each of the published laws draws it, one at a time."""
    yield subject
    model = subject.model
    assert model is not None
    for law in INITIALIZATIONS:
        config = copy.deepcopy(model.config)
        config.operator_initialization, config.metric_initialization = law, "xavier"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(subject.seed)
            fresh = PldrForCausalLM(config).to(model.dtype).eval()
        yield Subject(model=fresh, prompts=subject.prompts, seed=subject.seed)


def _of_weights(generator: Tensor, metric: Tensor) -> _OfWeights:
    return _OfWeights(
        generator_singular=singular_values(generator),
        metric_singular=singular_values(metric),
        metric_min=metric.amin((-2, -1)),
        metric_max=metric.amax((-2, -1)),
        heads_apart=_size(_about_mean(generator, -3), 3),
        generator_size=_size(generator, 3),
        rows_apart=_size(_about_mean(generator, -2), 2),
        rows_size=_size(generator, 2),
    )


def _about_mean(x: Tensor, axis: int) -> Tensor:
    """x less its mean over an axis; exactly 0 where nothing differs along it."""
    shift = x - x.narrow(axis, 0, 1)
    return shift - shift.mean(dim=axis, keepdim=True)


def _size(x: Tensor, axes: int) -> Tensor:
    """RMS over the last axes."""
    return x.square().flatten(-axes).mean(dim=-1).sqrt()


def _of_trained(generator: Tensor, metric: Tensor) -> _OfTrained:
    wide = metric.double()
    positive = (wide > 0).all(-1).all(-1)
    # Ones in the place of what has no Perron vector, so that the others keep theirs.
    triple = perron(torch.where(positive[..., None, None], wide, 1.0))
    moduli = torch.linalg.eigvals(wide).abs().topk(2).values
    both = torch.stack((generator, metric))

    def where_positive(x: Tensor) -> Tensor:
        return torch.where(positive.reshape(*positive.shape, *(1,) * (x.dim() - positive.dim())), x, torch.nan)

    return _OfTrained(
        perron_root=where_positive(triple.root),
        perron_residual=where_positive(triple.residual),
        perron_right=where_positive(triple.right),
        perron_left=where_positive(triple.left),
        eigenvalue_moduli=moduli,
        determinants=torch.stack(
            (
                torch.linalg.det(both.float()).double(),
                torch.linalg.det(both.double()),
                torch.linalg.slogdet(both.double()).logabsdet,
            )
        ),
    )


def quantities(raw: Spectra) -> list[Quantity]:
    """The summary: of the trained weights first, then of each law."""
    found = _spectral(raw, 0)
    found += _perron(raw)
    found += _determinants(raw)
    for index in range(1, len(_WEIGHTS)):
        found += _spectral(raw, index)
    return found


def _published(weights: int, key: str) -> Value:
    """A published figure, where there is one."""
    if weights == 0:
        return published("spectra_trained", key)
    known = ("A_s2_over_s1", "A_numerical_rank", "A_LM_numerical_rank", "row_variance_ratio")
    if _WEIGHTS[weights] == "xavier_normal" and key in known:
        return published("spectra_random_init_xavier_normal", key)
    return None


def _spectral(raw: Spectra, weights: int) -> list[Quantity]:
    suffix = "" if weights == 0 else f" at random initialization ({_WEIGHTS[weights].replace('_', '-')})"
    found = []
    for symbol, all_values in zip(_SYMBOLS, (raw.generator_singular, raw.metric_singular), strict=True):
        values = all_values[weights]
        # A matrix of width 2 or more: the rotary pairs.
        first, second = values[..., 0], values[..., 1]
        rank = (values > RANK_TOLERANCE * values[..., :1]).sum(axis=-1)
        at = _published(weights, f"{symbol}_s2_over_s1")
        found += [
            Quantity(f"largest singular value of {symbol}{suffix}", spread(first), _INSTANCES),
            ratios.each(f"s2 / s1 of {symbol}{suffix}", second, first, _INSTANCES, published=at),
            ratios.together(
                f"pooled s2 / s1 of {symbol}{suffix}",
                second,
                first,
                f"pooled over {_INSTANCES}",
                formula="√(Σ s2² / Σ s1²)",
            ),
            Quantity(
                f"numerical rank of {symbol}{suffix}",
                spread(rank),
                _INSTANCES,
                formula="number of singular values above 64 eps_float32 s1",
                published=_published(weights, f"{symbol}_numerical_rank"),
            ),
        ]
    for name, key, smallest in (("smallest", "A_LM_min", raw.metric_min), ("largest", "A_LM_max", raw.metric_max)):
        value, at = spread(smallest[weights]), _published(weights, key)
        found.append(Quantity(f"{name} entry of A_LM{suffix}", value, _INSTANCES, published=at))
    return found + _spreads_of_rows(raw, weights, suffix)


def _spreads_of_rows(raw: Spectra, weights: int, suffix: str) -> list[Quantity]:
    apart, size = raw.heads_apart[weights], raw.generator_size[weights]
    rows, row_size = raw.rows_apart[weights], raw.rows_size[weights]
    of_heads = "RMS(A_h - mean over heads) / RMS(A)"
    of_rows = "Σ_ij (A_ij - Ā_j)² / Σ_ij A_ij², Ā the mean row"
    found = []
    if raw.rows_size.shape[-1] > 1:  # one head has no other to differ from
        found = [
            Quantity(
                f"cross-head RMS difference of A{suffix}",
                spread(apart),
                "layer and prompt",
                formula="RMS(A_h - mean over heads)",
            ),
            ratios.each(
                f"cross-head relative difference of A{suffix}",
                apart,
                size,
                "layer and prompt",
                formula=of_heads,
                published=_published(weights, "crosshead_relative"),
            ),
            ratios.together(
                f"pooled cross-head relative difference of A{suffix}",
                apart,
                size,
                "pooled over layer and prompt",
                formula=of_heads,
            ),
        ]
    pooled = float(np.square(row_size).sum())
    return [
        *found,
        ratios.each(
            f"row-variance ratio of A{suffix}",
            np.square(rows),
            np.square(row_size),
            _INSTANCES,
            formula=of_rows,
            published=_published(weights, "row_variance_ratio"),
        ),
        Quantity(
            f"pooled row-variance ratio of A{suffix}",
            float(np.square(rows).sum()) / pooled if pooled else None,
            f"pooled over {_INSTANCES}",
            formula=of_rows,
        ),
    ]


def _perron(raw: Spectra) -> list[Quantity]:
    count = raw.perron_root.size
    has = np.isfinite(raw.perron_root)
    every = f"of {count}, {_INSTANCES}"
    over = _INSTANCES if has.all() else f"{_INSTANCES}, without {count - int(has.sum())} of {count} not positive"

    def of_positive(values: np.ndarray) -> Value:
        return spread(values[has]) if has.any() else None

    found = [
        Quantity("A_LM with an entry that is not positive", int((raw.metric_min[0] <= 0).sum()), every),
        Quantity("Perron root of A_LM", of_positive(raw.perron_root), over),
    ]
    for side, vectors, scale in (("right", raw.perron_right, "Σv = 1"), ("left", raw.perron_left, "u·v = 1")):
        wrong = int((~(vectors > 0).all(axis=-1)).sum())
        found += [
            Quantity(
                f"{side} Perron vectors of A_LM with a component that is not positive", wrong, every, claim="theorem"
            ),
            Quantity(
                f"smallest component of the {side} Perron vector of A_LM ({scale})",
                of_positive(vectors.min(axis=-1)),
                over,
            ),
        ]
    moduli = raw.eigenvalue_moduli
    return [
        *found,
        Quantity(
            "residual of the Perron triple of A_LM",
            of_positive(raw.perron_residual),
            over,
            formula="max(‖M v - r v‖₁ / (r ‖v‖₁), ‖Mᵀ u - r u‖₁ / (r ‖u‖₁))",
        ),
        ratios.each(
            "Perron gap of A_LM", moduli[..., 0] - moduli[..., 1], moduli[..., 0], _INSTANCES, formula="1 - |λ2| / λ1"
        ),
    ]


def _determinants(raw: Spectra) -> list[Quantity]:
    found = []
    for index, symbol in enumerate(_SYMBOLS):
        log = raw.log_determinant[index]
        finite = np.isfinite(log)
        every = f"of {log.size}, {_INSTANCES}"
        for precision, values in (("float32", raw.determinant_float32), ("float64", raw.determinant_float64)):
            lost = int(((values[index] == 0) & finite).sum())
            name = f"det({symbol}) that is 0 in {precision} though slogdet is finite"
            found.append(Quantity(name, lost, every))
        found += [
            Quantity(f"{symbol} singular by slogdet", int((~finite).sum()), every),
            Quantity(
                f"log |det {symbol}| by slogdet",
                spread(log[finite]) if finite.any() else None,
                f"{_INSTANCES}, where not singular",
            ),
        ]
    return found


SECTION = Section("B", "Spectra of A and A_LM", "model", Spectra, measure, quantities)
