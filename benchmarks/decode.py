"""Tokens a second of the operator's modes, beside a Transformers Llama of the same shapes, in one run.

    python benchmarks/decode.py [--rounds 3] [--prompts 64 256 960]

The shapes are those of the 110M models (arXiv:2502.13502), weights at random, float32, greedy, one sequence. All take
turns in one process, so that what else the machine does meets each alike. Exits with 1 where a bound is missed.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from statistics import median

import torch
from shapes import llama
from torch import Tensor

from plga.collapse.freeze import freeze_on
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM

THREADS, SHORT, LONG_TOKENS, PREFILL = 2, 64, 8, 512
TOKENS = 48  # of the shortest prompt; longer ones get fewer, as recomputing takes seconds a token there
BOUNDS = {  # name: (what is divided by what, at least or at most)
    "constant / recompute": ("at least", 5.0),
    "constant / Llama": ("at least", 0.98),
    "recompute / Llama without cache": ("at least", 81 / 120),
    "prefill: constant / Llama": ("at least", 0.98),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one to warm up")
    parser.add_argument("--prompts", type=int, nargs="+", default=[SHORT, 256, 960], help="their lengths in tokens")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    config = PldrConfig()
    learned = PldrForCausalLM(config).eval()
    frozen, _ = freeze_on(learned, torch.randint(4, config.vocab_size, (2, SHORT)))
    peer = llama(config).eval()
    print(f"{THREADS} threads on {os.cpu_count()} cores of {platform.machine()}", end="")
    print("".join(f", {package} {version(package)}" for package in ("torch", "transformers")))

    ratios: dict[str, float] = {}
    print("\n| prompt | new tokens | decoder | ms a token (rounds) | median tokens/s | of recompute |")
    print("|---|---|---|---|---|---|")
    for length in arguments.prompts:
        new = TOKENS if length <= SHORT else LONG_TOKENS
        prompt = torch.randint(4, config.vocab_size, (1, length))
        decoders: dict[str, Callable[[], object]] = {
            "recompute": partial(generate, learned, prompt, new, operator_mode="recompute"),
            "prompt": partial(generate, learned, prompt, new, operator_mode="prompt"),
            "constant": partial(generate, frozen, prompt, new),
            "Llama": partial(generate, peer, prompt, new),
        }
        if length <= SHORT:
            decoders["Llama without cache"] = partial(generate, peer, prompt, new, use_cache=False)
        seconds = in_turn(decoders, arguments.rounds)
        speed = {name: new / median(taken) for name, taken in seconds.items()}
        for name, taken in seconds.items():
            each = " ".join(f"{1e3 * s / new:.1f}" for s in taken)
            print(
                f"| {length} | {new} | {name} | {each} | {speed[name]:.2f} | {speed[name] / speed['recompute']:.1f}x |"
            )
        if length <= SHORT:
            ratios |= {
                "constant / recompute": speed["constant"] / speed["recompute"],
                "constant / Llama": speed["constant"] / speed["Llama"],
                "recompute / Llama without cache": speed["recompute"] / speed["Llama without cache"],
            }
    prompt = torch.randint(4, config.vocab_size, (1, PREFILL))
    prefills = {"constant": partial(prefill, frozen, prompt), "Llama": partial(prefill, peer, prompt)}
    seconds = in_turn(prefills, 3 * arguments.rounds)
    ratios["prefill: constant / Llama"] = median(seconds["Llama"]) / median(seconds["constant"])
    for name, taken in seconds.items():
        print(f"\nprefill of {PREFILL} tokens, {name}: {1e3 * median(taken):.0f} ms (", end="")
        print(" ".join(f"{1e3 * s:.0f}" for s in taken), end=")\n")
    print("\n| tokens/s | ratio | bound |\n|---|---|---|")
    missed = False
    for name, ratio in ratios.items():
        word, bound = BOUNDS[name]
        missed |= ratio < bound
        print(f"| {name} | {ratio:.3f} | {word} {bound:.3f} |")
    sys.exit(missed)


def in_turn(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def generate(model: PldrForCausalLM, prompt: Tensor, new: int, **options: object) -> Tensor:
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
        eos_token_id=None,
        **options,
    )


@torch.no_grad()
def prefill(model: PldrForCausalLM, prompt: Tensor) -> None:
    model(input_ids=prompt, use_cache=True, logits_to_keep=1)


if __name__ == "__main__":
    main()
