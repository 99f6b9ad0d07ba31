"""Prompts in a text file, one a line."""

from pathlib import Path


def read_prompts(file: Path, least: int) -> list[str]:
    """The lines of a UTF-8 file; blank ones are none.

    Raises:
        ValueError: not UTF-8, or fewer than ``least`` prompts.
        OSError: missing or unreadable.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    if len(lines) < least:
        raise ValueError(f"{file}: {len(lines)} prompts, expected at least {least}, one a line")
    return lines
