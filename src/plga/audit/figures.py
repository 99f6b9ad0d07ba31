"""The figures of each section: what its arrays look like, and its quantities beside the published ones."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from plga.audit.bound_chain import factors
from plga.audit.concentration import bernstein
from plga.audit.drawing import HEIGHT, Drawing, against, bars, cloud, curves, draw, heat_map, histogram, ranges
from plga.audit.record import Figure, Number
from plga.criticality.order_parameter import SYMBOLS


class _Painted(NamedTuple):
    title: str
    caption: str
    paint: Callable[[Axes], None]
    height: float = HEIGHT


def drawings(letter: str, raw: Any, quantities: Sequence[Figure], name: str) -> list[Drawing]:
    """The figures of a section.

    Args:
        raw: the arrays of its measurement.
        quantities: its summary, of which those with a published figure are drawn beside it.
        name: of its own on a page.
    """
    painted = FIGURES[letter](raw) if letter in FIGURES else []
    return [draw(f"{name}-{index}", *picture) for index, picture in enumerate([*painted, *_published(quantities)])]


def _published(quantities: Sequence[Figure]) -> list[_Painted]:
    """Quantities with a published figure: [min, median, max], or one number, which is all three."""
    found = {q.name: (_three(q.value), _three(q.published)) for q in quantities}
    pairs = {name: (ours, theirs) for name, (ours, theirs) in found.items() if ours is not None and theirs is not None}
    if not pairs:
        return []
    return [
        _Painted(
            "Here and published",
            "Smallest, median (dot) and largest, or one number; in colour what was measured here, in grey what was "
            "published of SOC-110M-5, of its initialization, or of the checkpoint that the table names.",
            lambda axes: ranges(axes, pairs),
            0.5 + 0.42 * max(len(pairs), 3),
        )
    ]


def _three(value: Number) -> np.ndarray | None:
    """Smallest, median and largest; None where there is no number."""
    three = value if isinstance(value, list) else [value] * 3
    return None if isinstance(value, bool) or None in three else np.array(three, dtype=np.float64)


def _multipliers(raw: Any) -> list[_Painted]:
    def paint(axes: Axes) -> None:
        groups = {
            f"S = {length}": (raw.frequencies, values)
            for length, values in zip(raw.lengths.tolist(), raw.multipliers, strict=True)
        }
        cloud(axes, groups, "frequency ω (radians a token)", "multiplier |sin(S ω / 2)| / (S |sin(ω / 2)|)")

    return [
        _Painted("Twirl multipliers", "Every frequency of the published rotary embedding (d = 64, base 10000).", paint)
    ]


def _spectra(raw: Any) -> list[_Painted]:
    weights = ("trained", "Xavier-normal", "Xavier-uniform")

    def normalized(values: np.ndarray) -> dict[str, np.ndarray]:
        flat = {name: of.reshape(-1, of.shape[-1]) for name, of in zip(weights, values, strict=True)}
        return {name: _share(of, of[:, :1]) for name, of in flat.items()}

    band = "Median over layer, head and prompt, and the band from smallest to largest; also of both random laws."
    return [
        _Painted(
            f"Spectrum of {symbol}",
            band,
            partial(_draw_curves, groups=normalized(values)),
        )
        for symbol, values in (("A", raw.generator_singular), ("A_LM", raw.metric_singular))
    ] + _heat_maps("A", raw.generator, "of the first prompt")


def _draw_curves(axes: Axes, groups: Mapping[str, np.ndarray]) -> None:
    curves(axes, groups, "number k of the singular value", "s_k / s_1")


def _curvature_spectrum(raw: Any) -> list[_Painted]:
    layers = np.moveaxis(raw.singular, 1, 0)
    groups = {f"layer {index}": of.reshape(-1, of.shape[-1]) for index, of in enumerate(layers)}
    picture = _Painted(
        "Spectrum of G_LM",
        "Median over heads and prompts, and the band from smallest to largest.",
        lambda axes: curves(axes, groups, "number k of the singular value", "singular value s_k"),
    )
    return [picture, *_heat_maps("G_LM", raw.curvature, "of the first prompt, or the constant")]


def _heat_maps(symbol: str, matrices: np.ndarray, of: str) -> list[_Painted]:
    """Head 0 of the first and of the last layer of [L, H, d, d]."""
    return [
        _Painted(
            f"{symbol}, layer {layer}, head 0",
            f"Entries {of}; white is zero.",
            partial(heat_map, matrix=matrices[layer, 0]),
        )
        for layer in dict.fromkeys((0, len(matrices) - 1))
    ]


def _layer_norm(raw: Any) -> list[_Painted]:
    groups = {"relative": _share(raw.difference, raw.norm), "absolute": raw.difference}
    return [
        _Painted(
            "LN(D) against LN(D / S)",
            "Euclidean distance of each row, absolute and over the norm of LN(D).",
            lambda axes: histogram(axes, groups, "scale error of a row", "rows"),
        )
    ]


def _twirl(raw: Any) -> list[_Painted]:
    before = _share(raw.kept_before, raw.kept_before + raw.off_before)
    after = _share(raw.kept_after, raw.kept_after + raw.off_after)
    reduction = {
        "measured": _share(raw.off_after, raw.off_before),
        "if stationary": _share(raw.off_stationary, raw.off_before),
    }
    return [
        _Painted(
            "Energy in the commutant",
            "Share of the energy of the query second moment, of each layer, head and prompt.",
            lambda axes: histogram(
                axes, {"before rotation": before, "after": after}, "commutant fraction", linear=True
            ),
        ),
        _Painted(
            "What rotation leaves outside the commutant",
            "Off-commutant energy after over before: measured, and what stationary queries would leave.",
            lambda axes: histogram(axes, reduction, "off-commutant energy after / before"),
        ),
    ]


def _commutant(raw: Any) -> list[_Painted]:
    residual = _share(raw.distance, raw.norm)
    groups = {f"layer {index}": of for index, of in enumerate(np.moveaxis(residual, 1, 0))}
    return [
        _Painted(
            "Commutant residual of G_LM",
            "0: commutes with the rotations; 1: nothing of it does. Of each head and prompt.",
            lambda axes: histogram(axes, groups, "‖G - Π(G)‖ / ‖G‖", linear=True),
        )
    ]


def _contraction(raw: Any) -> list[_Painted]:
    ratios = {
        "within a prompt": _share(raw.within_output, raw.within_input),
        "across prompts": _share(raw.across_output, raw.across_input),
    }
    return [
        _Painted(
            "Contraction of φ",
            "Largest singular value of the Jacobian of φ at each sampled row, and of that of each unit.",
            lambda axes: histogram(
                axes, {"φ": raw.singular[..., 0], "a unit": raw.unit_largest}, "singular value", "rows"
            ),
        ),
        _Painted(
            "Contraction of pairs of rows",
            "‖φ(x) - φ(y)‖ / ‖x - y‖ of sampled pairs.",
            lambda axes: histogram(
                axes, {k: v for k, v in ratios.items() if v.size}, "‖φ(x) - φ(y)‖ / ‖x - y‖", "pairs"
            ),
        ),
    ]


def _concentration(raw: Any) -> list[_Painted]:
    groups = {
        "measured": _share(raw.apart, raw.size[:, None]).reshape(len(raw.apart), -1).T,
        "matrix-Bernstein bound": _share(bernstein(raw), raw.size).reshape(len(raw.apart), -1).T,
    }
    return [
        _Painted(
            "Spread of D / S",
            "Relative to the mean over the prompts; the bound supposes independent rows.",
            lambda axes: curves(axes, groups, "S (tokens)", "‖D / S - M‖₂ / ‖M‖₂", raw.lengths.tolist()),
        )
    ]


def _bound_chain(raw: Any) -> list[_Painted]:
    found = factors(raw)
    groups = {
        "ι of a change of G_LM": found.injection,
        "ρ of the remainder": found.remainder,
        "τ in all": found.transfer,
    }
    layers = [str(layer) for layer in range(len(found.injection))]
    return [
        _Painted(
            "Factors of the bound chain",
            "By how much each layer may stretch: what a change of its G_LM injects, what follows the attention in it, "
            "and the whole of it.",
            lambda axes: bars(axes, groups, layers, "factor", "layer"),
        )
    ]


def _decoding(raw: Any) -> list[_Painted]:
    return [
        _Painted(
            "Margins against deviations",
            "Of every step of greedy decoding; above the line, where twice the deviation lies below the margin, the "
            "token is the same.",
            lambda axes: against(
                axes, 2 * raw.deviation, raw.margin, "twice the largest deviation of a logit", "margin (logits)"
            ),
        )
    ]


def _contract(raw: Any) -> list[_Painted]:
    suffix = {"without a mask": raw.change[0], "a mask of ones": raw.change[1], "masked padding": raw.change[2]}
    padding = {"with its mask": raw.padding_change[:, 0], "without a mask": raw.padding_change[:, 1]}
    return [
        _Painted(
            "Another suffix",
            "Largest change of a logit in the rows of a prompt when other tokens follow it.",
            lambda axes: histogram(axes, suffix, "change of a logit", "pairs of suffixes"),
        ),
        _Painted(
            "Padding",
            "Largest change of a logit of the last row in a padded batch.",
            lambda axes: histogram(axes, padding, "change of a logit", "prompts"),
        ),
    ]


def _acyclicity(raw: Any) -> list[_Painted]:
    groups = dict(zip(("A_LM", "A_P", "G_LM"), raw.loss, strict=True))
    return [
        _Painted(
            "DAG losses",
            "|log(tr exp(M ⊙ M) / d)| of each layer, head and prompt.",
            lambda axes: histogram(axes, groups, "DAG loss"),
        )
    ]


_STATISTICS = ("RMSE_12 / |mean|", "RMSE_1C / |mean|", "RMS-normalized", "symmetrized signed")


def _order(raw: Any) -> list[_Painted]:
    sums = ("squares_12", "squares_1c", "squares_about_mean", "squares_1", "difference_12", "sum_1")
    totals = {name: getattr(raw, name).reshape(4, -1).sum(axis=-1) for name in (*sums, "magnitude_1", "magnitude_2")}
    count = raw.sum_1[0].size * float(raw.width[0]) ** 2
    mean = np.abs(totals["sum_1"]) / count
    values = (
        _share(np.sqrt(totals["squares_12"] / count), mean),
        _share(np.sqrt(totals["squares_1c"] / count), mean),
        _share(np.sqrt(totals["squares_about_mean"]), np.sqrt(totals["squares_1"])),
        _share(np.abs(totals["difference_12"]), (totals["magnitude_1"] + totals["magnitude_2"]) / 2),
    )
    groups = dict(zip(_STATISTICS, values, strict=True))
    return [
        _Painted(
            "Order parameters",
            "Pooled over layers, heads and prompts; of the signed one the magnitude.",
            lambda axes: bars(axes, groups, list(SYMBOLS), "order parameter", "deductive output"),
        )
    ]


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, NaN where the whole is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


FIGURES: Mapping[str, Callable[[Any], list[_Painted]]] = {
    "A": _multipliers,
    "B": _spectra,
    "B2": _curvature_spectrum,
    "C": _layer_norm,
    "D": _twirl,
    "D2": _commutant,
    "E": _contraction,
    "E2": _concentration,
    "F": _bound_chain,
    "G": _decoding,
    "J": _contract,
    "H": _acyclicity,
    "I": _order,
}
