"""Fewer bytes a token: a constant operator in bf16, and with int8 weights (torchao), beside float32, in one run.

    python benchmarks/low_precision.py CHECKPOINT [--rounds 5]

Speed: the shapes of the 110M models (arXiv:2502.13502), weights at random, one sequence, all taking turns in one
process; as they are, and with the step of one token compiled over a static cache, which torchao counts on: without it
every int8 weight is widened before it is used. Fidelity: of a trained CHECKPOINT with a constant operator and its
tokenizer (such as runs/demo/constant), on the held-out neutral prompts of ``plga collapse``. Exits with 1 where the
fastest is below 1.8 times the tokens/s of float32 as it is, or of float32 compiled if that is faster.
"""

import argparse
import copy
import functools
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from processor import processor
from torch import Tensor, nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import StaticCache

from plga.collapse.fidelity import Decoding, compare, decode
from plga.collapse.prompts import neutral_prompts
from plga.model.checkpoint import load_model
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.operator import SwiGLU
from plga.model.tokenizer import load_tokenizer

THREADS, PROMPT, TOKENS, BOUND = 2, 64, 48, 1.8
STATIC = 256  # tokens of a static cache: of one size, as every other size is another graph
STEPS = 32  # of greedy decoding that fidelity is measured on


def bf16(model: PldrForCausalLM) -> PldrForCausalLM:
    return copy.deepcopy(model).to(torch.bfloat16)


def int8(model: PldrForCausalLM) -> PldrForCausalLM:
    """Weights of linear layers as int8 with one scale a row; everything else in bf16.

    The product of torch 2.13 that a compiled model calls (_weight_int8pack_mm) gave NaN with an FFN of 341, and not
    with one of 352. So the FFN is filled up with zeros, which changes nothing else.
    """
    quantized = bf16(model)
    for module in quantized.modules():
        if isinstance(module, SwiGLU):
            fill = -module.down_proj.in_features % 32
            for linear in (module.gate_proj, module.up_proj):
                linear.weight.data = nn.functional.pad(linear.weight.data, (0, 0, 0, fill))
                linear.bias.data = nn.functional.pad(linear.bias.data, (0, fill))
            module.down_proj.weight.data = nn.functional.pad(module.down_proj.weight.data, (0, fill))
    quantize_(quantized, Int8WeightOnlyConfig())
    return quantized


def compiled(model: PldrForCausalLM) -> PldrForCausalLM:
    """Steps of one token as one compiled graph, over a cache of one size; a prompt is read as before.

    With attention in the open: the compiler fuses it, where a kernel of its own reads all of the cache.
    """
    model.set_attn_implementation("eager")
    plain = model.forward
    step = torch.compile(plain, dynamic=False)

    @functools.wraps(plain)
    def forward(input_ids: Tensor, **kwargs: object) -> object:
        return (step if input_ids.shape[-1] == 1 else plain)(input_ids=input_ids, **kwargs)

    generate = model.generate
    length = min(model.config.max_position_embeddings, STATIC)

    def over_a_static_cache(*args: object, **kwargs: object) -> object:
        return generate(*args, past_key_values=StaticCache(model.config, max_cache_len=length), **kwargs)

    model.forward, model.generate = forward, over_a_static_cache
    return model


