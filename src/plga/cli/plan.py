"""``plga plan``: memory and FLOPs of a training step, before it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plga.cli.units import readable_bytes, readable_flops

if TYPE_CHECKING:
    from plga.model.configuration import PldrConfig
    from plga.training.config import TrainSettings
    from plga.training.plan import Plan

DTYPES = ("float32", "bf16")


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A training YAML or a ready one (tiny, 110M, SDPA-110M, DAG-110M); a checkpoint folder, config.json.",
        ),
    ],
    batch: Annotated[
        int | None,
        typer.Option(help="Sequences that a process computes at once. By default what the YAML says, else 1."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens a sequence. By default as many as the model has positions.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, or bf16 (autocast). By default what the YAML says, else float32."),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes that train together.")] = 1,
    strategy: Annotated[str | None, typer.Option(help="ddp or fsdp2. By default what the YAML says, else ddp.")] = None,
    checkpointing: Annotated[
        str | None,
        typer.Option(help="What is recomputed: none, learner or layers. By default what the YAML says, else none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print bytes and FLOPs as JSON.")] = False,
) -> None:
    """Memory and FLOPs of a training step by part, and what a sequence needs in generation.

    Memory is that of one process, and on the CPU within 15 % of what was measured. Seconds are not planned.
    """
    import dataclasses
    import json

    from plga.training.plan import plan

    if dtype not in (None, *DTYPES):
        raise ValueError(f"--dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    config, settings = _read(source)
    recipe = settings.optimizer if settings else None
    accumulate = recipe.accumulate if recipe else 1
    if batch is None:
        batch = _batch(recipe.batch, processes, accumulate) if recipe else 1
    chosen: dict[str, Any] = {
        "batch": batch,
        "context": config.max_position_embeddings if context is None else context,
        "precision": dtype or (recipe.precision if recipe else "float32"),
        "checkpointing": checkpointing or (recipe.checkpointing if recipe else "none"),
        "processes": processes,
        "strategy": strategy or (settings.distributed.strategy if settings else "ddp"),
        "accumulate": accumulate,
    }
    planned = plan(config, **chosen)
    unplanned = _unplanned(config, settings)
    if as_json:
        values = dataclasses.asdict(planned)
        values["peak"]["total"] = planned.peak.total
        typer.echo(json.dumps({"settings": chosen, **values, "not planned": unplanned}, indent=1))
    else:
        _print(source, config, chosen, planned, unplanned)


def _read(source: str) -> "tuple[PldrConfig, TrainSettings | None]":
    """The model's configuration, and the settings of its training if there are some."""
    path = Path(source)
    if path.is_dir() or path.suffix == ".json":
        from plga.model.checkpoint import load_config

        return load_config(path), None
    from plga.training.config import TrainSettings, load

    settings = load(source)
    if not isinstance(settings, TrainSettings):
        raise ValueError(f"{source}: model.adopted is {settings.model.adopted!r}, but only PLDR-LLMs can be planned")
    return settings.model.config(), settings


def _batch(whole: int, processes: int, accumulate: int) -> int:
    parts = max(processes, 1) * accumulate
    if whole % parts:
        raise ValueError(
            f"optimizer.batch is {whole}, expected a multiple of {processes} processes x optimizer.accumulate = "
            f"{accumulate}; or pass --batch"
        )
    return whole // parts


def _unplanned(config: "PldrConfig", settings: "TrainSettings | None") -> list[str]:
    """What these settings ask for that the plan does not count."""
    unplanned = []
    if config.attention_dropout:
        unplanned.append("attention_dropout: a kernel that keeps [S, S] scores may take over")
    if settings is None:
        return unplanned
    dag = settings.objective.dag
    if any((dag.metric, dag.potential, dag.curvature)):
        unplanned.append("objective.dag: what the regularizer keeps of [B, H, d, d] tensors")
    if settings.objective.alignment.coefficient:
        unplanned.append("objective.alignment: the operators of the blocks")
    if settings.data.packing == "padded":
        unplanned.append("data.packing padded: the masks, and queries with the padding taken out")
    if settings.optimizer.compile:
        unplanned.append("optimizer.compile: what the compiler keeps or recomputes")
    return unplanned


