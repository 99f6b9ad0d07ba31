"""Runs the command line in processes of their own and says how each ended.

Importing torch and Transformers takes seconds, so :func:`plga` forks a server that has done it. What depends on
a fresh interpreter runs in one: :func:`fresh`.
"""

import importlib
import io
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers.generation  # noqa: F401  (for the server)

import plga.collapse.freeze
import plga.model.checkpoint
import plga.model.tokenizer
from plga.audit import demo, plots  # noqa: F401  (for the server)
from plga.cli.main import main
from plga.criticality import sweep
from plga.model.configuration import PldrConfig
from tests.audit import small
from tests.training.processes import CONTEXT

# What the first configuration and the first SentencePiece model do once, the server has done.
PldrConfig()
importlib.import_module("sentencepiece.sentencepiece_model_pb2")


@dataclass(frozen=True)
class Ending:
    """Exit code, standard output and standard error of a command."""

    code: int | None
    out: str
    err: str

    def error(self) -> str:
        """The one line of a command that failed as expected, without having printed anything else."""
        assert self.code == 1, self
        assert "Traceback" not in self.err, self
        assert self.err.count("\n") == 1, self
        assert self.err.startswith("plga: error: "), self
        return self.err.removeprefix("plga: error: ").strip()


def plga(*arguments: object, file_limit: int | None = None, small_library: bool = False) -> Ending:
    """Run ``plga ARGUMENTS``.

    Args:
        file_limit: bytes above which the kernel refuses to write a file, as on a full disk.
        small_library: train on the few texts of tests/training/runs.py, and let ``plga demo`` be small. The runs of
            ``plga sweep`` are then forks, which know these texts too.
    """
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("out", "err")]
        process = CONTEXT.Process(target=_run, args=([str(a) for a in arguments], streams, file_limit, small_library))
        process.start()
        process.join()
        return Ending(process.exitcode, *(stream.read_text(encoding="utf-8") for stream in streams))


def _run(arguments: list[str], streams: list[Path], file_limit: int | None, small_library: bool) -> None:
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w"), "utf-8", "backslashreplace") for n in (1, 2))
    torch.set_num_threads(1)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    if small_library:
        small.install()
        sweep._SPAWN = multiprocessing.get_context("fork")  # type: ignore[assignment]
    sys.argv = ["plga", *arguments]
    main()


def environment() -> dict[str, str]:
    """The environment of a fresh interpreter that finds what this one finds."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # as _run: the bits of a training depend on them
    return os.environ | threads | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "100"}


def fresh(*arguments: object, code: str = "from plga.cli.main import main; main()") -> subprocess.Popen[str]:
    """Start ``plga ARGUMENTS`` in a fresh interpreter."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