PRECISIONS: dict[str, Callable[[PldrForCausalLM], PldrForCausalLM]] = {
    "float32": lambda model: model,
    "bf16": bf16,
    "int8 weights": int8,
    "float32, compiled": lambda model: compiled(copy.deepcopy(model)),
    "bf16, compiled": lambda model: compiled(bf16(model)),
    "int8 weights, compiled": lambda model: compiled(int8(model)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="with a constant operator and a tokenizer")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one to warm up")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    print(f"{THREADS} threads on {processor()}", end="")
    print("".join(f", {package} {version(package)}" for package in ("torch", "torchao", "transformers")))
    print_fidelity(arguments.checkpoint)
    torch.compiler.reset()  # or the models of both tables would count towards one limit of compilations
    sys.exit(print_speed(arguments.rounds) < BOUND)


@torch.no_grad()
def print_fidelity(checkpoint: Path) -> None:
    model = load_model(checkpoint)
    held_out = neutral_prompts(load_tokenizer(checkpoint), model.config.max_position_embeddings - STEPS).held_out
    prompts = [row.unsqueeze(0) for row in held_out]
    reference = [decode(model, prompt, STEPS) for prompt in prompts]
    print("\n| precision | same token, written freely | largest logit deviation | 2 x deviation < margin | ", end="")
    print("KL, nats a token | mean change of a token's log-probability |\n|---|---|---|---|---|---|")
    for name, convert in PRECISIONS.items():
        other = convert(model)
        decodings = [decode(other, prompt, STEPS) for prompt in prompts]
        pairs = [compare(ours, theirs) for ours, theirs in zip(reference, decodings, strict=True)]
        divergence, change = differences(model, other, prompts, reference)
        print(
            f"| {name} | {sum(p.agreeing for p in pairs)} of {sum(p.total for p in pairs)} "
            f"| {max(p.largest_deviation for p in pairs):.1e} | {sum(p.within_margin for p in pairs)} "
            f"| {divergence:.1e} | {change:.1e} |"
        )


def differences(
    model: PldrForCausalLM, other: PldrForCausalLM, prompts: list[Tensor], reference: list[Decoding]
) -> tuple[float, float]:
    """Mean KL of the next-token probabilities, and mean change of the log-probability of the tokens, on one text."""
    divergences, changes = [], []
    for prompt, decoding in zip(prompts, reference, strict=True):
        text = torch.cat([prompt, decoding.tokens], dim=1)
        p, q = (each(text[:, :-1], use_cache=False).logits.double().log_softmax(dim=-1) for each in (model, other))
        divergences.append((p.exp() * (p - q)).sum(dim=-1).flatten())
        changes.append((p - q).gather(-1, text[:, 1:, None]).abs().flatten())
    return float(torch.cat(divergences).mean()), float(torch.cat(changes).mean())


def print_speed(rounds: int) -> float:
    """The table; returns the tokens/s of the fastest with fewer bytes over those of the fastest float32."""
    base = PldrForCausalLM(PldrConfig(operator="constant", constant="identity")).eval()
    models = {name: convert(base) for name, convert in PRECISIONS.items()}
    prompt = torch.randint(4, base.config.vocab_size, (1, PROMPT))
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 1):
        for name, model in models.items():
            start = time.perf_counter()
            decode(model, prompt, TOKENS)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    speed = {name: TOKENS / median(taken) for name, taken in seconds.items()}
    print("\n| precision | bytes of the weights | ms a token (rounds) | median tokens/s | of float32 |")
    print("|---|---|---|---|---|")
    for name, taken in seconds.items():
        each = " ".join(f"{1e3 * s / TOKENS:.1f}" for s in taken)
        ratio = speed[name] / speed["float32"]
        print(f"| {name} | {weight_bytes(models[name]) / 1e6:.0f} MB | {each} | {speed[name]:.1f} | {ratio:.2f}x |")
    fewer, wide = (max(v for name, v in speed.items() if name.startswith("float32") is w) for w in (False, True))
    print(f"\nfewer bytes against float32, the fastest of each: {fewer / wide:.2f}x (at least {BOUND})")
    return fewer / wide


def weight_bytes(model: PldrForCausalLM) -> int:
    """Bytes of all tensors, those inside a quantized one included."""
    total = 0
    for tensor in model.state_dict().values():
        parts = [getattr(tensor, name) for name in getattr(tensor, "tensor_data_names", ())] or [tensor]
        total += sum(part.numel() * part.element_size() for part in parts)
    return total


if __name__ == "__main__":
    main()