def _print(source: str, config: "PldrConfig", chosen: dict[str, Any], planned: "Plan", unplanned: list[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from plga.training.plan import Flops

    console = Console(highlight=False, width=None if Console().is_terminal else 110)
    work = f"{chosen['batch']:,} x {chosen['context']:,} tokens, {chosen['precision']}"
    if chosen["accumulate"] > 1:
        work += f", {chosen['accumulate']} such parts a step"
    if chosen["checkpointing"] != "none":
        work += f", {chosen['checkpointing']} recomputed"
    if chosen["processes"] > 1:
        work += f", one of {chosen['processes']} processes ({chosen['strategy']})"

    table = Table(title=escape(f"{source}: {work}"))
    table.add_column("part, all layers")
    for name in ("numbers", "activations kept", "forward", "backward"):
        table.add_column(name, justify="right")
    nothing = Flops(0, 0)
    for name in dict.fromkeys((*planned.numbers, *planned.activations)):
        numbers, bytes_kept = planned.numbers.get(name), planned.activations.get(name)
        flops = planned.flops.get(name, nothing)
        table.add_row(
            name,
            f"{numbers:,}" if numbers else "",
            readable_bytes(bytes_kept) if bytes_kept else "",
            readable_flops(flops.forward) if flops.forward else "",
            readable_flops(flops.backward) if flops.backward else "",
        )
    forward, backward = (sum(getattr(f, way) for f in planned.flops.values()) for way in ("forward", "backward"))
    kept = sum(planned.activations.values())
    table.add_section()
    table.add_row(
        "total",
        f"{sum(planned.numbers.values()):,}",
        readable_bytes(kept),
        readable_flops(forward),
        readable_flops(backward),
    )
    console.print(table)

    peak = planned.peak
    memory = Table(title="Memory of a process")
    for name in ("", "whole", "at the peak"):
        memory.add_column(name, justify="left" if not name else "right")
    for name, whole, then in (
        ("parameters", planned.parameters, peak.parameters),
        ("gradients", planned.gradients, peak.gradients),
        ("AdamW state", planned.optimizer, peak.optimizer),
        ("activations", kept, peak.activations),
        ("temporaries", None, peak.temporaries),
        ("exchanged with other processes", None, peak.communication),
    ):
        if whole or then:
            memory.add_row(name, "" if whole is None else readable_bytes(whole), readable_bytes(then))
    memory.add_section()
    memory.add_row("total", "", readable_bytes(peak.total))
    console.print(memory)
    console.print(f"peak: {peak.moment}")
    console.print(
        f"FLOPs: {readable_flops(forward + backward)} a step of a process, "
        f"{readable_flops((forward + backward) / planned.tokens)} a token (matrix products; seconds are not planned)"
    )

    kind = "bfloat16" if chosen["precision"] == "bf16" else "float32"
    generation = Table(title=f"Kept in generation by {chosen['batch']:,} x {chosen['context']:,} tokens, {kind} model")
    for name in planned.generation:
        generation.add_column(name, justify="right")
    generation.add_row(*map(readable_bytes, planned.generation.values()))
    console.print(generation)
    heads, width = config.num_attention_heads, config.head_dim
    whose = "a layer" if config.operator == "constant" else "a layer and sequence"
    whose += " and chunk" if config.gram == "chunked" else ""
    console.print(
        f"G_LM is [H, d, d] {whose}, not [S, S]: {heads} x {width} x {width} x 4 B = "
        f"{readable_bytes(planned.curvature)}, whatever the context"
    )
    for line in unplanned:
        console.print(f"not planned: {line}", markup=False)
