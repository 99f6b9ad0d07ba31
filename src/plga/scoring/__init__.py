"""Scores of texts and of choices (floor 3)."""
