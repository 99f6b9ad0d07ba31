"""Scores of texts and of choices (floor 3)."""

from plga.scoring.items import Item
from plga.scoring.protocols import Scores, block_logprobs, sequential_logprobs
from plga.scoring.score import Scored, score

__all__ = ["Item", "Scored", "Scores", "block_logprobs", "score", "sequential_logprobs"]
