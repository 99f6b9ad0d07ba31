"""Small figures as inline SVG in the colours of the page, readable on a phone; the same figure is the same bytes."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

_INK = "#010203"  # stands for the colour of the page's text, which is light in the dark
_WIDTH, HEIGHT = 4.4, 3.2  # inches
COLOURS = ("#3f87c9", "#d9703a", "#4aa36a", "#9a75c9", "#c9a227", "#c95f8f", "#5fb3b3", "#8c8c8c")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.prop_cycle": cycler(color=COLOURS),
}


class Drawing(NamedTuple):
    """A figure: what it shows, in words, and the SVG."""

    title: str
    caption: str
    svg: str


def draw(name: str, title: str, caption: str, paint: Callable[[Axes], None], height: float = HEIGHT) -> Drawing:
    """Let ``paint`` draw on the axes of a figure.

    Args:
        name: of its own on a page, because ids within an SVG are those of the whole page.
        height: inches, where the width is 4.4.
    """
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure.subplots())
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Drawing(title, caption, _inline(content.getvalue(), title))


def _inline(svg: str, title: str) -> str:
    """The element alone, with no id that nothing refers to, in the ink of the page."""
    element = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r"(<g) id=\"[^\"]*\"", r"\1", element)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", element, count=1).replace(
        "<svg", f'<svg role="img" aria-label="{label}"', 1
    )


def decades(axis: Axis, *values: np.ndarray) -> list[np.ndarray]:
    """Places of values >= 0 on an axis of powers of ten, on which zero has a place of its own at the low end.

    Values that are not finite have none (NaN).
    """
    flat = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in values])
    positive = np.log10(flat[(flat > 0) & np.isfinite(flat)])
    low, high = (np.floor(positive.min()), np.ceil(positive.max())) if positive.size else (-1.0, 0.0)
    high = max(high, low + 1)
    zero = low - max(0.6, 0.12 * (high - low))
    if high - low > 2:
        ticks = np.arange(low, high + 1, max(1, int(np.ceil((high - low) / 5))))
        labels = [f"1e{int(tick)}" for tick in ticks]
    else:  # a power of ten alone may be off the end of so short an axis
        multiples = [k * 10.0**power for power in range(int(low), int(high) + 1) for k in (1, 2, 5)]
        ticks, labels = np.log10(multiples), [f"{multiple:g}" for multiple in multiples]
    if (flat == 0).any():
        ticks, labels = np.concatenate([[zero], ticks]), ["0", *labels]
    inside = positive if not (flat == 0).any() else np.append(positive, zero)
    if inside.size:  # ticks would stretch the axis beyond what is there
        margin = 0.05 * (inside.max() - inside.min()) + 0.05
        kept = (ticks >= inside.min() - margin) & (ticks <= inside.max() + margin)
        ticks, labels = ticks[kept], [label for label, keep in zip(labels, kept, strict=True) if keep]
    axis.set_ticks(ticks, labels)
    placed = []
    for v in values:
        wide = np.asarray(v, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = np.log10(wide)
        placed.append(np.where(wide == 0, zero, np.where(np.isfinite(logarithm), logarithm, np.nan)))
    return placed


def histogram(
    axes: Axes, groups: Mapping[str, np.ndarray], label: str, count: str = "instances", linear: bool = False
) -> None:
    """Histograms of values >= 0 over powers of ten, or of values in [0, 1], one step line a group; without NaN."""
    placed = [np.asarray(v, dtype=np.float64) for v in groups.values()]
    if not linear:
        placed = decades(axes.xaxis, *placed)
    together = np.concatenate([values.ravel() for values in placed])
    together = together[np.isfinite(together)]
    low, high = (together.min(), together.max()) if together.size and not linear else (0.0, 1.0)
    bins = np.linspace(low - 0.1 * (not linear), high + 0.1 * (not linear), 41).tolist()
    for name, colour, values in zip(groups, _cycled(len(placed)), placed, strict=True):
        finite = values[np.isfinite(values)]
        axes.hist(finite, bins=bins, histtype="stepfilled", color=colour, alpha=0.35)
        axes.hist(finite, bins=bins, histtype="step", color=colour, label=name)
    axes.set_xlabel(label)
    axes.set_ylabel(count)
    if len(groups) > 1:
        axes.legend()


def curves(axes: Axes, groups: Mapping[str, np.ndarray], x: str, y: str, names: Sequence[object] | None = None) -> None:
    """Median over instances of curves >= 0, each group [instances, points], with the band from smallest to largest.

    The points are called 1, 2, 3, ..., or by their ``names``.
    """
    placed = decades(axes.yaxis, *groups.values())
    for (name, _), colour, values in zip(groups.items(), _cycled(len(placed)), placed, strict=True):
        points = np.arange(1, values.shape[-1] + 1)
        axes.fill_between(points, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, linewidth=0)
        axes.plot(points, np.median(values, axis=0), color=colour, label=name, marker="." if len(points) < 12 else None)
    if names is not None:
        axes.set_xticks(np.arange(1, len(names) + 1), [str(name) for name in names])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(groups) > 1:
        axes.legend(ncols=2)


def bars(axes: Axes, groups: Mapping[str, np.ndarray], names: Sequence[str], y: str, x: str = "") -> None:
    """Bars of values >= 0 over powers of ten; each group has one for each of ``names``."""
    placed = decades(axes.yaxis, *groups.values())
    together = np.concatenate(placed)
    floor = np.nanmin(together) - 0.5 if np.isfinite(together).any() else 0.0
    width = 0.8 / len(groups)
    for index, (name, colour, values) in enumerate(zip(groups, _cycled(len(placed)), placed, strict=True)):
        places = np.arange(len(names)) + (index - (len(groups) - 1) / 2) * width
        axes.bar(places, np.nan_to_num(values - floor), width, bottom=floor, color=colour, label=name)
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(groups) > 1:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.1 * len(groups) * (high - low))  # room for the legend
        axes.legend(loc="upper center", ncols=2)


def cloud(axes: Axes, groups: Mapping[str, tuple[np.ndarray, np.ndarray]], x: str, y: str) -> None:
    """Points (x, y), both >= 0 and on powers of ten, one colour a group."""
    across = decades(axes.xaxis, *(pair[0] for pair in groups.values()))
    up = decades(axes.yaxis, *(pair[1] for pair in groups.values()))
    for name, colour, left, right in zip(groups, _cycled(len(groups)), across, up, strict=True):
        axes.plot(left.ravel(), right.ravel(), ".", markersize=3, color=colour, alpha=0.6, label=name, rasterized=True)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if len(groups) > 1:
        axes.legend(markerscale=3)


def against(axes: Axes, across: np.ndarray, up: np.ndarray, x: str, y: str) -> None:
    """Points of values >= 0 on powers of ten, the same on both axes, with the line on which both values are one."""
    places = decades(axes.xaxis, across, up)
    decades(axes.yaxis, across, up)
    finite = np.concatenate([values.ravel() for values in places])
    finite = finite[np.isfinite(finite)]
    ends = [finite.min() - 0.2, finite.max() + 0.2] if finite.size else [0.0, 1.0]
    axes.plot(ends, ends, ":", color=COLOURS[-1])
    axes.plot(places[0].ravel(), places[1].ravel(), ".", markersize=4, color=COLOURS[0], alpha=0.6)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def ranges(axes: Axes, rows: Mapping[str, Sequence[np.ndarray]]) -> None:
    """One line a row from smallest to largest, the median a dot: in colour the first of its pair, in grey the other."""
    flat = [values for pair in rows.values() for values in pair]
    placed = iter(flat if min(values.min() for values in flat) < 0 else decades(axes.xaxis, *flat))
    for index, _ in enumerate(rows):
        for shift, colour in ((-0.12, COLOURS[0]), (0.12, COLOURS[-1])):
            low, median, high = next(placed)
            axes.plot([low, high], [index + shift] * 2, color=colour, linewidth=2, solid_capstyle="butt")
            axes.plot([low, median, high], [index + shift] * 3, "|", color=colour, markersize=5)
            axes.plot([median], [index + shift], "o", color=colour, markersize=4)
    for index, name in enumerate(rows):
        axes.text(0.02, index - 0.3, name, transform=axes.get_yaxis_transform(), fontsize=7.5, va="bottom")
    axes.set_ylim(len(rows) - 0.6, -0.75)
    axes.set_yticks([])
    axes.set_xlabel("value")


def heat_map(axes: Axes, matrix: np.ndarray) -> None:
    """A matrix [n, m] by row and column, white at zero, its largest magnitude at the ends of the scale."""
    largest = float(np.abs(matrix).max()) or 1.0
    image = axes.imshow(
        matrix.astype(np.float64) / largest, cmap="RdBu_r", norm=Normalize(-1.0, 1.0), interpolation="nearest"
    )
    bar = axes.figure.colorbar(image, ax=axes, ticks=[-1, 0, 1], shrink=0.8)
    bar.ax.set_yticklabels([f"{-largest:.2g}", "0", f"{largest:.2g}"])
    bar.outline.set_edgecolor(_INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([0, matrix.shape[1] - 1])
    axes.set_yticks([0, matrix.shape[0] - 1])
    axes.set_xlabel("column")
    axes.set_ylabel("row")


def _cycled(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]
