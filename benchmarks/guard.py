"""What the runtime guard costs while it has nothing to do: python benchmarks/guard.py CHECKPOINT TOKENIZER [PROMPTS].

Freezes a checkpoint at its mean over windows of a module of Python's standard library, attaches the guard, and decodes
prompts of 16 tokens of other modules greedily for 110 tokens, each guarded (a check every 64 tokens) and unguarded in
turn, which goes first changing with each prompt. Time is that of the processor, so that other programs count less; a
ratio is that of one prompt. Printed beside it: what the guard saw, and the price of a text that is recomputed.
"""

import argparse
import heapq
import sys
import textwrap
import time
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from processor import processor
from torch import Tensor

from plga.collapse.freeze import freeze_on
from plga.collapse.guard import attach_guard, measure_guard
from plga.model.checkpoint import load_model
from plga.model.tokenizer import load_tokenizer

PROMPT, NEW, EVERY = 16, 110, 64


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    model, tokenizer = load_model(sys.argv[1]), load_tokenizer(Path(sys.argv[2]))

    def windows(module: ModuleType, number: int, length: int) -> Tensor:
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        return tokenizer(text, return_tensors="pt").input_ids[0, : number * length].view(number, length)

    frozen, _ = freeze_on(model, windows(argparse, 16, 128))
    attach_guard(frozen, model, measure_guard(model, frozen, windows(heapq, 4, PROMPT), 32, every=EVERY))

    def decode(decoder: Any, prompt: Tensor, **options: Any) -> tuple[float, Any]:
        start = time.process_time()
        out = decoder.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            return_dict_in_generate=True,
            **options,
        )
        return time.process_time() - start, out

    prompts = windows(textwrap, count, PROMPT).split(1)
    for variant in ({}, {"guard": False}):  # what a first call has to set up
        decode(frozen, prompts[0], **variant)
    decode(model, prompts[0])
    seconds: dict[str, list[float]] = {"unguarded": [], "guarded": [], "recomputed": []}
    seen = []
    for index, prompt in enumerate(prompts):
        turns = [("guarded", frozen, {}), ("unguarded", frozen, {"guard": False})]
        for name, decoder, options in turns[:: 1 if index % 2 else -1]:
            taken, out = decode(decoder, prompt, **options)
            seconds[name].append(taken)
            if name == "guarded":
                seen.append(out.guard[0])
        if index < 2:  # dear, and enough to see how dear
            seconds["recomputed"].append(decode(model, prompt)[0])

    print(
        f"{Path(sys.argv[1]).name}, {count} prompts of {PROMPT} tokens, {NEW} new ones, a check every {EVERY}, torch "
        f"{torch.__version__}, {torch.get_num_threads()} thread(s) on {processor()}\n"
        f"{frozen.generation_config.guard}\n"
    )
    print("| decoding | ms a token, CPU | against unguarded |")
    print("|---|---|---|")
    for name, taken in seconds.items():
        ratios = [own / peer for own, peer in zip(taken, seconds["unguarded"], strict=False)]
        print(f"| {name} | {1000 * median(taken) / NEW:.2f} | {median(ratios):.3f} |")
    print(
        f"\n{sum(s.checks for s in seen)} checks of {sum(s.tokens for s in seen)} tokens, "
        f"{sum(s.fallbacks for s in seen)} fall-backs, worst deviation of G "
        f"{max(s.curvature_deviation for s in seen):.1e}, of logits {max(s.logit_deviation for s in seen):.1e}"
    )


if __name__ == "__main__":
    main()
