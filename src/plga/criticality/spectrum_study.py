"""Spectrum of A_LM over the steps of a training run: a measurement of a conjecture (arXiv:2608.10288)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor
from transformers import TrainerCallback

from plga.criticality.callback import ProbeCallback
from plga.criticality.files import write_csv
from plga.criticality.order_parameter import Deductive, fluctuation
from plga.criticality.phase_diagram import save
from plga.criticality.regimes import RMS_NORMALIZED
from plga.criticality.sweep import held
from plga.criticality.sweep_settings import Point, Sweep
from plga.criticality.windows import probe
from plga.model.atomic import new_file
from plga.ops.spectrum import numerical_rank, perron, singular_values
from plga.training.data.dataset import open_data
from plga.training.run import train

CLAIM = (
    "Conjecture: when the operator collapses, the spectrum of A_LM changes its shape and then stands still. "
    "Measurement of one run on a fixed probe. It is falsified here if G_LM becomes near-critical while the singular "
    "values, the rank and the Perron root of A_LM go on as before, or if they stand still while G_LM depends on the "
    "input."
)


class SpectrumRecorder(ProbeCallback):
    """Appends the spectrum of A_LM to a file at each look, and takes back what a resumed run will look at again.

    Args:
        probe: [N, S] token ids, N >= 2, none of it padding.
        every: steps between looks.
        file: JSON lines; see :func:`spectrum`.
    """

    def __init__(self, probe: Tensor, every: int, file: Path) -> None:
        super().__init__(probe, every)
        self.file = file

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kept = [entry for entry in read(self.file) if entry["step"] <= state.global_step]
        with new_file(self.file, overwrite=True) as temporary:
            temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")

    def look(self, outputs: Deductive, state: Any) -> None:
        entry = {"step": state.global_step, "order_parameter": fluctuation(outputs.curvature)}
        with self.file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(entry | spectrum(outputs.metric)) + "\n")


def read(file: Path) -> list[dict[str, Any]]:
    """Looks that a recorder has written; a last line that was cut off is left out."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def spectrum(metric: Tensor) -> dict[str, Any]:
    """Spectrum of each head's A_LM, medians over the inputs.

    Args:
        metric: A_LM, [N, L, ..., H, d, d]; what lies between layers and heads counts as inputs.

    Returns:
        ``singular_values`` [L][H][d], descending; ``rank`` [L][H], numerical; ``perron_root`` [L][H].
    """
    by_input = metric.movedim(1, 0).flatten(1, -4).movedim(1, 0)  # [N', L, H, d, d]
    return {
        "singular_values": singular_values(by_input).median(dim=0).values.tolist(),
        "rank": numerical_rank(by_input).median(dim=0).values.tolist(),
        "perron_root": perron(by_input).root.median(dim=0).values.tolist(),
    }


def check(sweep: Sweep) -> Point:
    """The one point of a sweep.

    Raises:
        ValueError: more than one, or no grid.
    """
    points = list(sweep.grid())
    if sweep.settings.sampler != "grid" or len(points) > 1:
        example = " ".join(
            f"axes.{name}=[{value:g}]" for name, value in zip(("learning_rate", "warmup"), points[0], strict=False)
        )
        raise ValueError(
            f"--study spectrum follows one run, but this sweep has {sweep.count}; name it: {example} axes.seed=[...] "
            "and one axes.size"
        )
    return points[0]


def run(sweep: Sweep, out: Path, callbacks: Sequence[TrainerCallback] = ()) -> list[dict[str, Any]]:
    """Train the one run of a sweep, or go on, and write ``spectrum.csv`` and ``spectrum.png``.

    Args:
        sweep: of one point.
        out: a new or empty folder, or the one of this study.
        callbacks: of Transformers' Trainer, for progress.

    Raises:
        ValueError, OSError, FloatingPointError, KeyboardInterrupt: as :func:`plga.training.run.train`.
    """
    point = check(sweep)
    with held(out):
        settings = sweep.run(point, out / "run")
        file = out / "spectrum.jsonl"
        data = open_data(
            settings.data,
            vocab_size=settings.model.vocab_size,
            context=settings.model.max_position_embeddings,
            seed=settings.optimizer.seed,
        )
        recorder = SpectrumRecorder(probe(data, settings)["input_ids"], settings.logging.probe_every, file)
        train(settings, [recorder, *callbacks])
        looks = read(file)
        write_csv(out / "spectrum.csv", records(looks))
        _draw(sweep, point, looks, out / "spectrum.png")
        return looks


def records(looks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a look, layer and head: s1, the others over it, rank and Perron root."""
    return [
        {
            "step": look["step"],
            "order_parameter": look["order_parameter"],
            "layer": layer,
            "head": head,
            "rank": look["rank"][layer][head],
            "perron_root": look["perron_root"][layer][head],
            "s1": values[0],
            **{f"s{i}_over_s1": value / values[0] for i, value in enumerate(values[1:], start=2)},
        }
        for look in looks
        for layer, heads in enumerate(look["singular_values"])
        for head, values in enumerate(heads)
    ]


def _draw(sweep: Sweep, point: Point, looks: Sequence[dict[str, Any]], file: Path) -> None:
    steps = [look["step"] for look in looks]
    values = np.array([look["singular_values"] for look in looks])  # [looks, L, H, d]
    ratios = np.median(values / values[..., :1], axis=(1, 2))
    largest, root, rank = (
        np.array(x).reshape(len(looks), -1)
        for x in (values[..., 0], [look["perron_root"] for look in looks], [look["rank"] for look in looks])
    )
    figure = Figure(figsize=(8, 11), layout="constrained")
    top, size, ranks, order = figure.subplots(4, 1, sharex=True)
    norm, colors = LogNorm(1, max(2, ratios.shape[1])), colormaps["viridis"]
    for index in range(ratios.shape[1]):
        top.semilogy(steps, ratios[:, index].clip(1e-20), color=colors(norm(index + 1)), linewidth=0.8)
    top.set_ylabel("s_i / s_1")
    figure.colorbar(ScalarMappable(norm, colors), ax=top, label="i")
    for series, label, color in ((largest, "s_1", "tab:blue"), (root, "Perron root", "tab:orange")):
        size.semilogy(steps, np.median(series, axis=1), color=color, label=label)
        size.fill_between(steps, series.min(axis=1), series.max(axis=1), color=color, alpha=0.15)
    size.legend()
    ranks.plot(steps, np.median(rank, axis=1), color="tab:green")
    ranks.fill_between(steps, rank.min(axis=1), rank.max(axis=1), color="tab:green", alpha=0.15)
    ranks.set_ylabel("numerical rank")
    order.semilogy(steps, np.clip([look["order_parameter"] for look in looks], 1e-9, None), color="tab:red", marker=".")
    for threshold in RMS_NORMALIZED:
        order.axhline(threshold, color="gray", linestyle=":")
    order.set(xlabel="step", ylabel="fluctuation of G_LM")
    for axes in (top, size, ranks, order):
        axes.grid(alpha=0.3)
    figure.suptitle(
        f"{sweep.settings.name}: spectrum of A_LM, {point}\n"
        "medians over layers and heads, shaded from smallest to largest; measurement of a conjecture",
        fontsize=10,
    )
    save(figure, file)
