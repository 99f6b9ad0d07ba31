"""``plga eval``: tasks of lm-evaluation-harness, under one protocol or both."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 110  # where there is no terminal to ask
_PROTOCOLS = ("auto", "block", "sequential", "both")


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint folder (ours or published) or a published .pth file.")
    ],
    tasks: Annotated[
        str, typer.Option(help="Names that lm-evaluation-harness knows, and task files (.yaml), with commas between.")
    ],
    protocol: Annotated[
        str,
        typer.Option(
            help="block: one pass; sequential: a call a token, as the model generates; both: what differs; auto: block "
            "where it is proved or measured to be the same."
        ),
    ] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the results here (.json).")] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder of answers (SQLite), from which an evaluation that was interrupted goes on. By default, with "
            "--out, beside it."
        ),
    ] = None,
    batch_size: Annotated[str, typer.Option(help="Rows a pass, or auto: as many as fit into memory.")] = "8",
    device: Annotated[str | None, typer.Option(help="Device, as PyTorch names it; by default cuda if there is.")] = (
        None
    ),
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "float32",
    limit: Annotated[int | None, typer.Option(min=1, help="Documents a task.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="Examples before each question.")] = None,
    gen_kwargs: Annotated[
        str | None, typer.Option(help="Settings of generation over those of the tasks, such as max_gen_toks=64.")
    ] = None,
    include_path: Annotated[Path | None, typer.Option(help="Folder of further task files.")] = None,
    threshold: Annotated[
        float, typer.Option(min=0.0, help="auto: largest difference on a token that passes for none, in nats.")
    ] = 1e-3,
    order_parameter: Annotated[
        bool, typer.Option("--order-parameter", help="Also measure the published order parameter.")
    ] = False,
    confirm_unsafe_code: Annotated[
        bool, typer.Option("--confirm-unsafe-code", help="Run tasks that execute what the model writes.")
    ] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer, if the checkpoint has none beside it.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --out: replace a file that exists.")] = False,
) -> None:
    """Evaluate a checkpoint on tasks of lm-evaluation-harness (the extra eval)."""
    if protocol not in _PROTOCOLS:
        raise ValueError(f"--protocol is {protocol!r}, expected one of {', '.join(_PROTOCOLS)}")
    if batch_size != "auto" and not (batch_size.isdecimal() and int(batch_size)):
        raise ValueError(f"--batch-size is {batch_size!r}, expected a number >= 1, or auto")
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--tasks is {tasks!r}, expected names with commas between")
    if out is not None and out.suffix != ".json":
        raise ValueError(f"--out is {out}, expected a name that ends in .json")
    if out is not None and out.exists() and not overwrite:
        raise FileExistsError(f"{out} exists, expected a new file, or --overwrite")
    for file in names:
        if file.endswith((".yaml", ".yml")) and not Path(file).is_file():
            raise FileNotFoundError(f"{file}: no such file, expected a task file")

    import logging

    from rich.console import Console

    from plga.scoring.report import write_json

    try:
        from plga.scoring.evaluation import evaluate
        from plga.scoring.harness import PlgaLM
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise ValueError("lm-evaluation-harness is not installed; pip install 'plga[eval]'") from error

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    lm = PlgaLM(
        str(checkpoint),
        tokenizer=None if tokenizer is None else str(tokenizer),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        threshold=threshold,
    )
    if cache is None and out is not None:
        cache = out.with_suffix(".cache")
    results = evaluate(
        lm,
        names,
        ("block", "sequential") if protocol == "both" else (protocol,),
        cache,
        limit,
        num_fewshot,
        gen_kwargs,
        include_path,
        confirm_unsafe_code,
    )
    console = Console(width=None if Console().is_terminal else _WIDTH, highlight=False)
    _print(results, console)
    if order_parameter:
        results["order_parameter"] = _order_parameter(checkpoint, tokenizer, lm.model.config.operator, console)
    if out is not None:
        write_json({"checkpoint": checkpoint.name, "context": lm.max_length, "dtype": dtype, **results}, out, overwrite)
        console.print(f"wrote {out}", markup=False, soft_wrap=True)


def _print(results: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    protocols = results["protocols"]
    table = Table()
    for name in ("task", "metric", *protocols):
        table.add_column(name, justify="left" if name in ("task", "metric") else "right")
    for task, metrics in next(iter(protocols.values()))["tasks"].items():
        for metric in metrics:
            name = metric.partition(",")[0]
            if not name.endswith("_stderr"):
                cells = [_cell(found["tasks"][task], metric) for found in protocols.values()]
                table.add_row(task, name, *cells)
    console.print(table)
    for protocol, found in protocols.items():
        for kind, check in found["checks"].items():
            console.print(
                f"{protocol}, {kind}: {'block' if check['passed'] else 'sequential'}, as both differ by at most "
                f"{check['largest']:.1e} nats on one of {check['tokens']} tokens of {check['items']} requests; "
                f"threshold {check['threshold']:g}",
                markup=False,
                soft_wrap=True,
            )
        if found["truncated"]:
            console.print(f"{protocol}: {found['truncated']} requests lost the beginning of their context")
    for task, compared in results["comparison"].items():
        if (choices := compared.get("choices")) is not None:
            console.print(
                f"{task}: argmax changes {choices['argmax_changes']} of {choices['questions']}; right by block alone "
                f"{choices['block_only']}, by sequential alone {choices['sequential_only']}; gap at half the margin or "
                f"more {choices['half_margin']}; largest gap {choices['largest_gap']:.1e} nats, of MC2 "
                f"{choices['largest_mc2_gap']:.1e}",
                markup=False,
                soft_wrap=True,
            )


def _cell(metrics: dict[str, Any], metric: str) -> str:
    value, name = metrics[metric], metric.partition(",")
    error = metrics.get(f"{name[0]}_stderr,{name[2]}")
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:.4f} ± {error:.4f}" if isinstance(error, float) else f"{value:.4f}"


def _order_parameter(
    checkpoint: Path, tokenizer: Path | None, operator: str, console: "Console"
) -> dict[str, float | str] | None:
    """RMSE_1C / abs(mean) of G_LM, as plga criticality measures it by default; None of a constant operator."""
    from plga.cli.criticality import sampled
    from plga.criticality.regimes import RMSE_OVER_ABS_MEAN, regime, stated
    from plga.criticality.runs import order_parameters

    if operator != "learned":
        console.print("order parameter: none, as a constant operator does not fluctuate")
        return None
    runs = sampled(checkpoint, None, None, 0, tokenizer)
    value = order_parameters(runs)["G_LM"].rmse_1c_over_abs_mean
    found = regime(value, thresholds=RMSE_OVER_ABS_MEAN)
    console.print(
        f"order parameter: RMSE_1C / |mean| of G_LM {value:.1e} over {len(runs.run_1.curvature)} prompts, {found} "
        f"({stated(RMSE_OVER_ABS_MEAN)})",
        markup=False,
        soft_wrap=True,
    )
    return {"rmse_1c_over_abs_mean": value, "regime": found}
