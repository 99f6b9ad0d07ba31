"""Settings as plain data: one YAML, checked before anything runs, with errors that name key, value and remedy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError


class Settings(BaseModel):
    """Base of every section of a configuration: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

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
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
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
            value = _number_if_one(yaml.safe_load(text))
        except yaml.YAMLError as error:
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


def _number_if_one(value: Any) -> Any:
    # YAML 1.1 takes 1e-3 for text: it wants 1.0e-3. Nobody means text by it.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(cls: type[BaseModel], error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"]) or "the settings"
    if error["type"] == "extra_forbidden":
        return f"{key} is not a setting, expected one of {', '.join(_names(cls, error['loc'][:-1]))}"
    if error["type"] == "missing":
        return f"{key} is missing"
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
