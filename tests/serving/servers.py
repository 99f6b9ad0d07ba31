"""``plga serve`` in a process of its own on loopback, and clients of it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

START_SECONDS = 900  # a deadline for a server that hangs, far from what one takes


class Server:
    """A context in which ``plga serve CHECKPOINT`` answers; every process of it is gone at the end."""

    def __init__(self, checkpoint: Path, engine: str, log: Path, *options: str) -> None:
        self.checkpoint, self.engine, self.log, self.options = checkpoint, engine, log, options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        command = [sys.executable, "-m", "plga", "serve", str(self.checkpoint), "--engine", self.engine]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), "--", *self.options],
                env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.lives():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{self.log.read_text(errors='replace')[-6000:]}")
            time.sleep(0.5)

    def __exit__(self, *_: object) -> None:
        tree = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # killed below
                self.process.wait(timeout=60)
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def tree(self) -> list[psutil.Process]:
        """The server and all it started."""
        try:
            server = psutil.Process(self.process.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def memory(self) -> int:
        """Resident bytes of the whole tree; a page that two of them share counts twice, always."""
        return sum(process.memory_info().rss for process in self.tree())

    def lives(self) -> bool:
        """Whether it says that it is well."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=30) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def post(self, body: bytes) -> tuple[int, str]:
        """Status and text of the answer to raw bytes sent as JSON to /v1/completions."""
        request = urllib.request.Request(
            f"{self.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def client(self) -> Any:
        """OpenAI's own client, which does not try twice."""
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=600)
