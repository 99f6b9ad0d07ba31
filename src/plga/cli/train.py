"""``plga train``: train a PLDR-LLM, or an adopted model, from one YAML."""

from typing import Annotated

import typer


def command(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="A YAML file, or a ready one: tiny, 110M, SDPA-110M, DAG-110M.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings over it, as optimizer.steps=100.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print every setting that would be used, and stop.")] = False,
) -> None:
    """Train a PLDR-LLM from one YAML, and say while it runs how near-critical it is.

    With model.adopted, train an adopted model on, or its operators alone.

    Interrupted or killed, it goes on from its newest checkpoint when started again, and ends in the
    same bits. Several processes: start it with torchrun or accelerate launch.
    """
    import yaml

    from plga.training.config import AdoptedTrainSettings, load

    settings = load(config, overrides or ())
    if show:
        typer.echo(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), nl=False)
        return

    from plga.cli.training_progress import TrainingProgress
    from plga.training.run import train

    progress = TrainingProgress(settings)
    with progress:
        trained = train(settings, [progress.callback])
    left = {"trained model": "final"}
    if settings.logging.steadiest:
        left["steadiest"] = "steadiest"
    if isinstance(settings, AdoptedTrainSettings) and settings.model.trainable == "operators":
        left["operators"] = "operators.safetensors"
    for label, name in left.items():
        progress.console.print(f"{label:<13}  {trained.output}/{name}", highlight=False, markup=False, soft_wrap=True)
