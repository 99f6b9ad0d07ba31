"""Peak memory of long prompts and texts with a constant operator: python benchmarks/long_prompt.py [LENGTHS ...].

For each length and way a fresh process: it builds a small model (4 layers, 2 heads of width 64, vocabulary 2048, random
constant, seed 0), warms up on a short prompt, and reads a prompt of that many tokens whole or in chunks of 64
(``generate`` of one token), or scores a text in blocks of 64 (``plga.scoring.long_text``). Printed: by how much the
peak resident set grew beyond the one after the warm-up, the bytes of the keys and values at the end, the difference.
glibc is told to give large blocks back at once, or what it keeps of the cache's older tensors would count too.
"""

import multiprocessing
import os
import platform
import resource
import sys
import time
from multiprocessing.queues import Queue

CHUNK, LENGTHS = 64, (1024, 4096, 16384)
WAYS = ("prompt, whole", f"prompt, chunks of {CHUNK}", f"text, blocks of {CHUNK}")


def peak() -> int:
    """Largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def measure(way: str, length: int, results: "Queue[tuple[int, int, float]]") -> None:
    import torch

    from plga.model.configuration import PldrConfig
    from plga.model.modeling import PldrForCausalLM
    from plga.scoring.long_text import log_probabilities

    torch.manual_seed(0)
    config = PldrConfig(
        vocab_size=2048,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=max(length, 2 * CHUNK),
        operator="constant",
        constant="random",
        eos_token_id=None,
    )
    model = PldrForCausalLM(config).eval()

    def read(ids: torch.Tensor) -> None:
        if way == WAYS[2]:
            log_probabilities(model, ids, CHUNK)
            return
        chunk = None if way == WAYS[0] else CHUNK
        mask = torch.ones_like(ids)
        model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=1, prefill_chunk_size=chunk)

    ids = torch.randint(4, 2048, (1, length))
    read(ids[:, : 2 * CHUNK])
    before, start = peak(), time.perf_counter()
    read(ids)
    seconds = time.perf_counter() - start
    kept = 2 * config.num_hidden_layers * length * config.hidden_size * 4
    results.put((peak() - before, kept, seconds))


def main() -> None:
    import torch

    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**18)  # read by the processes to come
    lengths = [int(argument) for argument in sys.argv[1:]] or LENGTHS
    fresh = multiprocessing.get_context("spawn")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {platform.machine()}\n")
    print("| tokens | way | peak growth, MB | keys and values, MB | the rest, MB | seconds |")
    print("|---|---|---|---|---|---|")
    for length in lengths:
        for way in WAYS:
            results = fresh.Queue()
            process = fresh.Process(target=measure, args=(way, length, results))
            process.start()
            grown, kept, seconds = results.get()
            process.join()
            rest = (grown - kept) / 1e6
            print(f"| {length} | {way} | {grown / 1e6:.1f} | {kept / 1e6:.1f} | {rest:.1f} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
