"""A sweep as plain data: a training run, and the axes along which copies of it differ."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from plga.training import config
from plga.training.config import TrainSettings
from plga.training.settings import Settings, overridden, read_yaml

_Positive = Annotated[int, Field(ge=1)]
_LearningRate = Annotated[float, Field(gt=0)]
_Warmup = Annotated[float, Field(ge=0)]
_Seed = Annotated[int, Field(ge=0, lt=2**32)]
_OF_OPTIMIZER = ("learning_rate", "warmup", "seed")
_LOGGING = {"keep": 1, "steadiest": False, "report_to": []}  # of every run: a sweep keeps one model


class Point(NamedTuple):
    """One combination of the axes."""

    learning_rate: float
    warmup: float
    size: str
    seed: int

    def __str__(self) -> str:
        return f"learning rate {self.learning_rate:g}, warmup {self.warmup:g}, size {self.size}, seed {self.seed}"


class Axes(Settings):
    """Along what the runs differ; an axis that is left out keeps the value of the base.

    Args:
        learning_rate: maximum learning rates.
        warmup: in steps; below 1 (but not 0), shares of the steps.
        size: model fields by the name of a size, as ``wide: {hidden_size: 128, num_attention_heads: 4}``.
        seed: of the initialization and of the data order.
    """

    learning_rate: list[_LearningRate] | None = Field(None, min_length=1)
    warmup: list[_Warmup] | None = Field(None, min_length=1)
    size: dict[str, dict[str, Any]] | None = Field(None, min_length=1)
    seed: list[_Seed] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for name in _OF_OPTIMIZER:
            values = getattr(self, name) or []
            if len(set(values)) < len(values):
                raise ValueError(f"axes.{name} is {values}, expected each value once")
        return self


class SweepSettings(Settings):
    """A search over learning rate, warmup, size and seed.

    Args:
        name: of the sweep in its storage, which may hold several.
        base: a training configuration, a file or a ready one.
        settings: over it, by section: what is common to all runs.
        axes: what differs.
        sampler: ``grid``, every combination once; ``random`` or ``tpe``, as many as ``trials``: learning rate (in its
            logarithm) and warmup between the smallest and the largest of their axis, size and seed from theirs.
            ``tpe`` looks for a small order parameter and a small validation loss.
        trials: runs of a sampled sweep.
        seed: of the sampler.
        workers: processes at a time on this machine, each with its share of the processors.
    """

    name: str = Field("sweep", min_length=1)
    base: str
    settings: dict[str, Any] = {}
    axes: Axes
    sampler: Literal["grid", "random", "tpe"] = "grid"
    trials: _Positive | None = None
    seed: int = Field(0, ge=0, lt=2**31)
    workers: _Positive = 1

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if self.sampler == "grid" and self.trials is not None:
            raise ValueError(f"trials is {self.trials}, but sampler grid takes every combination: leave trials out")
        if self.sampler != "grid" and self.trials is None:
            raise ValueError(f"trials is missing, expected how many runs sampler {self.sampler} takes")
        return self


class Sweep:
    """A sweep whose runs are known to be possible.

    Args:
        settings: what was asked for.

    Attributes:
        axes: values of every axis, those of the base where the settings leave one out.

    Raises:
        FileNotFoundError, ValueError: a base that cannot be read, or a combination that cannot be trained, named.
    """

    def __init__(self, settings: SweepSettings) -> None:
        self.settings = settings
        axes = settings.axes
        merged = _merged(config.load(settings.base).model_dump(), settings.settings, "settings")
        # With a value of each axis in it already: its own need not go together with the settings.
        of_axes = {name: min(values) for name in _OF_OPTIMIZER if (values := getattr(axes, name))}
        merged = _merged(merged, {"optimizer": of_axes, "logging": _LOGGING}, "axes")
        self.base = TrainSettings.checked(merged, f"settings of the sweep over {settings.base}")
        if self.base.model.operator != "learned":
            raise ValueError(
                f"{settings.base}: its operator is constant, expected learned: a constant does not collapse"
            )
        recipe = self.base.optimizer
        self.learning_rates = sorted(axes.learning_rate or [recipe.learning_rate])
        self.warmups = sorted(axes.warmup or [recipe.warmup])
        self.sizes = dict(axes.size or {"base": {}})
        self.seeds = list(axes.seed or [recipe.seed])
        for size in self.sizes:
            for warmup in self.warmups:
                self.run(Point(self.learning_rates[0], warmup, size, self.seeds[0]), Path("runs"))

    @property
    def count(self) -> int:
        """How many runs it has."""
        return self.settings.trials or sum(1 for _ in self.grid())

    def grid(self) -> Iterator[Point]:
        """Every combination; seed by seed, so that a sweep that is cut short has seen the whole plane."""
        for seed in self.seeds:
            for size in self.sizes:
                for learning_rate in self.learning_rates:
                    for warmup in self.warmups:
                        yield Point(learning_rate, warmup, size, seed)

    def run(self, point: Point, output: Path) -> TrainSettings:
        """Settings of the run at a point, which writes to ``output``.

        Raises:
            ValueError: a combination that cannot be trained.
        """
        changes = {
            "model": self.sizes[point.size],
            "optimizer": {"learning_rate": point.learning_rate, "warmup": point.warmup, "seed": point.seed},
            "logging": {"output": output},
        }
        values = _merged(self.base.model_dump(), changes, f"size {point.size}")
        return TrainSettings.checked(values, str(point))

    def identity(self) -> dict[str, Any]:
        """What makes two sweeps the same, JSON-able; where it runs, and on how many processes, does not."""
        base = self.base.model_dump(mode="json")
        del base["logging"]["output"]
        for name in _OF_OPTIMIZER:
            del base["optimizer"][name]
        return {
            "base": base,
            "learning_rate": self.learning_rates,
            "warmup": self.warmups,
            "size": self.sizes,
            "seed": self.seeds,
            "sampler": self.settings.sampler,
            "trials": self.settings.trials,
            "sampler_seed": self.settings.seed,
        }


def ready() -> list[str]:
    """Names of the sweeps that come with the package."""
    return sorted(f.name.removesuffix(".yaml") for f in _folder().iterdir() if f.name.endswith(".yaml"))


def load(source: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep of a YAML file, or a ready one by its name, with ``key=value`` over its settings.

    Raises:
        FileNotFoundError, ValueError: no such file or sweep, or a setting that is wrong, each named.
    """
    if str(source) in ready():
        with resources.as_file(_folder() / f"{source}.yaml") as file:
            values = read_yaml(file)
    elif Path(source).exists():
        values = read_yaml(Path(source))
    else:
        raise FileNotFoundError(f"{source}: no such file, and no ready sweep ({', '.join(ready())})")
    return Sweep(SweepSettings.checked(overridden(values, overrides), str(source)))


def _folder() -> Any:
    return resources.files("plga.criticality") / "configs"


def _merged(base: dict[str, Any], changes: dict[str, Any], where: str) -> dict[str, Any]:
    """``base`` with the sections of ``changes`` over its own, key by key, however deep."""
    merged = dict(base)
    for key, value in changes.items():
        if isinstance(merged.get(key), dict):
            if not isinstance(value, dict):
                raise ValueError(f"{where}: {key} is {value!r}, expected a section with settings by name")
            merged[key] = _merged(merged[key], value, where)
        else:
            merged[key] = value
    return merged
