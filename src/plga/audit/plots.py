"""Pictures of measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # a file, on machines without a screen too
from matplotlib import pyplot as plt  # after the backend is chosen


def training_curve(history: Sequence[dict[str, Any]], chosen_step: int, threshold: float, file: Path) -> None:
    """Loss and order parameter against the step, written to ``file`` (PNG).

    Args:
        history: evaluations with ``step``, ``loss`` (nats a token) and ``order_parameter``.
        chosen_step: marked.
        threshold: of the order parameter, drawn as a line.
        file: where to.
    """
    steps = [e["step"] for e in history]
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
    top.plot(steps, [e["loss"] for e in history], color="tab:blue")
    top.set_ylabel("training loss (nats a token)")
    bottom.semilogy(steps, [e["order_parameter"] for e in history], color="tab:red", marker=".")
    bottom.axhline(threshold, color="gray", linestyle=":", label=f"collapsed below {threshold:g}")
    bottom.set_ylabel("fluctuation of G_LM")
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.axvline(chosen_step, color="gray", linestyle="--", label=f"chosen checkpoint (step {chosen_step})")
        axes.grid(alpha=0.3)
    bottom.legend()
    try:
        figure.savefig(file, format="png", dpi=120)
    finally:
        plt.close(figure)
