"""Many requests against one server: does one fail, and does memory grow?

    .venv-serving/bin/python -m benchmarks.serving_soak CHECKPOINT [--requests 2000] [--clients 16] [--engine vllm]

Starts ``plga serve`` and sends it prompts of random lengths and contents from several clients at once. Every tenth
client streams and hangs up after the first piece. Prints the resident memory of all processes of the server as it goes,
and exits with 1 where a request failed or where memory, after the first fifth, moved by more than 5 %.
"""

import argparse
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from plga.model.checkpoint import load_config
from tests.serving.servers import Server

LOOKS, WARM_UP, BOUND = 20, 4, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a folder that plga serve takes")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=16, help="requests under way at once")
    parser.add_argument("--engine", default="vllm")
    arguments = parser.parse_args()
    requests, every = arguments.requests, arguments.requests // LOOKS

    config = load_config(arguments.checkpoint)
    memory: list[int] = []
    failures: list[str] = []
    log = Path(tempfile.mkdtemp()) / "server.log"
    with Server(arguments.checkpoint, arguments.engine, log) as server, ThreadPoolExecutor(arguments.clients) as pool:
        client = server.client()
        began = time.monotonic()
        for first in range(0, requests, every):
            numbers = range(first, min(first + every, requests))
            answers = pool.map(lambda number: ask(client, server, config, number), numbers)
            failures += [failure for failure in answers if failure]
            memory.append(server.memory())
            print(f"{numbers.stop:6d} requests  {memory[-1] / 2**20:8.1f} MiB  {len(failures)} failed", flush=True)
        seconds = time.monotonic() - began
        lives = server.lives()
    settled = memory[WARM_UP - 1 :]
    moved = max(settled) / min(settled) - 1
    print(f"{requests} requests of {arguments.clients} clients in {seconds:.0f} s, {len(failures)} failed")
    least, most = min(settled) / 2**20, max(settled) / 2**20
    print(f"memory after the first {WARM_UP * every} requests: {least:.1f} to {most:.1f} MiB,")
    print(f"a range of {moved:.1%} (bound {BOUND:.0%}); the server {'lives' if lives else 'is gone'}")
    for failure in failures[:5]:
        print(failure)
    sys.exit(bool(failures) or not lives or moved > BOUND)


def ask(client: Any, server: Server, config: Any, number: int) -> str | None:
    """One request, a function of its number; returns what went wrong, or None."""
    draw = random.Random(number)
    length = draw.randint(1, config.max_position_embeddings // 2)
    count = draw.randint(1, min(24, config.max_position_embeddings // 2))
    prompt = [draw.randrange(config.vocab_size) for _ in range(length)]
    settings = {"model": str(server.checkpoint), "prompt": prompt, "max_tokens": count, "temperature": 0}
    try:
        if number % 10 == 9:
            stream = client.completions.create(**settings, stream=True)
            next(iter(stream))
            stream.close()
        else:
            usage = client.completions.create(**settings, extra_body={"ignore_eos": True}).usage
            if (usage.prompt_tokens, usage.completion_tokens) != (length, count):
                return f"request {number}: {usage}, expected {length} and {count} tokens"
    except Exception as error:  # whatever it is, it is counted
        return f"request {number}: {type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    main()
