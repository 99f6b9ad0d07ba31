"""Two runs over the same prompts, and what a cache keeps of them: what the published order parameter compares.

A run continues every prompt by sampled tokens and ends in the deductive outputs of the whole. The two runs draw other
tokens, the cache stands at the prompt. That a run is a sampled continuation is our reading of arXiv:2603.23539.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from plga.criticality.order_parameter import SYMBOLS, Deductive, OrderParameter, deductive_outputs, order_parameter
from plga.model.atomic import new_file
from plga.model.files import first, read_safetensors_file
from plga.model.modeling import PldrForCausalLM


class Runs(NamedTuple):
    """Deductive outputs of two runs and of the cache over the same N prompts, each tensor [N, L, H, d, d]."""

    run_1: Deductive
    run_2: Deductive
    cached: Deductive


def sample_runs(model: PldrForCausalLM, prompts: Sequence[Tensor], new_tokens: int, seed: int = 0) -> Runs:
    """Continue every prompt twice, the operator rebuilt at each token, and compare with the prompt alone.

    Args:
        model: with a learned operator.
        prompts: N >= 2 rows of token ids, each [S] of its own length, none of it padding.
        new_tokens: sampled a run and prompt, at temperature 1 from the whole vocabulary, never ending early.
        seed: of both runs; the state of the global random numbers stays as it was.

    Raises:
        ValueError: a constant operator, fewer than two prompts, or a prompt without room for ``new_tokens``.
    """
    context = model.config.max_position_embeddings
    if len(prompts) < 2:
        raise ValueError(f"{len(prompts)} prompts, expected at least 2: one alone does not fluctuate")
    for number, prompt in enumerate(prompts, start=1):
        if not 1 <= len(prompt) <= context - new_tokens:
            raise ValueError(
                f"prompt {number} has {len(prompt)} tokens, expected 1 to {context - new_tokens}: "
                f"context {context} less {new_tokens} new tokens"
            )
    cached = _by_length(prompts, lambda batch: deductive_outputs(model, batch))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        run_1, run_2 = (
            _by_length(prompts, lambda batch: deductive_outputs(model, _continued(model, batch, new_tokens)))
            for _ in range(2)
        )
    return Runs(run_1, run_2, cached)


def order_parameters(runs: Runs) -> dict[str, OrderParameter]:
    """Every statistic of every deductive output, by its symbol: A, A_LM, A_P, G_LM."""
    return {symbol: order_parameter(*(getattr(run, name) for run in runs)) for symbol, name in SYMBOLS.items()}


def save_runs(runs: Runs, file: Path, overwrite: bool = False) -> None:
    """Write the runs to a safetensors file, under the names ``run_1.generator``, ..., ``cached.curvature``.

    Raises:
        FileExistsError: the file exists and ``overwrite`` is False.
        OSError: a full disk, and whatever else the file system says.
    """
    tensors = {
        f"{run}.{name}": tensor.contiguous()
        for run, outputs in runs._asdict().items()
        for name, tensor in outputs._asdict().items()
    }
    with new_file(file, overwrite) as temporary:
        save_file(tensors, temporary, {"format": "pt"})


def load_runs(file: Path) -> Runs:
    """Read what :func:`save_runs` wrote, or anyone else under these names.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no safetensors file, a name that is missing or unknown, or tensors of other than one shape.
    """
    tensors = read_safetensors_file(file)
    names = [f"{run}.{name}" for run in Runs._fields for name in Deductive._fields]
    if differing := sorted(tensors.keys() ^ set(names)):
        raise ValueError(
            f"{file}: missing or unknown: {first(differing)}; expected {names[0]}, ..., {names[-1]} "
            f"({', '.join(Runs._fields)} by {', '.join(Deductive._fields)})"
        )
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    if len(shapes) > 1 or len(shape := shapes.pop()) != 5:
        raise ValueError(f"{file}: expected every tensor [N, L, H, d, d] of one shape")
    if shape[0] < 2:
        raise ValueError(f"{file}: tensors of {list(shape)}, expected N >= 2 inputs: one alone does not fluctuate")
    return Runs(*(Deductive(*(tensors[f"{run}.{name}"] for name in Deductive._fields)) for run in Runs._fields))


def _by_length(prompts: Sequence[Tensor], compute: Callable[[Tensor], Deductive]) -> Deductive:
    """``compute`` on batches of equally long prompts, so that nothing is padded; in the order of the prompts."""
    found: dict[int, list[Tensor]] = {}
    for length in sorted({len(prompt) for prompt in prompts}):
        places = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        outputs = compute(torch.stack([prompts[i] for i in places]))
        found |= {place: [tensor[row] for tensor in outputs] for row, place in enumerate(places)}
    return Deductive(*(torch.stack(tensors) for tensors in zip(*(found[i] for i in range(len(prompts))), strict=True)))


def _continued(model: PldrForCausalLM, prompts: Tensor, new_tokens: int) -> Tensor:
    """The prompts [N, S] and sampled tokens after each, [N, S + new_tokens]."""
    return model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        operator_mode="recompute",
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
    )
