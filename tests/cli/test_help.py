"""Help is quick, because it imports nothing that only a command needs."""

import os
import sys

import pytest

from tests.cli.runner import environment, fresh

HEAVY = ("torch", "transformers", "tokenizers", "matplotlib", "numpy", "safetensors", "optuna")
CODE = f"""
import atexit, sys
from plga.cli.main import main
atexit.register(lambda: print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules]))
main()
"""


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("demo",),
        ("plan",),
        ("sweep",),
        ("criticality",),
        ("collapse",),
        ("audit",),
        ("score",),
        ("eval",),
        ("generate",),
        ("serve",),
        ("info",),
        ("adopt",),
        ("absorb",),
        ("convert",),
        ("export",),
        ("keygen",),
        ("seal",),
        ("verify",),
        ("claims",),
        ("tokenizer", "train"),
    ],
)
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    process = fresh(*command, "--help", code=CODE)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Usage:" in out
    assert out.splitlines()[-1] == "HEAVY []"
    if not command:
        commands = ("demo", "plan", "sweep", "criticality", "collapse", "generate", "info", "convert", "tokenizer")
        commands += ("serve", "export", "keygen", "seal", "verify", "score", "eval", "claims", "adopt", "absorb")
        assert all(name in out for name in commands)


def test_help_answers_in_half_a_second() -> None:
    """Of processor time, which other work on the machine does not change; the best of three."""

    def seconds() -> float:
        arguments = [sys.executable, "-c", "from plga.cli.main import main; main()", "--help"]
        null = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        _, status, usage = os.wait4(os.posix_spawn(sys.executable, arguments, environment(), file_actions=null), 0)
        assert status == 0
        return usage.ru_utime + usage.ru_stime

    assert min(seconds() for _ in range(3)) < 0.5


def test_usage_errors_exit_with_2_and_no_traceback() -> None:
    for arguments in (
        ("generate",),
        ("nothing",),
        ("info", "--nothing"),
        ("demo", "--seed", "-1"),
        ("tokenizer", "train"),
        ("tokenizer", "nothing"),
    ):
        process = fresh(*arguments)
        out, err = process.communicate()
        assert process.returncode == 2
        assert "Traceback" not in out + err
