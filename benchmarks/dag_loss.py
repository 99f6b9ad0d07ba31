"""The DAG regularizer against torch.linalg.matrix_exp with autograd: python benchmarks/dag_loss.py.

Forward and backward, at the shapes of the 110M model with a batch of 8: the matrices of one layer, and of all five.
Times are medians of runs that alternate; memory is the peak above what stood before the call, each in a process of its
own (Linux). On a machine with other work, OMP_WAIT_POLICY=passive keeps threads from spinning where they wait.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from plga.ops.acyclicity import dag_loss

SHAPES = {"one layer": (8, 14, 64, 64), "five layers": (5, 8, 14, 64, 64)}
LOSSES = (0.01, 1.0, 50.0)
LARGE_LOSSES = (1e4, 41460.0, 1e6)  # 41460 is the largest published for a trained checkpoint
THREADS = 2
REPETITIONS = 7
FASTER, SMALLER = 5.0, 0.5


def by_matrix_exp(m: Tensor) -> Tensor:
    trace = torch.linalg.matrix_exp(m * m).diagonal(dim1=-2, dim2=-1).sum(-1)
    return (trace / m.shape[-1]).log().abs()


METHODS: dict[str, Callable[[Tensor], Tensor]] = {"dag_loss": dag_loss, "matrix_exp": by_matrix_exp}


def matrices(shape: tuple[int, ...], loss: float) -> Tensor:
    """Normal numbers, scaled so that their mean loss is about ``loss``."""
    m = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    sample = m.flatten(0, -3)[:4]
    low, high = -20.0, 20.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if dag_loss(2.0**middle * sample).mean() < loss else (low, middle)
    return (2.0**low * m).requires_grad_()


def run(method: Callable[[Tensor], Tensor], m: Tensor) -> tuple[float, Tensor]:
    """Seconds of one forward and backward, and the losses."""
    m.grad = None
    start = time.perf_counter()
    loss = method(m)
    loss.mean().backward()
    return time.perf_counter() - start, loss.detach()


def alternating_medians(m: Tensor) -> dict[str, float]:
    for method in METHODS.values():
        run(method, m)
    times: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(REPETITIONS):
        for name, method in METHODS.items():
            times[name].append(run(method, m)[0])
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def resident(field: str) -> int:
    """kB of ``VmRSS`` (now) or ``VmHWM`` (the most since it was cleared) of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def peak_memory(method: str, shape: str, loss: float) -> float:
    """MB above the input, in this process: call it in a fresh one."""
    run(METHODS[method], torch.ones(2, 4, 4, requires_grad=True))  # what loads at the first call is not counted
    m = matrices(SHAPES[shape], loss)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again at what is resident now
    before = resident("VmRSS")
    run(METHODS[method], m)
    return (resident("VmHWM") - before) / 1024


def peak_memory_apart(method: str, shape: str, loss: float) -> float:
    command = [sys.executable, __file__, method, shape, str(loss)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def table(*columns: str) -> None:
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def met(reached: bool) -> str:
    return "met" if reached else "NOT met"


def main() -> None:
    torch.set_num_threads(THREADS)
    if len(sys.argv) > 1:
        method, shape, loss = sys.argv[1:]
        print(peak_memory(method, shape, float(loss)))
        return

    print(f"torch {torch.__version__}, {THREADS} threads, float32, median of {REPETITIONS}, forward and backward")
    table("matrices", "loss", "dag_loss", "matrix_exp", "times faster", f"at least {FASTER:g}")
    for name, shape in SHAPES.items():
        for loss in LOSSES:
            ours, theirs = alternating_medians(matrices(shape, loss)).values()
            times = f"{1e3 * ours:.1f} ms", f"{1e3 * theirs:.1f} ms", f"{theirs / ours:.1f}"
            row(name, f"{loss:g}", *times, met(theirs >= FASTER * ours))

    print("\nWhere the matrix exponential overflows:")
    table("matrices", "loss", "dag_loss", "finite loss and gradient", "finite loss of matrix_exp")
    for loss in LARGE_LOSSES:
        m = matrices(SHAPES["one layer"], loss)
        median = statistics.median(run(dag_loss, m)[0] for _ in range(REPETITIONS))
        finite = bool(run(dag_loss, m)[1].isfinite().all() and m.grad.isfinite().all())
        theirs_finite = bool(by_matrix_exp(m.detach()).isfinite().any())
        row("one layer", f"{loss:g}", f"{1e3 * median:.1f} ms", met(finite), "some" if theirs_finite else "none")

    print("\nPeak memory above the input:")
    table("matrices", "loss", "dag_loss", "matrix_exp", "ratio", f"at most {SMALLER:g}")
    for name in SHAPES:
        for loss in LOSSES:
            ours, theirs = (peak_memory_apart(method, name, loss) for method in METHODS)
            sizes = f"{ours:.1f} MB", f"{theirs:.1f} MB", f"{ours / theirs:.2f}"
            row(name, f"{loss:g}", *sizes, met(ours <= SMALLER * theirs))


if __name__ == "__main__":
    main()
