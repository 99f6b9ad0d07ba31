"""``vllm.LLM`` in a process of its own: ``python -m tests.serving.offline DIR RANKS COUNT TOKENS < prompts``."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Read prompts, lists of tokens, from standard input; write what follows each, greedily, to the file TOKENS."""
    from vllm import LLM, SamplingParams

    checkpoint, ranks, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = LLM(
        checkpoint,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=2**24,
        tensor_parallel_size=ranks,
    )
    prompts = [{"prompt_token_ids": ids} for ids in json.load(sys.stdin)]
    answers = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=count), use_tqdm=False)
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    Path(sys.argv[4]).write_text(json.dumps(tokens), encoding="utf-8")  # standard output is full of vLLM's words


if __name__ == "__main__":  # vLLM starts its workers by importing this file again
    main()
