"""Time and peak memory of a training step beside a Transformers Llama of the same shapes, in one run.

    python benchmarks/train_step.py [--operator identity] [--steps 5] [--parts]

Each model lives in a process of its own; they take their steps in turn, one computing at a time, so that what else the
machine does meets both. The shapes are those of the 110M models (arXiv:2502.13502): 2 x 1024 tokens a step, float32,
gradients clipped by value, AdamW. Exits with 1 where the learned operator is over its bounds.
"""

import argparse
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

BATCH, CONTEXT, THREADS = 2, 1024, 2
LLAMA = "Llama"
OPERATORS = {"learned": {}, "identity": {"operator": "constant", "constant": "identity"}}
TIME_BOUND, MEMORY_BOUND = 1.15, 1.05  # of the learned operator, in units of the Llama


class Step(NamedTuple):
    """Wall seconds of a step, and how many cores other processes kept busy meanwhile (NaN where Linux is missing)."""

    seconds: float
    others: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", choices=OPERATORS, default="learned", help="of our model (identity: SDPA)")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each model, after one to warm up")
    parser.add_argument("--parts", action="store_true", help="also say where the time of one more step goes")
    arguments = parser.parse_args()

    workers = {name: Worker(name) for name in (arguments.operator, LLAMA)}
    for worker in workers.values():
        worker.ask("step")
    steps: dict[str, list[Step]] = {name: [] for name in workers}
    for _ in range(arguments.steps):
        for name, worker in workers.items():
            steps[name].append(worker.ask("step"))
    memory = {name: worker.ask("memory") for name, worker in workers.items()}
    parts = {name: worker.ask("parts") for name, worker in workers.items()} if arguments.parts else {}
    for worker in workers.values():
        worker.close()

    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers"))
    print(f"{THREADS} threads on {os.cpu_count()} cores of {platform.machine()}, {versions}\n")
    time_ratio, memory_ratio = print_comparison(steps, memory)
    if parts:
        print_parts(parts)
    sys.exit(arguments.operator == "learned" and (time_ratio > TIME_BOUND or memory_ratio > MEMORY_BOUND))


def print_comparison(steps: dict[str, list[Step]], memory: dict[str, int]) -> tuple[float, float]:
    """The table; returns the ratios of median times and of memory, ours over the Llama's."""
    print("| model | seconds a step | median | fastest | peak memory | cores that others used meanwhile |")
    print("|---|---|---|---|---|---|")
    for name, taken in steps.items():
        seconds, others = ([getattr(step, field) for step in taken] for field in ("seconds", "others"))
        print(
            f"| {name} | {listed(seconds)} | {median(seconds):.2f} | {min(seconds):.2f} | {memory[name] / 1e9:.2f} GB "
            f"| {listed(others)} |"
        )
    ours, theirs = ([step.seconds for step in taken] for taken in steps.values())
    time_ratio = median(ours) / median(theirs)
    memory_ratio = next(iter(memory.values())) / memory[LLAMA]
    pairs = listed([a / b for a, b in zip(ours, theirs, strict=True)])
    print(f"| ratio | {pairs} | {time_ratio:.3f} | {min(ours) / min(theirs):.3f} | {memory_ratio:.3f} | |")
    return time_ratio, memory_ratio


def listed(numbers: list[float]) -> str:
    return " ".join(f"{number:.2f}" for number in numbers)


def print_parts(parts: dict[str, dict[str, list[float]]]) -> None:
    """Milliseconds of each part, forward and backward, of one step under the profiler."""
    print("\n| part, ms forward + backward | " + " | ".join(parts) + " |")
    print("|---|" + "---|" * len(parts))
    for part in dict.fromkeys(part for times in parts.values() for part in times):
        cells = (times.get(part) for times in parts.values())
        shown = (f"{1e3 * cell[0]:.0f} + {1e3 * cell[1]:.0f}" if cell else "" for cell in cells)
        print(f"| {part} | " + " | ".join(shown) + " |")
    sums = (f"{1e3 * sum(map(sum, times.values())):.0f}" for times in parts.values())
    print("| sum | " + " | ".join(sums) + " |")


