"""What adoption costs at G = I: time and peak memory of an adopted Llama over those of the same Llama, in one run.

    python benchmarks/adopt.py [--threads 2] [--rounds 7] [--clock wall] [--operators constant low_rank learned]

The shapes are those of the 110M models (arXiv:2502.13502), weights at random, float32, one sequence. The models take
turns in one process, in an order that alternates; a ratio is the median over rounds of adopted / original of one
round, so that what else the machine does meets both alike. On a machine that others keep busy, --clock processor with
--threads 1 counts only the time that the models had a core. Memory is the peak resident size of a process of its own
that holds one model and does one kind of work, the median of three; the interpreter and its libraries are in it. The
bounds are those of the constant operator. Exits with 1 where one is missed.
"""

import argparse
import copy
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from decode import generate, prefill
from shapes import llama

import plga.adopt
from plga.model.configuration import PldrConfig

ORIGINAL = "original"
PREFILL, PROMPT, NEW, TRAINING = 512, 64, 32, (1, 256)
BOUNDS = {"prefill": 1.05, "decode": 1.05, "training step": 1.10, "memory, inference": 1.02, "memory, training": 1.02}
BOUND_FOR = "constant"
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds, after one to warm up")
    parser.add_argument("--operators", nargs="+", default=["constant", "low_rank", "learned"])
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: seconds that this process computed")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"{arguments.clock} seconds, {arguments.threads} threads on {os.cpu_count()} cores of {platform.machine()}",
        end="",
    )
    print("".join(f", {package} {version(package)}" for package in ("torch", "transformers")), end="\n\n")
    print("| work | operator | seconds, original | seconds, adopted | ratio | middle half | bound |")
    print("|---|---|---|---|---|---|---|", flush=True)
    missed = False
    for work, calls in (
        ("prefill", prefills(arguments.operators)),
        ("decode", decodes(arguments.operators)),
        ("training step", steps(arguments.operators)),
    ):
        seconds = in_turn(calls, arguments.rounds, CLOCKS[arguments.clock])
        for name in calls:
            if name != ORIGINAL:
                missed |= print_times(work, name, seconds[ORIGINAL], seconds[name])
    print("\n| work | operator | peak memory, original | adopted | ratio | bound |\n|---|---|---|---|---|---|")
    for work in ("inference", "training"):
        original = peak(ORIGINAL, work, arguments.threads)
        for name in arguments.operators:
            own = peak(name, work, arguments.threads)
            said, over = verdict(f"memory, {work}", name, own / original)
            missed |= over
            print(f"| {work} | {name} | {original / 1e6:.0f} MB | {own / 1e6:.0f} MB | {own / original:.4f} | {said} |")
    sys.exit(missed)


def print_times(work: str, name: str, original: list[float], own: list[float]) -> bool:
    """A line of the table; whether a bound is missed."""
    ratios = sorted(a / b for a, b in zip(own, original, strict=True))
    middle = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    said, over = verdict(work, name, median(ratios))
    print(
        f"| {work} | {name} | {median(original):.3f} | {median(own):.3f} | {median(ratios):.3f} "
        f"| {middle[0]:.3f} to {middle[1]:.3f} | {said} |",
        flush=True,
    )
    return over


def verdict(work: str, name: str, ratio: float) -> tuple[str, bool]:
    """What to say of a ratio, and whether it misses its bound."""
    if name != BOUND_FOR:
        return "", False
    return f"{BOUNDS[work]:.2f}: {'met' if ratio <= BOUNDS[work] else 'missed'}", ratio > BOUNDS[work]


def in_turn(calls: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each call in each round, after one round to warm up; every other round runs backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            start = clock()
            calls[name]()
            if turn:
                seconds[name].append(clock() - start)
    return seconds


def models(operators: list[str]) -> dict[str, Any]:
    """The original, and adopted ones: all copies, for where weights came to lie when they were made takes time, too."""
    torch.manual_seed(0)
    made = llama(PldrConfig()).eval()
    original = copy.deepcopy(made)
    return {ORIGINAL: original} | {name: plga.adopt(copy.deepcopy(made), name) for name in operators}


def prefills(operators: list[str]) -> dict[str, Callable[[], object]]:
    prompt = torch.randint(4, 32000, (1, PREFILL))
    return {name: partial(prefill, model, prompt) for name, model in models(operators).items()}


def decodes(operators: list[str]) -> dict[str, Callable[[], object]]:
    prompt = torch.randint(4, 32000, (1, PROMPT))
    return {name: partial(generate, model, prompt, NEW) for name, model in models(operators).items()}


def steps(operators: list[str]) -> dict[str, Callable[[], object]]:
    """A full step of each model, and one of the constant operators alone."""
    found = {name: training_step(model) for name, model in models(operators).items()}
    if BOUND_FOR in operators:
        alone = models([BOUND_FOR])[BOUND_FOR]
        plga.adopt.train_operators_only(alone)
        found[f"{BOUND_FOR}, operators alone"] = training_step(alone)
    return found


def training_step(model: Any) -> Callable[[], None]:
    """A function that takes one step: forward, backward, AdamW on what is trained."""
    tokens = torch.randint(4, 32000, TRAINING)
    trained = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()

    return step


def peak(name: str, work: str, threads: int) -> int:
    """Peak resident bytes of a process that holds one model and does ``work``: the median of three."""
    found = []
    for _ in range(3):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(pool.apply(_peak, (name, work, threads)))
    return median(found)


def _peak(name: str, work: str, threads: int) -> int:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = llama(PldrConfig()).eval()
    if name != ORIGINAL:
        plga.adopt(model, name)
    if work == "training":
        step = training_step(model)
        step()
        step()
    else:
        prefill(model, torch.randint(4, 32000, (1, PREFILL)))
        generate(model, torch.randint(4, 32000, (1, PROMPT)), NEW)
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Not ru_maxrss: Linux lets it begin at the size of the process that started this one.
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(found.split()[1]) * 1024


if __name__ == "__main__":
    main()
