"""``plga info``: what a checkpoint is."""

from pathlib import Path
from typing import Annotated

import typer

from plga.cli.units import readable_bytes


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint folder (ours or published) or a published .pth file.")
    ],
) -> None:
    """Architecture, parameters by part, operator, and memory by context length of a checkpoint."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from plga.model.checkpoint import load_model
    from plga.model.sizes import bytes_per_sequence, parameters_by_part

    model = load_model(checkpoint)
    config = model.config
    console = Console(highlight=False)

    architecture = Table(title=escape(str(checkpoint)), show_header=False)
    operator = config.operator if config.operator == "learned" else f"constant ({config.constant})"
    modes = ", ".join((*config.modes, *(("constant (frozen on a text)",) if config.operator == "learned" else ())))
    for name, value in (
        ("layers", config.num_hidden_layers),
        ("heads x width", f"{config.num_attention_heads} x {config.head_dim}"),
        ("d_model, FFN", f"{config.hidden_size}, {config.intermediate_size}"),
        ("vocabulary", config.vocab_size),
        ("context", config.max_position_embeddings),
        ("rotary pairs", "interleaved" if config.rope_interleaved else "half"),
        ("operator", operator),
        ("modes", modes),
    ):
        architecture.add_row(name, str(value))
    if config.operator == "learned":
        units = f"{config.num_metric_units} residual units x {config.num_metric_blocks} SwiGLU blocks"
        architecture.add_row("metric learner", f"{units}, A_dff {config.metric_intermediate_size}")
    console.print(architecture)

    parts = Table(title="Numbers in the checkpoint")
    parts.add_column("part")
    parts.add_column("count", justify="right")
    counts = parameters_by_part(model)
    for name, count in (*counts.items(), ("total", sum(counts.values()))):
        parts.add_row(name, f"{count:,}")
    console.print(parts)

    memory = Table(title=f"Memory of one sequence ({str(model.dtype).removeprefix('torch.')})")
    memory.add_column("tokens", justify="right")
    sizes = {n: bytes_per_sequence(config, n, model.dtype) for n in _lengths(config.max_position_embeddings)}
    for name in next(iter(sizes.values())):
        memory.add_column(name, justify="right")
    for tokens, by_name in sizes.items():
        memory.add_row(f"{tokens:,}", *(readable_bytes(size) for size in by_name.values()))
    console.print(memory)


def _lengths(context: int) -> list[int]:
    return sorted({max(1, context // 8), max(1, context // 4), max(1, context // 2), context})
