"""Everything a training run is made of, in one YAML; the defaults are the published recipe."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, create_model, field_validator, model_validator
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from plga.model.configuration import PldrConfig
from plga.training.data.settings import DataSettings
from plga.training.recipe import Recipe
from plga.training.settings import Settings, overridden, read_yaml

_Positive = Annotated[int, Field(ge=1)]
_Weight = Annotated[float, Field(ge=0)]

_MODEL_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "metric_intermediate_size",
    "num_metric_units",
    "num_metric_blocks",
    "max_position_embeddings",
    "layer_norm_eps",
    "attention_dropout",
    "rope_theta",
    "rope_interleaved",
    "operator",
    "constant",
    "constant_seed",
    "operator_initialization",
    "metric_initialization",
    "gram",
    "gram_chunk",
)


class _ModelSettings(Settings):
    """Fields of PldrConfig, by their names there."""

    if TYPE_CHECKING:  # of those that are made below, what others read
        vocab_size: int = 0
        max_position_embeddings: int = 0
        operator: str = ""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.config()
        if getattr(self, "operator", None) == "constant" and getattr(self, "constant", None) == "external":
            raise ValueError("model.constant is 'external', expected identity or random: training has none to load")
        return self

    def config(self, **tokens: int | None) -> PldrConfig:
        """The configuration; ``tokens`` are its special ids."""
        return PldrConfig(**self.model_dump(), **tokens)


_fields: dict[str, Any] = {
    name: (PldrConfig.__annotations__[name], getattr(PldrConfig, name)) for name in _MODEL_FIELDS
}
ModelSettings = create_model("ModelSettings", __base__=_ModelSettings, **_fields)


class AdoptedSettings(Settings):
    """An adopted model that is trained on.

    Args:
        adopted: the directory of an adopted model, with its tokenizer, as ``plga adopt`` writes it.
        trainable: ``operators``, and no other weight moves a bit, or ``all`` weights.
        context: S, tokens of a window.
    """

    adopted: str = Field(min_length=1)
    trainable: Literal["operators", "all"] = "operators"
    context: int = Field(1024, ge=1)


class DagSettings(Settings):
    """DAG regularizer: a coefficient for each of A_LM, A_P and G_LM, and how they rise from zero.

    Args:
        metric, potential, curvature: of A_LM, A_P, G_LM.
        schedule: ``constant``, or a ``linear`` or ``cosine`` rise from zero over the first ``rise`` of the steps.
        rise: share of the steps after which the coefficients are whole.
    """

    metric: _Weight = 0.0
    potential: _Weight = 0.0
    curvature: _Weight = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    rise: float = Field(1.0, gt=0, le=1)


class AlignmentSettings(Settings):
    """Gram alignment: penalty on the relative difference between the operators of equal blocks and of the whole."""

    coefficient: _Weight = 0.0
    blocks: int = Field(4, ge=2)


class ObjectiveSettings(Settings):
    """What is minimized beside the block cross-entropy."""

    dag: DagSettings = DagSettings()
    alignment: AlignmentSettings = AlignmentSettings()


class ExponentGuard(Settings):
    """While an exponent P exceeds ``limit`` in magnitude, the gradient of P is clipped by value at ``clip_at``."""

    limit: float = Field(2.0, gt=0)
    clip_at: float = Field(0.1, gt=0)


class CycleGuard(Settings):
    """Where ρ(A_LM) / σ₁(A_LM) exceeds ``limit``, the DAG coefficients grow by ``factor`` a look, up to ``cap``.

    A coefficient that is zero stays zero: then the guard only reports.
    """

    limit: float = Field(0.99, gt=0)
    factor: float = Field(2.0, gt=1)
    cap: float = Field(1.0, gt=0)


class DragonKingGuard(Settings):
    """A loss more than ``deviations`` standard deviations above the mean of the last ``history`` steps is an event."""

    deviations: float = Field(6.0, gt=0)
    history: int = Field(100, ge=10)


class GuardSettings(Settings):
    """Thresholds of the guards. The one for non-finite numbers has none: it always stops the run."""

    exponent: ExponentGuard = ExponentGuard()
    cycles: CycleGuard = CycleGuard()
    dragon_king: DragonKingGuard = DragonKingGuard()


class LoggingSettings(Settings):
    """Where a run writes to, and how often it looks at itself.

    Args:
        output: folder of the run: checkpoints, logs, the trained model.
        every: steps between log lines.
        probe_every: steps between looks at the order parameter and the validation loss.
        probe_windows: validation windows of each of these two, >= 2.
        save_every: steps between checkpoints.
        keep: checkpoints kept, the newest.
        steadiest: also keep the model whose operator fluctuated least on the probe.
        report_to: trackers of Transformers' Trainer.
    """

    output: Path = Path("runs/train")
    every: _Positive = 10
    probe_every: _Positive = 100
    probe_windows: int = Field(16, ge=2)
    save_every: _Positive = 1000
    keep: _Positive = 3
    steadiest: bool = False
    report_to: list[str] = ["tensorboard"]

    @field_validator("report_to")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        unknown = set(names) - INTEGRATION_TO_CALLBACK.keys()
        if unknown:
            raise ValueError(
                f"{sorted(unknown)} unknown, expected some of {', '.join(sorted(INTEGRATION_TO_CALLBACK))}"
            )
        return names


class DistributedSettings(Settings):
    """With more than one process: replicas (``ddp``), or parameters sharded over them (``fsdp2``)."""

    strategy: Literal["ddp", "fsdp2"] = "ddp"


class RunSettings(Settings):
    """A training run of any model; what ``model`` holds says which, and each has a class of its own."""

    model: ModelSettings | AdoptedSettings
    data: DataSettings = DataSettings()
    optimizer: Recipe = Recipe()
    objective: ObjectiveSettings = ObjectiveSettings()
    guards: GuardSettings = GuardSettings()
    logging: LoggingSettings = LoggingSettings()
    distributed: DistributedSettings = DistributedSettings()

    @property
    def context(self) -> int:
        """S, tokens of a window."""
        return self.model.context if isinstance(self.model, AdoptedSettings) else self.model.max_position_embeddings


class TrainSettings(RunSettings):
    """A training run of a new PLDR-LLM."""

    model: ModelSettings = ModelSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        model, objective = self.model.config(), self.objective
        dag = objective.dag
        if model.operator == "constant" and (dag.metric or dag.potential or dag.curvature):
            raise ValueError("objective.dag has a coefficient, but a constant operator has nothing to regularize")
        if objective.alignment.coefficient and (model.operator == "constant" or model.gram == "chunked"):
            raise ValueError(
                "objective.alignment.coefficient needs one operator a sequence: "
                "model.operator learned, model.gram global"
            )
        context = model.max_position_embeddings
        if objective.alignment.coefficient and objective.alignment.blocks > context:
            raise ValueError(
                f"objective.alignment.blocks is {objective.alignment.blocks}, expected at most the {context} tokens of "
                "model.max_position_embeddings"
            )
        if model.gram == "chunked" and model.gram_chunk >= context:
            raise ValueError(
                f"model.gram_chunk is {model.gram_chunk}, expected less than model.max_position_embeddings = "
                f"{context}: the first chunk sees no token, so a model of one chunk has a constant operator"
            )
        if model.operator == "constant" and self.optimizer.checkpointing == "learner":
            raise ValueError("optimizer.checkpointing is 'learner', but a constant operator has no metric learner")
        if model.operator == "constant" and self.logging.steadiest:
            raise ValueError("logging.steadiest is true, but a constant operator does not fluctuate")
        return self


class AdoptedTrainSettings(RunSettings):
    """A training run of an adopted model; without ``data.tokenizer`` its own is taken."""

    model: AdoptedSettings

    @model_validator(mode="before")
    @classmethod
    def _own_tokenizer(cls, values: dict[str, Any]) -> dict[str, Any]:
        data, model = values.get("data", {}), values["model"]
        if isinstance(data, dict) and data.get("tokenizer") is None:
            return {**values, "data": {**data, "tokenizer": model["adopted"]}}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.objective.alignment.coefficient:
            raise ValueError("objective.alignment.coefficient is for a PLDR-LLM, and the model is adopted")
        if self.optimizer.compile:
            raise ValueError("optimizer.compile is true, but an adopted model is not compiled")
        return self


def ready() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(f.name.removesuffix(".yaml") for f in _folder().iterdir() if f.name.endswith(".yaml"))


def load(source: str | Path, overrides: Sequence[str] = ()) -> TrainSettings | AdoptedTrainSettings:
    """Settings of a YAML file, or of a ready configuration by its name, with ``section.key=value`` over them.

    They are of an adopted model where ``model`` has ``adopted``.

    Raises:
        FileNotFoundError, ValueError: no such file or configuration, or a setting that is wrong, each named.
    """
    if str(source) in ready():
        with resources.as_file(_folder() / f"{source}.yaml") as file:
            values: dict[str, Any] = read_yaml(file)
    elif Path(source).exists():
        values = read_yaml(Path(source))
    else:
        raise FileNotFoundError(f"{source}: no such file, and no ready configuration ({', '.join(ready())})")
    values = overridden(values, overrides)
    model = values.get("model")
    adopted = isinstance(model, dict) and "adopted" in model
    return (AdoptedTrainSettings if adopted else TrainSettings).checked(values, str(source))


def _folder() -> Any:
    return resources.files("plga.training") / "configs"
