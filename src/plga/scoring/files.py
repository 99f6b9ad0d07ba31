"""Files to be scored: one text, or JSON lines of texts or of questions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from plga.scoring.choices import Choice, Question
from plga.scoring.exposure import Text
from plga.scoring.items import Item
from plga.scoring.protocols import Scores


@dataclass(frozen=True)
class Asked:
    """A question before it is scored.

    Attributes:
        name: its file and line.
        items: one a candidate.
        candidates: their texts.
        true: indices of the true ones, the best answer first.
    """

    name: str
    items: tuple[Item, ...]
    candidates: tuple[str, ...]
    true: tuple[int, ...]

    def scored(self, scores: list[Scores]) -> Question:
        """With the scores of its items. Lengths are those of a candidate without the spaces around it.

        Raises:
            ValueError: what Question raises.
        """
        words = [candidate.strip() for candidate in self.candidates]
        choices = [
            Choice(float(found.logprobs.double().sum()), len(word), len(word.encode()))
            for found, word in zip(scores, words, strict=True)
        ]
        return Question(self.name, tuple(choices), self.true)


def read_file(file: Path, tokenizer: PreTrainedTokenizerFast) -> list[Text] | list[Asked]:
    """What a file holds: texts or questions, never both.

    A ``.jsonl`` has on each line a JSON object with ``text``, or with ``context``, ``candidates`` (a list, each joined
    to the context as it is, its leading space included) and ``true`` (indices of the true ones, the best first). Any
    other file is one text.

    Raises:
        ValueError: not UTF-8, not such lines, a missing or empty field, both kinds in one file, or nothing at all; the
            line is named.
        OSError: missing or unreadable.
    """
    try:
        content = file.read_bytes().decode()  # with its line ends as they are: they are tokens and bytes as well
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    if file.suffix != ".jsonl":
        return [text_of(content, file.name, tokenizer)]
    texts: list[Text] = []
    questions: list[Asked] = []
    for name, fields in _objects(file, content):
        if "text" in fields:
            texts.append(text_of(_field(name, fields, "text", str), name, tokenizer))
        else:
            questions.append(_question(name, fields, tokenizer))
    if texts and questions:
        raise ValueError(f"{file}: {len(texts)} texts and {len(questions)} questions, expected one kind a file")
    if not texts and not questions:
        raise ValueError(f"{file}: no lines, expected a text or a question on each")
    return texts or questions


def text_of(content: str, name: str, tokenizer: PreTrainedTokenizerFast) -> Text:
    """A text in tokens.

    Raises:
        ValueError: fewer than two tokens.
    """
    encoded = tokenizer(content, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = encoded["input_ids"]
    if len(ids) < 2:
        raise ValueError(f"{name}: the text has {len(ids)} tokens, expected at least 2: the first has no score")
    _, end = encoded["offset_mapping"][0]
    return Text(name, tuple(ids), len(content[end:].encode()))


def encode_pair(tokenizer: PreTrainedTokenizerFast, context: str, candidate: str) -> tuple[list[int], list[int]]:
    """Tokens of a context and of a candidate, encoded as one text, as lm-evaluation-harness does.

    Spaces at the end of the context go to the candidate, where a tokenizer puts them.
    """
    kept = context.rstrip()
    whole = tokenizer.encode(context + candidate, add_special_tokens=False, verbose=False)
    given = tokenizer.encode(kept, add_special_tokens=False, verbose=False)
    return given, whole[len(given) :]


def require_text(name: str, fields: dict[str, Any]) -> None:
    """JSON may hold half of a character (a lone surrogate), which no tokenizer takes.

    Raises:
        ValueError: it does; ``name`` says where.
    """
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start : error.start + 1])
        raise ValueError(f"{name}: {half} is half of a character, expected whole ones") from error


def _question(name: str, fields: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> Asked:
    context = _field(name, fields, "context", str)
    candidates, true = _field(name, fields, "candidates", list), _field(name, fields, "true", list)
    if not all(isinstance(candidate, str) for candidate in candidates):
        raise ValueError(f"{name}: candidates are {json.dumps(candidates)[:80]}, expected a list of texts")
    if not all(type(index) is int for index in true):
        raise ValueError(f"{name}: true is {json.dumps(true)[:80]}, expected a list of indices")
    items = []
    for number, candidate in enumerate(candidates):
        if not candidate.strip():
            raise ValueError(f"{name}: candidate {number} is empty, expected at least one character")
        given, asked = encode_pair(tokenizer, context, candidate)
        if not asked:
            raise ValueError(
                f"{name}: candidate {number} has no token of its own, as the tokenizer joins it to the end of the "
                "context; expected one that begins with a space, or another context"
            )
        items.append(Item(tuple(given), tuple(asked), f"{name}, candidate {number}"))
    return Asked(name, tuple(items), tuple(candidates), tuple(true))


def _objects(file: Path, content: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        name = f"{file.name} line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: not JSON ({error})") from error
        if not isinstance(fields, dict):
            raise ValueError(f"{name}: {type(fields).__name__}, expected a JSON object")
        require_text(name, fields)
        yield name, fields


def _field(name: str, fields: dict[str, Any], field: str, kind: type) -> Any:
    if field not in fields:
        raise ValueError(f"{name}: no field {field!r}, expected text, or context, candidates and true")
    if not isinstance(fields[field], kind) or not fields[field]:
        raise ValueError(f"{name}: {field} is {json.dumps(fields[field])[:80]}, expected a {kind.__name__}, not empty")
    return fields[field]
