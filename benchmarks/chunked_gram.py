"""What the chunked Gram costs in training: python benchmarks/chunked_gram.py [LAYERS] [ROUNDS].

Decoder layers of the published 110M model, one sequence of 1024 tokens, forward and backward pass, without embedding of
a real vocabulary, head and optimizer. Time is that of the processor, all threads together, so that other programs
count less. Every round takes one step of each variant; a ratio is the median over the rounds of the step's time over
that of the global Gram in the same round. Beside it the bytes that autograd keeps between the two passes, and those
with the metric learner checkpointed.
"""

import platform
import sys
import time
from statistics import median

import torch
from torch import Tensor

from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrModel

CONTEXT, SEED = 1024, 0
VARIANTS = {"global": {}, **{f"chunks of {size}": {"gram": "chunked", "gram_chunk": size} for size in (256, 128, 64)}}


def main() -> None:
    layers, rounds = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((1, 1), (2, 7)))
    models = {}
    for name, changes in VARIANTS.items():
        torch.manual_seed(SEED)
        models[name] = PldrModel(PldrConfig(vocab_size=100, num_hidden_layers=layers, **changes)).train()
    ids = torch.randint(4, 100, (1, CONTEXT))
    kept = {name: kept_bytes(model, ids) for name, model in models.items()}
    for model in models.values():
        model.checkpoint_metric_learner()
    saving = {name: kept_bytes(model, ids) for name, model in models.items()}
    for model in models.values():
        model.checkpoint_metric_learner(False)
        step(model, ids)  # what a first step has to set up
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            times[name].append(step(model, ids))

    print(
        f"{layers} layer(s) of the 110M model, {CONTEXT} tokens, seed {SEED}, {rounds} rounds, "
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {platform.machine()}\n"
    )
    print("| Gram | step, CPU s | against global | kept for the backward pass, MB | learner checkpointed, MB |")
    print("|---|---|---|---|---|")
    for name in models:
        ratio = median(own / peer for own, peer in zip(times[name], times["global"], strict=True))
        sizes = f"{kept[name] / 1e6:.0f} | {saving[name] / 1e6:.0f}"
        print(f"| {name} | {median(times[name]):.2f} | {ratio:.2f} | {sizes} |")


def step(model: PldrModel, ids: Tensor) -> float:
    """Processor seconds of one forward and backward pass."""
    model.zero_grad(set_to_none=True)
    # A fixed direction: the squares of a LayerNorm's output add up to a constant, which has no gradient.
    direction = torch.randn(1, CONTEXT, model.config.hidden_size, generator=torch.Generator().manual_seed(SEED))
    start = time.process_time()
    (model(ids, use_cache=False).last_hidden_state * direction).mean().backward()
    return time.process_time() - start


def kept_bytes(model: PldrModel, ids: Tensor) -> int:
    """Bytes of the tensors that a forward pass leaves for the backward pass, parameters left out."""
    sizes = {parameter.untyped_storage().data_ptr(): 0 for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        sizes.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, use_cache=False)
    return sum(sizes.values())


if __name__ == "__main__":
    main()
