"""A small SDPA model trained on, as SDPA and adopted: python benchmarks/adopt_training.py [FOLDER] [--seeds N].

For each seed a Llama (SDPA) is trained on Python's standard library. From there each arm goes on with the same batches
and the same schedule (linear warmup over 10 % of the steps, cosine to a tenth): SDPA with all weights; adopted, with
the operators only; adopted with constant operators and all weights. Each arm tries four learning rates. Its rate is
chosen by the mean loss over the seeds on one half of the held-out windows, and everything printed is of the other half.
No step of the continuation decays weights: decay would draw an operator to 0, not to I.

A learned operator is built from all tokens of a window, the target among them, so the loss of one pass says nothing of
generation. Its final losses, by which its rate is chosen too, are therefore those of the online contract: the logits of
each position are taken on exactly its prefix. For every other arm the two are one.

Every run leaves a JSON in FOLDER, and is not run again. FOLDER/adopt_training.png is the picture of docs.
"""

import argparse
import json
import platform
import statistics
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import plga
from plga.adopt.classes import operators
from plga.model.atomic import new_file
from plga.training.data.dataset import Data, open_data
from plga.training.data.settings import DataSettings
from plga.training.recipe import Recipe

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # after the backend is chosen

VOCABULARY, CONTEXT, BATCH = 1024, 128, 8
FIRST, THEN, EVERY = 1500, 150, 25  # steps of the SDPA model, of each arm, between looks
HELD_OUT = 24  # windows to choose by, and as many to report
RATES = {"all weights": (1e-4, 3e-4, 1e-3, 3e-3), "operators only": (1e-3, 3e-3, 1e-2, 3e-2)}
ARMS = {
    "SDPA, all weights": None,
    "constant, operators only": "constant",
    "low_rank, operators only": "low_rank",
    "learned, operators only": "learned",
    "constant, all weights": "constant",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/adopt_training"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    runs = [run for seed in range(arguments.seeds) for run in runs_of(seed, arguments.folder)]
    print(
        f"seeds {arguments.seeds}, {BATCH} x {CONTEXT} tokens a step, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread(s), {platform.machine()}\n"
    )
    report(runs, arguments.folder / "adopt_training.png")


def runs_of(seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The runs of a seed, those that are in ``folder`` read from there."""
    data = open_data(DataSettings(), VOCABULARY, CONTEXT, seed)
    base = folder / f"sdpa-{seed}"
    if not (base / "model.safetensors").is_file():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=128,
                intermediate_size=344,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=CONTEXT,
                tie_word_embeddings=True,
            )
        )
        train(model, data, 0, recipe(FIRST, 3e-3, weight_decay=0.1), looks=[])
        model.save_pretrained(base)
    for arm in ARMS:
        for rate in rates(arm):
            file = folder / f"{seed} {arm} {rate:g}.json"
            if not file.is_file():
                with new_file(file, overwrite=True) as temporary:
                    temporary.write_text(json.dumps(run(seed, arm, rate, base, data), indent=1) + "\n")
            yield json.loads(file.read_text())


def rates(arm: str) -> tuple[float, ...]:
    return RATES[arm.partition(", ")[2]]


def run(seed: int, arm: str, rate: float, base: Path, data: Data) -> dict[str, Any]:
    """One arm from the SDPA model of a seed, at one learning rate."""
    model = AutoModelForCausalLM.from_pretrained(base)
    kind = ARMS[arm]
    if kind is not None:
        plga.adopt(model, operator=kind, metric_units=4, seed=seed)
    if arm.endswith("operators only"):
        plga.adopt.train_operators_only(model)
    looks: list[dict[str, float]] = []
    train(model, data, FIRST * BATCH, recipe(THEN, rate, weight_decay=0.0), looks)
    final = losses(model, data, online=kind == "learned")
    return {
        "seed": seed,
        "arm": arm,
        "rate": rate,
        "parameters": sum(p.numel() for p in model.parameters()),
        "in operators": sum(p.numel() for o in operators(model).values() for p in o.parameters()),
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "looks": looks,
        "final": final,
    }


def recipe(steps: int, rate: float, weight_decay: float) -> Recipe:
    return Recipe(learning_rate=rate, warmup=0.1, steps=steps, batch=BATCH, weight_decay=weight_decay, eps=1e-8)


def train(model: Any, data: Data, skipped: int, recipe: Recipe, looks: list[dict[str, float]]) -> None:
    """Train on the windows after the first ``skipped``, and look every EVERY steps."""
    optimizer = recipe.optimizer(model.train())
    windows = islice(iter(data.train), skipped, None)
    looks.append({"step": 0, **losses(model, data)})
    for step in range(recipe.steps):
        rows = list(islice(windows, recipe.batch))
        ids, targets = (torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels"))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        loss = cross_entropy(model(input_ids=ids, use_cache=False).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_((p for p in model.parameters() if p.requires_grad), recipe.clip_at)
        optimizer.step()
        if (step + 1) % EVERY == 0:
            looks.append({"step": step + 1, **losses(model, data)})


@torch.no_grad()
def losses(model: Any, data: Data, online: bool = False) -> dict[str, float]:
    """Nats a token on the windows to choose by and on those to report."""
    held = data.validation(2 * HELD_OUT)
    found = {}
    training = model.training
    model.eval()
    for name, part in (("chosen on", slice(0, HELD_OUT)), ("reported", slice(HELD_OUT, None))):
        ids, targets = held["input_ids"][part], held["labels"][part]
        logits = online_logits(model, ids) if online else model(input_ids=ids, use_cache=False).logits
        found[name] = float(cross_entropy(logits.flatten(0, 1), targets.flatten()))
    model.train(training)
    return found


def online_logits(model: Any, ids: Tensor) -> Tensor:
    """Logits of each position on exactly its prefix, [N, S, V]."""
    rows = [model(input_ids=ids[:, : t + 1], use_cache=False, logits_to_keep=1).logits for t in range(ids.shape[1])]
    return torch.cat(rows, dim=1)


def report(runs: list[dict[str, Any]], picture: Path) -> None:
    """Print the table, and draw the curves of the chosen rates."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    start = statistics.fmean(r["looks"][0]["reported"] for r in runs if r["arm"] == next(iter(ARMS)))
    print(f"untouched SDPA model: {start:.4f} ({runs[0]['parameters']:,} parameters)\n")
    print("| arm | numbers trained | learning rate | validation loss | by seed | below SDPA, all weights |")
    print("|---|---|---|---|---|---|")
    baseline: list[float] = []
    for arm in ARMS:
        of_arm = [r for r in runs if r["arm"] == arm]
        choice = {
            rate: statistics.fmean(r["final"]["chosen on"] for r in of_arm if r["rate"] == rate) for rate in rates(arm)
        }
        best = min(choice, key=choice.__getitem__)
        chosen = [r for r in of_arm if r["rate"] == best]
        final = [r["final"]["reported"] for r in chosen]
        baseline = baseline or final
        below = sum(ours < theirs for ours, theirs in zip(final, baseline, strict=True))
        cells = (
            arm,
            f"{chosen[0]['trained']:,}",
            f"{chosen[0]['rate']:g}",
            f"{statistics.fmean(final):.4f}",
            " ".join(f"{loss:.4f}" for loss in final),
            "" if baseline is final else f"{below} of {len(final)}",
        )
        print("| " + " | ".join(cells) + " |")
        steps = [look["step"] for look in chosen[0]["looks"]]
        means = [statistics.fmean(r["looks"][i]["reported"] for r in chosen) for i in range(len(steps))]
        label = f"{arm} (one pass)" if arm.startswith("learned") else arm
        (line,) = axes.plot(
            [FIRST + step for step in steps],
            means,
            label=label,
            linewidth=1.2,
            linestyle="--" if arm == "constant, all weights" else "-",
        )
        if arm.startswith("learned"):
            axes.plot(
                FIRST + steps[-1],
                statistics.fmean(final),
                "x",
                color=line.get_color(),
                label=f"{arm} (online, at the end)",
            )
    axes.axhline(start, color="gray", linestyle=":", linewidth=1, label="SDPA, untouched")
    axes.set_xlabel("step")
    axes.set_ylabel("validation loss (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    with new_file(picture, overwrite=True) as file:
        figure.savefig(file, format="png", dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    main()
