"""Settings of the runtime guard, as plain data in ``generation_config.guard``."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class GuardSettings:
    """When the guard looks, and what it then tolerates.

    Args:
        every: of so many tokens of a sequence one is checked at least, the last; 1: each is, >= 1.
        margin_factor: a check also where the two best logits of the constant operator lie closer together than this
            many times ``deviation``, >= 0. With 2, and logits that deviate by no more than ``deviation``, every token
            that the constant writes unchecked is the one of the learned operator (arXiv:2608.10288, the sufficient
            criterion 2 · deviation < margin).
        deviation: logit deviation of the constant operator from the learned one, as measured, >= 0.
        tolerance: ‖G - G_constant‖_F / ‖G_constant‖_F, the largest over layers and heads, above which a sequence falls
            back, >= 0.

    Raises:
        ValueError: a number out of these bounds.
    """

    every: int
    margin_factor: float
    deviation: float
    tolerance: float

    def __post_init__(self) -> None:
        if type(self.every) is not int or self.every < 1:  # nor a bool, which is an int
            raise ValueError(f"every of the guard is {self.every!r}, expected a whole number of tokens >= 1")
        for name in ("margin_factor", "deviation", "tolerance"):
            value = getattr(self, name)
            # sys.float_info.max and not infinity: below the latter there are whole numbers that no float holds.
            if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
                raise ValueError(f"{name} of the guard is {value!r}, expected a finite number >= 0")

    @classmethod
    def read(cls, settings: Any) -> "GuardSettings":
        """Settings from plain data, all four of them, or from settings.

        Raises:
            ValueError: something else than a mapping, an unknown or a missing key, a number out of bounds.
        """
        if isinstance(settings, cls):
            return settings
        names = [field.name for field in fields(cls)]
        if not isinstance(settings, Mapping):
            raise ValueError(f"guard is {settings!r}, expected a mapping with {', '.join(names)}, or False for none")
        for what, wrong in (
            ("unknown", [str(key) for key in settings if key not in names]),
            ("missing", [name for name in names if name not in settings]),
        ):
            if wrong:
                raise ValueError(f"guard: {what}: {', '.join(wrong)}; expected {', '.join(names)}")
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """The plain data that ``read`` takes."""
        return asdict(self)


def guarded(settings: Any) -> bool:
    """Whether a guard is asked for: by anything but None and False, be it empty or wrong, so that it is refused."""
    return settings is not None and settings is not False
