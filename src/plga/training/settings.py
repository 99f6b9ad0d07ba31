"""Settings as plain data: one YAML, checked before anything runs, with errors that name key, value and remedy."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from plga.training.plain_yaml import parse

# What tensors hold: float32 and int64. A larger number overflows somewhere inside of a run.
_LARGEST = {float: 3.4e38, int: 2**63 - 1}


class Settings(BaseModel):
    """Base of every section of a configuration: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts with truth values, so that ``steps: true`` would be one step.
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise PydanticCustomError("truth", "no truth value")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _held_by_a_tensor(cls, value: Any) -> Any:
        largest = _LARGEST.get(type(value))
        if largest is not None and abs(value) > largest:
            raise PydanticCustomError(
                "too_large", "a number up to {largest} in magnitude", {"largest": f"{largest:.1e}"}
            )
        return value

    @classmethod
    def checked(cls, values: dict[str, Any], origin: str) -> Self:
        """The settings that ``values`` spell out.

        Args:
            values: nested, as YAML gives it.
            origin: what the values are from, for the error.

        Raises:
            ValueError: one line with each key that is wrong, its value, and what is allowed.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"{origin}: " + "; ".join(_explain(cls, e) for e in error.errors())) from None


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        FileNotFoundError, ValueError: no such file, or no YAML mapping in it.
    """
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file")
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    try:
        values = parse(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{file}: not YAML ({error})") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ValueError(f"{file}: holds {type(values).__name__}, expected a mapping from names to values")
    return values


def overridden(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``values`` with ``section.key=value`` applied, each value read as YAML; later ones win.

    Raises:
        ValueError: no ``=`` in an override, a value that is not YAML, or a key below something that is no section.
    """
    result = _copied(values)
    for override in overrides:
        path, equals, text = override.partition("=")
        names = path.split(".")
        if not equals or not all(names):
            raise ValueError(f"{override!r}: expected section.key=value")
        try:
            value = parse(text)
        except ValueError as error:
            raise ValueError(f"{override!r}: the value is not YAML ({error})") from error
        section = result
        for depth, name in enumerate(names[:-1], start=1):
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ValueError(f"{override!r}: {'.'.join(names[:depth])} is {section!r}, not a section")
        section[names[-1]] = value
    return result


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in values.items()}


# In words of the YAML, where pydantic's are those of Python.
_EXPECTED = {
    "string_type": "text; a number is text in quotes",
    "path_type": "a path; one that reads as a number goes in quotes",
    "model_type": "a section with settings by name; leave it out for its defaults",
    "int_parsing_size": "a smaller number",
}


def _explain(cls: type[BaseModel], error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "the settings"
    if error["type"] == "extra_forbidden":
        return f"{key} is not a setting, expected one of {', '.join(_names(cls, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return f"{key} is missing"
    if error["type"] in _EXPECTED:
        return f"{key} is {error['input']!r}, expected {_EXPECTED[error['type']]}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    message = message[:1].lower() + message[1:]
    if error["type"] == "value_error":  # from a validator of ours, whose sentence is whole
        return message if error["loc"] == () else f"{key}: {message}"
    return f"{key} is {error['input']!r}, expected {message}"


def _names(cls: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    for part in path:
        annotation = cls.model_fields[part].annotation if part in cls.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        cls = annotation
    return list(cls.model_fields)
