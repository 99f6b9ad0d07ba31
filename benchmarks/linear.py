"""Our linear layer beside PyTorch's, float32, no gradients, in one run: python benchmarks/linear.py [--threads 2].

First all linear layers of the 110M shapes (arXiv:2502.13502) but the head, by the number of rows; then one row by one
layer of several sizes.
"""

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import median

import torch
from decode import in_turn
from processor import processor
from torch import Tensor, nn

from plga.model.configuration import PldrConfig
from plga.model.linear import Linear

ROWS, SQUARES, CALLS = (1, 2, 4, 8, 16, 17), (256, 512, 896), 100


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds, after one to warm up")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    rounds = arguments.rounds
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"{arguments.threads} thread(s) on {processor()}, torch {torch.__version__}\n")
    config = PldrConfig()
    width, inner = config.hidden_size, config.intermediate_size
    assert inner is not None
    layer = [(width, width)] * 4 + [(width, inner)] * 2 + [(inner, width)]
    print("| layers | rows | PyTorch, ms | ours, ms | times faster |\n|---|---|---|---|---|")
    for rows in ROWS:
        row(f"of the 110M model | {rows}", compare(layer * config.num_hidden_layers, rows, 1, rounds))
    row(f"its head, {width} x {config.vocab_size} | 1", compare([(width, config.vocab_size)], 1, 1, rounds))
    for size in SQUARES:
        row(f"{size} x {size} | 1", compare([(size, size)], 1, CALLS, rounds))


def compare(shapes: Sequence[tuple[int, int]], rows: int, calls: int, rounds: int) -> tuple[float, float]:
    """Milliseconds of each row through all layers of these shapes, PyTorch's and ours by turns."""
    given = {width: torch.randn(rows, width) for width, _ in shapes}
    layers = {kind: [kind(*shape) for shape in shapes] for kind in (nn.Linear, Linear)}
    seconds = in_turn({kind: partial(through, made, given, calls) for kind, made in layers.items()}, rounds)
    theirs, ours = (1e3 * median(taken) / calls for taken in seconds.values())
    return theirs, ours


def through(layers: Iterable[nn.Linear], given: dict[int, Tensor], calls: int) -> None:
    for _ in range(calls):
        for layer in layers:
            layer(given[layer.in_features])


def row(name: str, milliseconds: tuple[float, float]) -> None:
    theirs, ours = milliseconds
    print(f"| {name} | {theirs:.3g} | {ours:.3g} | {theirs / ours:.2f} |")


if __name__ == "__main__":
    main()
