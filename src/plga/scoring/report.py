"""What is said of scores: texts and questions, under one protocol or both, as plain data."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from plga.model.atomic import new_file
from plga.model.modeling import PldrForCausalLM
from plga.scoring.choices import Question, compare_choices, metrics
from plga.scoring.exposure import Text, bits_per_byte, nats_per_token
from plga.scoring.files import Asked
from plga.scoring.protocols import Scores, block_logprobs, sequential_logprobs
from plga.scoring.score import Check, Scored, score
from plga.scoring.windows import windows


def score_texts(
    model: PldrForCausalLM,
    texts: Sequence[Text],
    protocol: str,
    stride: int | None = None,
    batch: int = 16,
    threshold: float = 1e-3,
) -> dict[str, Any]:
    """Texts under one protocol: of each, nats a token and bits a byte; see :func:`plga.scoring.score.score`."""
    context = model.config.max_position_embeddings
    pieces = [windows(text.ids, context, stride, text.name) for text in texts]
    scored = score(model, [item for piece in pieces for item in piece], protocol, batch, threshold)
    rest = iter(scored.scores)
    found = [torch.cat([next(rest).logprobs for _ in piece]).double() for piece in pieces]

    def figures(logprobs: torch.Tensor, size: int) -> dict[str, Any]:
        return {
            "tokens": len(logprobs),
            "bytes": size,
            "nats_per_token": nats_per_token(logprobs),
            "bits_per_byte": bits_per_byte(logprobs, size),
        }

    return {
        **chosen(scored),
        "all": figures(torch.cat(found), sum(text.bytes for text in texts)),
        "texts": [
            {"name": text.name, **figures(logprobs, text.bytes)} for text, logprobs in zip(texts, found, strict=True)
        ],
    }


def score_questions(
    model: PldrForCausalLM, asked: Sequence[Asked], protocol: str, batch: int = 16, threshold: float = 1e-3
) -> dict[str, Any]:
    """Questions under one protocol, or ``both`` and what differs between them."""
    items = [item for question in asked for item in question.items]
    if protocol != "both":
        scored = score(model, items, protocol, batch, threshold)
        questions = _questions(asked, scored.scores)
        return {**chosen(scored), scored.protocol: _answers(questions)}
    block_scores, sequential_scores = block_logprobs(model, items, batch), sequential_logprobs(model, items, batch)
    block, sequential = _questions(asked, block_scores), _questions(asked, sequential_scores)
    return {
        "truncated": sum(1 for scores in block_scores if scores.truncated),
        "block": _answers(block),
        "sequential": _answers(sequential),
        "comparison": asdict(compare_choices(block, sequential)),
    }


def chosen(scored: Scored) -> dict[str, Any]:
    """The protocol, why, and what was measured."""
    return {
        "protocol": scored.protocol,
        "reason": scored.reason,
        "check": checked(scored.check),
        "truncated": scored.truncated,
    }


def checked(check: Check | None) -> dict[str, Any] | None:
    """A check as plain data."""
    return None if check is None else {**asdict(check), "passed": check.passed}


def write_json(content: dict[str, Any], file: Path, overwrite: bool) -> None:
    """Write figures, whole or not at all.

    Raises:
        FileExistsError: the file exists and ``overwrite`` is False.
        OSError: a full disk, and whatever else the file system says.
    """
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    with new_file(file, overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _questions(asked: Sequence[Asked], scores: Sequence[Scores]) -> list[Question]:
    rest = iter(scores)
    return [question.scored([next(rest) for _ in question.items]) for question in asked]


def _answers(questions: Sequence[Question]) -> dict[str, Any]:
    return {
        "metrics": asdict(metrics(questions)),
        "questions": [
            {"name": question.name, "true": list(question.true), "logprobs": [c.logprob for c in question.choices]}
            for question in questions
        ],
    }
