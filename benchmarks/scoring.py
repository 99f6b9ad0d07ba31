"""Sequential scores of many candidates: constant against recompute mode, and batches against single calls, in one run.

    python benchmarks/scoring.py [--checkpoint ../shared/reference/critical.pth] [--rounds 3]

100 candidates of 8 tokens after one context of 64, on a collapsed checkpoint, float32. Recompute mode is the same
function on the checkpoint as it was trained; the plain loop is one call a prefix. All take turns in one process, so
that what else the machine does meets each alike. Candidates are random tokens, so that few of their prefixes are equal.
Exits with 1 where a bound is missed.
"""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from decode import in_turn
from processor import processor

from plga.collapse.freeze import freeze_on
from plga.model.checkpoint import load_model
from plga.model.modeling import PldrForCausalLM
from plga.scoring import Item, sequential_logprobs

THREADS, CONTEXT, CANDIDATES, TOKENS, BATCH = 2, 64, 100, 8, 100
BOUNDS = {"constant / recompute": 5.0, "batched / loop": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = Path(__file__).resolve().parents[2] / "shared" / "reference"
    parser.add_argument("--checkpoint", type=Path, default=folder / "critical.pth")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one to warm up")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    learned = load_model(arguments.checkpoint)
    vocabulary = learned.config.vocab_size
    frozen, fluctuation = freeze_on(learned, torch.randint(4, vocabulary, (8, CONTEXT)))
    context = tuple(torch.randint(4, vocabulary, (CONTEXT,)).tolist())
    candidates = torch.randint(4, vocabulary, (CANDIDATES, TOKENS)).tolist()
    items = [Item(context, tuple(candidate), f"candidate {n}") for n, candidate in enumerate(candidates)]
    print(f"{THREADS} threads on {processor()}", end="")
    print("".join(f", {package} {version(package)}" for package in ("torch", "transformers")))
    print(f"{arguments.checkpoint.name}, whose G fluctuates by {fluctuation:.1e}; {CANDIDATES} candidates of {TOKENS}")

    scorers = {
        "constant": lambda: sequential_logprobs(frozen, items, BATCH),
        "batched": lambda: sequential_logprobs(learned, items, BATCH),
        "loop": lambda: plain_loop(learned, items),
    }
    gap = max(
        float((batched.logprobs - single).abs().max())
        for batched, single in zip(scorers["batched"](), scorers["loop"](), strict=True)
    )
    seconds = in_turn(scorers, arguments.rounds)
    print("\n| sequential scores | seconds (rounds) | median |\n|---|---|---|")
    for name, taken in seconds.items():
        print(f"| {name} | {' '.join(f'{s:.3f}' for s in taken)} | {median(taken):.3f} |")
    ratios = {
        "constant / recompute": median(seconds["batched"]) / median(seconds["constant"]),
        "batched / loop": median(seconds["loop"]) / median(seconds["batched"]),
    }
    print(f"\nbatched and loop differ by at most {gap:.1e} nats on a token")
    print("\n| speed | ratio | bound |\n|---|---|---|")
    for name, ratio in ratios.items():
        print(f"| {name} | {ratio:.1f} | at least {BOUNDS[name]:.0f} |")
    sys.exit(any(ratio < BOUNDS[name] for name, ratio in ratios.items()))


@torch.no_grad()
def plain_loop(model: PldrForCausalLM, items: list[Item]) -> list[torch.Tensor]:
    """One call a prefix, every prefix of every item."""
    found = []
    for item in items:
        ids = torch.tensor([[*item.context, *item.candidate]])
        first = len(item.context)
        rows = [
            model(ids[:, :end], use_cache=False, logits_to_keep=1).logits[0, -1].log_softmax(-1)
            for end in range(first, ids.shape[1])
        ]
        found.append(torch.stack(rows).gather(-1, ids[0, first:, None])[:, 0])
    return found


if __name__ == "__main__":
    main()
