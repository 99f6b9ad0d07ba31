"""Which operator a layer gets, and of what size: plain data, kept in the configuration of an adopted model."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

KINDS = ("constant", "learned", "low_rank")


@dataclass(frozen=True)
class OperatorSettings:
    """The operator of every layer of an adopted model.

    Args:
        kind: ``constant``, one matrix a head; ``learned``, built from the queries by the PLGA generator; ``low_rank``,
            I + U Vᵀ a head.
        rank: columns of U and V (``low_rank``).
        metric_units: N_res, residual units of the metric learner (``learned``).
        metric_blocks: N_glu, SwiGLU blocks a unit (``learned``).
        metric_intermediate_size: A_dff, their inner width; None: ⌊8 d / 3⌋ (``learned``).

    Raises:
        ValueError: an unknown kind, or a size below 1.
    """

    kind: str = "constant"
    rank: int = 8
    metric_units: int = 8
    metric_blocks: int = 2
    metric_intermediate_size: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"operator is {self.kind!r}, expected one of {', '.join(KINDS)}")
        for name in ("rank", "metric_units", "metric_blocks", "metric_intermediate_size"):
            value = getattr(self, name)
            if value is None and name == "metric_intermediate_size":
                continue
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}, expected a whole number >= 1")

    def as_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """What ``as_dict`` gave.

        Raises:
            ValueError: a setting that this version does not know, and the errors of the class.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(settings.keys() - known):
            raise ValueError(f"operator has a setting {unknown[0]!r}, expected some of {', '.join(sorted(known))}")
        return cls(**settings)
