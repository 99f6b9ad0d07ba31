"""Tokens a second of the operator's modes, beside a Transformers Llama of the same shapes, in one run.

    python benchmarks/decode.py [--rounds 3] [--prompts 64 256 960]

The shapes are those of the 110M models (arXiv:2502.13502), weights at random, float32, greedy, one sequence. All take
turns in one process, so that what else the machine does meets each alike. Exits with 1 where a bound is missed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Hashable
from functools import partial
from importlib.metadata import version
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import transformers
from processor import processor
from shapes import llama
from torch import Tensor

from plga.collapse.freeze import freeze_on
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM

Name = TypeVar("Name", bound=Hashable)

THREADS, SHORT, PREFILL = 2, 64, 512
TOKENS = 48
LATER = 8  # new tokens after the first one, which reads the prompt
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
    transformers.logging.disable_progress_bar()
    config = PldrConfig()
    made = PldrForCausalLM(config).eval()
    frozen, _ = freeze_on(made, torch.randint(4, config.vocab_size, (2, SHORT)))
    learned, frozen, peer = loaded(made), loaded(frozen), loaded(llama(config))
    del made
    print(f"{THREADS} threads on {processor()}", end="")
    print("".join(f", {package} {version(package)}" for package in ("torch", "transformers")))

    decoders: dict[str, Callable[[Tensor, int], object]] = {
        "recompute": partial(generate, learned, operator_mode="recompute"),
        "prompt": partial(generate, learned, operator_mode="prompt"),
        "constant": partial(generate, frozen),
        "Llama": partial(generate, peer),
    }
    whole = decoders | {"Llama without cache": partial(generate, peer, use_cache=False)}
    prompt = torch.randint(4, config.vocab_size, (1, SHORT))
    seconds = in_turn({name: partial(decode, prompt, TOKENS) for name, decode in whole.items()}, arguments.rounds)
    print(f"\nPrompt of {SHORT} tokens, {TOKENS} new ones, the whole call:\n")
    print("| decoder | ms a token (rounds) | median tokens/s | of recompute |\n|---|---|---|---|")
    speed = print_rows("", seconds, TOKENS)
    ratios = {
        "constant / recompute": speed["constant"] / speed["recompute"],
        "constant / Llama": speed["constant"] / speed["Llama"],
        "recompute / Llama without cache": speed["recompute"] / speed["Llama without cache"],
    }

    print(f"\n{LATER} new tokens after the first:\n")
    print("| prompt | decoder | ms a token (rounds) | median tokens/s | of recompute |\n|---|---|---|---|---|")
    for length in arguments.prompts:
        prompt = torch.randint(4, config.vocab_size, (1, length))
        calls = {(name, n): partial(f, prompt, n) for name, f in decoders.items() for n in (1, 1 + LATER)}
        taken = in_turn(calls, arguments.rounds)
        later = {
            name: [b - a for a, b in zip(taken[name, 1], taken[name, 1 + LATER], strict=True)] for name in decoders
        }
        print_rows(f"{length} | ", later, LATER)

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


def loaded(model: Any) -> Any:
    """A model as its users have it, read from a checkpoint.

    Where its weights came to lie while it was made would decide more than what it computes: a copy of the constant
    model made in another way took 26 ms a token, and it 32.
    """
    with TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        return type(model).from_pretrained(directory).eval()


def print_rows(start: str, seconds: dict[str, list[float]], tokens: int) -> dict[str, float]:
    """A row a decoder; returns their tokens a second."""
    speed = {name: tokens / median(taken) for name, taken in seconds.items()}
    for name, taken in seconds.items():
        each = " ".join(f"{1e3 * s / tokens:.1f}" for s in taken)
        print(f"| {start}{name} | {each} | {speed[name]:.2f} | {speed[name] / speed['recompute']:.1f}x |")
    return speed


def in_turn(calls: dict[Name, Callable[[], object]], rounds: int) -> dict[Name, list[float]]:
    """Seconds of each call in each round, after one round to warm up."""
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
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
