"""``audit.json``: what was audited, how, and every quantity, as strict JSON."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from plga.audit.section import Quantity, Value
from plga.model.files import read_json

JSON, ARRAYS, PAGE = "audit.json", "audit.npz", "report.html"
MEASURED, NOT_MEASURABLE, FAILED = "measured", "not measurable", "failed"
Number = bool | int | float | list[float | None] | None
_ROUNDING = 1e-12  # relative; what another processor or number of threads may make of the same arrays
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Figure(_Strict):
    """A :class:`plga.audit.section.Quantity` in JSON, which knows no infinity.

    Attributes:
        nulls: what each null of ``value`` stands for, in order: "does not exist", "not a number", "infinity" or
            "-infinity".
    """

    name: str
    value: Number
    nulls: list[str]
    over: str
    kind: Literal["direct", "bound", "proxy"]
    formula: str | None
    claim: Literal["theorem", "conditional theorem", "measurement", "conjecture"]
    published: Number


class Part(_Strict):
    """A section and what came of it; ``reason`` says why nothing did."""

    title: str
    status: Literal["measured", "not measurable", "failed"]
    reason: str | None
    quantities: list[Figure]


class StageRecord(_Strict):
    """A stage of the three-stage mechanism; ``holds`` is null where that was not measured."""

    name: str
    hypothesis: str
    measured: str
    holds: bool | None
    why: str


class Source(_Strict):
    """What was audited.

    Attributes:
        kind: a checkpoint, operators without a model, or nothing.
        name: of the folder or file.
        files: SHA-256 by name of the files with weights, and of those that say what they are.
        shape: layers, heads, width, and for a model its parameters, context and kind of operator.
    """

    kind: Literal["checkpoint", "operators", "nothing"]
    name: str
    files: dict[str, Digest]
    shape: dict[str, int | str]


class PromptsRecord(_Strict):
    """The prompts: ``sha256`` is that of their token ids as JSON, [[...], ...], without spaces."""

    origin: str
    tokens: list[int]
    sha256: Digest


class Settings(_Strict):
    """What the figures depend on beside subject and prompts."""

    seed: int
    dtype: str
    threads: int


class Record(_Strict):
    """The content of ``audit.json``.

    Attributes:
        format: name and version of this schema.
        mechanism: null where a section that it reads was not asked for.
        files: SHA-256 of the other files of the audit.
    """

    format: Literal["plga audit 1"] = "plga audit 1"
    subject: Source
    prompts: PromptsRecord | None
    settings: Settings
    versions: dict[str, str]
    environment: dict[str, str]
    sections: dict[str, Part]
    mechanism: list[StageRecord] | None
    files: dict[str, Digest]


def figure(quantity: Quantity) -> Figure:
    """A quantity as it stands in the JSON."""
    value, nulls = _finite(quantity.value)
    published, _ = _finite(quantity.published)
    return Figure(**{**asdict(quantity), "value": value, "nulls": nulls, "published": published})


def text(record: Record) -> str:
    """The JSON itself."""
    return json.dumps(record.model_dump(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def digest(record: Record) -> str:
    """SHA-256 of all but ``files``: what the page, whose own hash is among them, says of the record that it shows."""
    return hashlib.sha256(text(record.model_copy(update={"files": {}})).encode()).hexdigest()


def read(file: Path) -> Record:
    """What :func:`text` wrote.

    Raises:
        ValueError: truncated, not JSON, or not that of an audit.
        OSError: missing or unreadable.
    """
    content = read_json(file, "an audit has one")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{file}: {where}: {problem['msg']}; expected what plga audit writes") from error


def _finite(value: Value) -> tuple[Number, list[str]]:
    """A value without infinities, and what its nulls stand for."""
    if isinstance(value, list | tuple):
        numbers = [float(entry) for entry in value]
        words = [_word(number) for number in numbers]
        return [n if w is None else None for n, w in zip(numbers, words, strict=True)], [w for w in words if w]
    if value is None:
        return None, ["does not exist"]
    plain = _plain(value)
    word = _word(plain)
    return (plain, []) if word is None else (None, [word])


def _word(number: bool | int | float) -> str | None:
    """What JSON cannot say of a number; None: it can."""
    if not isinstance(number, float) or math.isfinite(number):
        return None
    return "not a number" if math.isnan(number) else "infinity" if number > 0 else "-infinity"


def _plain(value: Any) -> bool | int | float:
    """A Python number for what may be one of NumPy's."""
    item = value.item() if hasattr(value, "item") else value
    assert isinstance(item, bool | int | float)
    return item


def difference(expected: Part, found: Part) -> str | None:
    """The first thing in which two records of a measured section differ, in words; None: nothing.

    Values that differ by rounding do not: logarithms and sums have other last digits on another processor.
    """
    if found.title != expected.title:
        return f"its title is {_shown(found.title)}, expected {_shown(expected.title)}"
    ours, theirs = _by_name(expected), _by_name(found)
    if len(theirs) < len(found.quantities):
        twice = next(q.name for q in found.quantities if found.quantities.count(theirs[_key(q)]) > 1)
        return f"{twice} stands there twice"
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in theirs:
            return f"{name} is missing"
        if name not in ours:
            return f"{name} is not a quantity of this section"
        for field in Figure.model_fields:
            a, b = getattr(ours[name], field), getattr(theirs[name], field)
            if type(a) is not type(b) or not (_nearly(a, b) if field == "value" else a == b):
                return f"{field} of {name} is {_shown(b)}, expected {_shown(a)}"
    return None if list(ours) == list(theirs) else "its quantities are in another order"


def _nearly(a: Number, b: Number) -> bool:
    """Whether two values, or the entries of two lists, are one number up to rounding; counts and nulls exactly."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_nearly, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_ROUNDING)
    return a == b


def _by_name(part: Part) -> Mapping[str, Figure]:
    """Quantities by name, with what they are over where a name alone is not unique."""
    return {_key(q): q for q in part.quantities}


def _key(quantity: Figure) -> str:
    return f"{quantity.name} ({quantity.over})"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
