"""Memory that a training step takes, beside the plan of it: python benchmarks/plan_memory.py [--json] [NAME ...].

Each case runs in processes of its own: two steps on the CPU, forward, backward and fused AdamW, with the gradients
freed before each. What is measured is how far the resident memory grows, at its highest, above what it was after the
imports and two steps of a very small model. Large blocks of glibc's malloc are told to come from the kernel and to go
back at once (MALLOC_MMAP_THRESHOLD_), so that what was freed does not count.
"""

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_metric_units": 1}

# Model, batch, context, and how it is trained. The first three are each ruled by another part.
LAYERS = {
    "vocab_size": 256,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "metric_intermediate_size": 16,
    "num_metric_units": 1,
}
LEARNER = {**LAYERS, "num_hidden_layers": 2, "metric_intermediate_size": 64, "num_metric_units": 8}
VOCABULARY = {**LAYERS, "vocab_size": 32000, "num_hidden_layers": 1}
CASES: dict[str, tuple[dict[str, Any], int, int, dict[str, Any]]] = {
    "attention and feed-forward": (LAYERS, 4, 1024, {}),
    "metric learner": (LEARNER, 32, 32, {}),
    "vocabulary": (VOCABULARY, 4, 256, {}),
    "110M": ({}, 2, 1024, {}),
    "bf16": (LAYERS, 4, 1024, {"precision": "bf16"}),
    "layers recomputed": ({**LAYERS, "num_hidden_layers": 8}, 4, 1024, {"checkpointing": "layers"}),
    "two processes, DDP": ({**VOCABULARY, "num_hidden_layers": 4}, 4, 64, {"processes": 2, "strategy": "ddp"}),
    "two processes, FSDP2": ({**VOCABULARY, "num_hidden_layers": 4}, 4, 64, {"processes": 2, "strategy": "fsdp2"}),
}


def main() -> None:
    """Print a table, or a JSON list of objects with the names of its columns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - CASES.keys()
    if unknown:
        parser.error(f"{sorted(unknown)[0]!r} is not one of {', '.join(CASES)}")
    rows = [row(name) for name in arguments.names or CASES]
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| case | planned, MB | measured, MB | planned / measured | planned peak |\n|---|---|---|---|---|")
    for r in rows:
        planned, measured = r["planned"], r["measured"]
        print(
            f"| {r['case']} | {planned / 1e6:.0f} | {measured / 1e6:.0f} | {planned / measured:.3f} | {r['moment']} |"
        )


def row(name: str) -> dict[str, Any]:
    """Plan one case and measure it, in bytes: of several processes the one that took most."""
    os.environ |= MALLOC
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for rank in range(CASES[name][3].get("processes", 1)):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=work, args=(name, rank, Path(folder, "meeting"), theirs))
            process.start()
            theirs.close()
            ends.append((process, ours))
        rows = [ours.recv() for _, ours in ends]
        for process, _ in ends:
            process.join()
    return max(rows, key=lambda row: row["measured"])


def work(name: str, rank: int, meeting: Path, end: Connection) -> None:
    """Take the steps of a case in this process, and send by how much its resident memory grew at most."""
    import torch
    import torch.distributed as dist

    from plga.model.configuration import PldrConfig
    from plga.training.plan import plan

    torch.set_num_threads(1)
    model, batch, context, how = CASES[name]
    config = PldrConfig(**model)
    processes = how.get("processes", 1)
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    train(PldrConfig(**SMALL), 2, 8, how)
    before = resident()
    train(config, batch, context, how)
    measured = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    peak = plan(config, batch, context, **how).peak
    end.send({"case": name, "planned": peak.total, "measured": measured, "moment": peak.moment})
    if processes > 1:
        dist.destroy_process_group()


def train(config: Any, batch: int, context: int, how: dict[str, Any]) -> None:
    """Two steps, which is as high as memory gets: in the first AdamW has no state yet."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from plga.model.modeling import PldrForCausalLM
    from plga.training.objective import next_token_loss

    class Objective(nn.Module):
        """A module of its own, because what distributes a model hooks into one call."""

        def __init__(self) -> None:
            super().__init__()
            self.model = PldrForCausalLM(config).train()

        def forward(self, windows: torch.Tensor) -> torch.Tensor:
            return next_token_loss(self.model, windows)

    torch.manual_seed(0)
    objective = Objective()
    if how.get("checkpointing") == "layers":
        objective.model.gradient_checkpointing_enable({"use_reentrant": False})
    step: nn.Module = objective
    if how.get("processes", 1) > 1 and how["strategy"] == "ddp":
        step = DistributedDataParallel(objective)
    elif how.get("processes", 1) > 1:
        for layer in objective.model.model.layers:
            fully_shard(layer)
        fully_shard(objective)
    optimizer = torch.optim.AdamW(objective.parameters(), fused=True)
    windows = torch.randint(config.vocab_size, (batch, context + 1))
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=how.get("precision") == "bf16"):
            loss = step(windows)
        loss.backward()
        optimizer.step()


def resident() -> int:
    """Resident memory of this process in bytes, from Linux's /proc."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
