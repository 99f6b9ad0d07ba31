"""Time and memory of an audit at the published 110M shapes: python benchmarks/audit.py [PROMPTS] [TOKENS] [LETTERS].

Random weights, in float32, and random tokens: eight prompts of 64 if nothing else is said. Every section as
`plga audit` runs it, its arrays written to the disk, then the report; wall-clock seconds of each, and the largest
resident memory of the process up to then. An audit has to take at most 10 minutes on two cores, and 6 GB.
"""

import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

from plga.audit.files import write
from plga.audit.record import PromptsRecord, Settings, Source
from plga.audit.run import Result, run
from plga.audit.sections import chosen
from plga.audit.source import Task
from plga.audit.subject import Subject
from plga.collapse.prompts import digest
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM

SEED = 0


def main() -> None:
    count, tokens = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 8), (2, 64)))
    sections = chosen(sys.argv[3] if len(sys.argv) > 3 else None, "model")
    torch.manual_seed(SEED)
    model = PldrForCausalLM(PldrConfig()).eval()
    prompts = torch.randint(4, model.config.vocab_size, (count, tokens)).unbind()
    print(
        f"{model.num_parameters():,} random weights, {count} prompts of {tokens} tokens, seed {SEED}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {platform.machine()}; "
        f"{peak():.1f} GB before the first section\n"
    )
    print("| section | seconds | peak, GB | |\n|---|---|---|---|")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = run(Subject(model, prompts, seed=SEED), sections, Path(folder, "work"), on_end=show)
        before = time.perf_counter()
        write(task(model, prompts), results, Path(folder, "out"))
        print(f"| report | {time.perf_counter() - before:.1f} | {peak():.1f} | |")
    print(f"| all | {time.perf_counter() - start:.1f} | {peak():.1f} | |")


def show(result: Result) -> None:
    """A row of the table."""
    status = result.status if result.reason is None else f"{result.status}: {result.reason}"
    name = f"{result.section.letter} {result.section.title}"
    print(f"| {name} | {result.seconds:.1f} | {peak():.1f} | {status} |", flush=True)


def task(model: PldrForCausalLM, prompts: tuple[torch.Tensor, ...]) -> Task:
    """What the report says of this model."""
    return Task(
        Subject(model, prompts, seed=SEED),
        Source(kind="checkpoint", name="random weights", files={}, shape={"parameters": model.num_parameters()}),
        PromptsRecord(origin="random tokens", tokens=[len(row) for row in prompts], sha256=digest(prompts)),
        Settings(seed=SEED, dtype="float32", threads=torch.get_num_threads()),
    )


def peak() -> float:
    """Largest resident memory so far, GB of 1e9 bytes; Linux counts it in units of 1024."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