class Worker:
    """A process that holds one model and answers ``step``, ``memory`` and ``parts``."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(name, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()  # it is ready

    def ask(self, what: str) -> Any:
        self.pipe.send(what)
        return self.pipe.recv()

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()


def work(name: str, pipe: Connection) -> None:
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model, step = training(name)
    pipe.send("ready")
    while (what := pipe.recv()) is not None:
        if what == "step":
            pipe.send(timed(step))
        elif what == "memory":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            pipe.send(peak if sys.platform == "darwin" else peak * 1024)
        else:
            pipe.send(time_by_part(model, step))


def timed(step: Callable[[], None]) -> Step:
    start, own, busy = time.perf_counter(), time.process_time(), busy_seconds()
    step()
    seconds = time.perf_counter() - start
    others = busy_seconds() - busy - (time.process_time() - own)
    return Step(seconds, max(others / seconds, 0.0))


def busy_seconds() -> float:
    """Seconds that the cores of this machine have been busy, summed over them, since it started."""
    try:
        user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    except OSError:
        return float("nan")
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def training(name: str) -> tuple[Any, Callable[[], None]]:
    """The model called ``name`` and a function that takes one training step of it."""
    import torch
    from shapes import llama
    from torch.profiler import record_function

    from plga.model.configuration import PldrConfig
    from plga.model.modeling import PldrForCausalLM
    from plga.training.objective import block_loss
    from plga.training.recipe import Recipe

    config = PldrConfig(**OPERATORS.get(name, {}))
    tokens = torch.randint(4, config.vocab_size, (BATCH, CONTEXT + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    model = llama(config) if name == LLAMA else PldrForCausalLM(config)
    recipe = Recipe(learning_rate=1e-3, warmup=8000, steps=250000, stop=250000)
    optimizer = recipe.optimizer(model.train())
    optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(0)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        if name == LLAMA:
            # As Transformers' Trainer calls it; the labels are shifted inside.
            loss = model(input_ids=inputs, labels=inputs, use_cache=False).loss
        else:
            loss = block_loss(model, inputs, targets).loss
        loss.backward()
        with record_function(PART + "clipping"):
            torch.nn.utils.clip_grad_value_(model.parameters(), recipe.clip_at)
        with record_function(PART + "optimizer"):
            optimizer.step()

    return model, step


# Where the time goes ------------------------------------------------------------------------------------------------

PART = "part: "
REST = "embedding, norms, residuals"


def name_parts(model: Any) -> None:
    """Let every part of the model record its name, for as long as this process lives."""
    from torch.profiler import record_function
    from transformers.models.llama import modeling_llama

    from plga.model import modeling, operator

    def name(owner: Any, attribute: str, part: str) -> None:
        function = getattr(owner, attribute)

        def named(*args: Any, **kwargs: Any) -> Any:
            with record_function(PART + part):
                return function(*args, **kwargs)

        setattr(owner, attribute, named)

    name(model.model, "forward", REST)
    for layer in model.model.layers:
        name(layer.self_attn, "forward", "attention")
        name(layer.mlp, "forward", "feed-forward")
        if hasattr(layer.self_attn, "rotate"):
            name(layer.self_attn, "rotate", "rotary embedding")
        if hasattr(layer.self_attn, "operator") and hasattr(layer.self_attn.operator, "learner"):
            name(layer.self_attn.operator.learner, "forward", "metric learner")
    for owner, attribute, part in (
        (modeling_llama, "apply_rotary_pos_emb", "rotary embedding"),
        (operator, "gram", "Gram"),
        (operator, "metric_tensor", "A_LM, A_P, G_LM"),
        (operator, "potential_tensor", "A_LM, A_P, G_LM"),
        (operator, "curvature_tensor", "A_LM, A_P, G_LM"),
        (operator, "require_finite", "look for non-finite entries"),
        (modeling, "bend", "q G_LM"),
        (modeling, "next_token_cross_entropy", "head and loss"),
        (model, "loss_function", "head and loss"),
        (model.lm_head, "forward", "head and loss"),
    ):
        name(owner, attribute, part)


def time_by_part(model: Any, step: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds forward and backward of each part of one step, each operator counted once, in its innermost part.

    A node of the backward pass belongs to the part whose forward made it, which the profiler tells by its number.
    """
    from torch.profiler import ProfilerActivity, profile

    name_parts(model)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    backward_prefix = "autograd::engine::evaluate_function: "

    def ancestors(event: Any) -> Iterator[Any]:
        while event is not None:
            yield event
            event = event.cpu_parent

    maker: dict[int, str] = {}
    for event in events:
        scopes = [above.name for above in ancestors(event) if above.name.startswith(PART)]
        if scopes and event.sequence_nr >= 0:
            maker[event.sequence_nr] = scopes[0].removeprefix(PART)  # the last one with a number made the node
    seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in events:
        above = list(ancestors(event))
        node = next((each for each in above if each.name.startswith(backward_prefix)), None)
        scopes = [each.name.removeprefix(PART) for each in above if each.name.startswith(PART)]
        if node is not None:
            part, way = maker.get(node.sequence_nr, "gradients of the parameters"), 1
        else:
            part, way = (scopes or ["outside"])[0], 0
        seconds[part][way] += event.self_cpu_time_total / 1e6
    return dict(sorted(seconds.items(), key=lambda item: -sum(item[1])))


if __name__ == "__main__":
    main()
