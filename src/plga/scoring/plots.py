"""A picture of target exposure."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")  # a file, on machines without a screen too
from matplotlib import pyplot as plt  # after the backend is chosen

from plga.scoring.exposure import Exposure, growth


def exposure_plot(exposures: Sequence[Exposure], file: Path) -> None:
    """Gap of every token and its mean against the tokens before it, written to ``file`` (PNG)."""
    position = torch.cat([exposure.position for exposure in exposures])
    gap = torch.cat([exposure.gap for exposure in exposures])
    bins = growth(exposures)
    middle = [(found.least * found.most) ** 0.5 for found in bins]
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 6), layout="constrained")
    top.plot(position, gap, ".", color="tab:gray", markersize=3, alpha=0.5, label="a token")
    top.plot(middle, [found.mean for found in bins], color="tab:red", marker="o", label="mean")
    top.axhline(0.0, color="black", linewidth=0.8)
    top.set_ylabel("block less sequential (nats)")
    top.legend()
    # On a logarithmic axis a magnitude of exactly 0 has no place.
    bottom.plot(middle, [found.magnitude or None for found in bins], color="tab:blue", marker="o", label="mean")
    bottom.plot(middle, [found.largest or None for found in bins], color="tab:orange", marker="^", label="largest")
    bottom.set_yscale("log")
    bottom.set_xscale("log", base=2)
    bottom.set_ylabel("magnitude (nats)")
    bottom.set_xlabel("tokens before, in the window")
    bottom.legend()
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    try:
        figure.savefig(file, format="png", dpi=120)
    finally:
        plt.close(figure)
