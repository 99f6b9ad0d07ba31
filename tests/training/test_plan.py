"""The plan against the model: its numbers, what autograd keeps, what the allocator gives, FLOPs that torch counts."""

import gc
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from plga.model import chunked, modeling, operator
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.sizes import parameters_by_part
from plga.training.objective import next_token_loss
from plga.training.plan import plan
from tests.cli.runner import environment

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "plan_memory.py"
LEARNED: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 71,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "metric_intermediate_size": 19,
    "num_metric_units": 2,
    "num_metric_blocks": 3,
    "max_position_embeddings": 64,
}
CONSTANT = {**LEARNED, "operator": "constant", "constant": "identity"}
CHUNKED = {**LEARNED, "gram": "chunked", "gram_chunk": 8}
# Some millions of bytes, so that what every tensor costs besides its numbers is nothing.
LARGER = {**LEARNED, "hidden_size": 128, "intermediate_size": 300, "max_position_embeddings": 256}
PARTS = {
    "embedding": "embedding",
    "layer norms": "layer norms",
    "attention projections": "attention projections",
    "metric learner": "metric learner",
    "power laws (W, b_W, P, a, b_a)": "power law (W, b_W, P, a, b_a)",
    "bent queries (G)": "constant operator (G_LM)",
    "feed-forward": "feed-forward",
    "head and loss": "head",
}


@pytest.mark.parametrize("kind", [LEARNED, CONSTANT], ids=["learned", "constant"])
def test_numbers_are_those_of_the_model(kind: dict[str, Any]) -> None:
    config = PldrConfig(**kind)
    planned = plan(config, 2, 8)
    counted = parameters_by_part(PldrForCausalLM(config))
    assert {PARTS[name]: number for name, number in planned.numbers.items() if number} == counted
    assert planned.parameters == 4 * sum(counted.values())
    trainable = sum(counted.values()) - counted.get("constant operator (G_LM)", 0)
    assert (planned.gradients, planned.optimizer) == (4 * trainable, 8 * trainable)


# --- what autograd keeps ---


class Kept:
    """Bytes of the storages that autograd holds at the end of a forward pass, by the part that first saved them."""

    def __init__(self, model: PldrForCausalLM) -> None:
        self.within = ["rotary embedding"]  # it has no module, and nothing else has none
        self.own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.saved: dict[int, tuple[str, torch.UntypedStorage]] = {}
        self.holders: list[Any] = []

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.saved.setdefault(storage.data_ptr(), (self.within[-1], storage))
        return tensor

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.within.append(name)
        yield
        self.within.pop()

    def by_part(self) -> Counter[str]:
        counted: Counter[str] = Counter()
        for name, storage in self.saved.values():
            counted[name] += storage.nbytes()
        return counted


def modules_by_part(model: PldrForCausalLM) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        if name.endswith(("_proj", "_norm")) and ".operator." not in name and ".mlp." not in name:
            yield ("layer norms" if name.endswith("_norm") else "attention projections"), module
        elif name.endswith("embed_tokens"):
            yield "embedding", module
        elif name.endswith(".operator.learner"):
            yield "metric learner", module
        elif name.endswith(".mlp"):
            yield "feed-forward", module


def watch(monkeypatch: pytest.MonkeyPatch, kept: Kept, name: str, owner: Any, function: str) -> None:
    original: Callable[..., Any] = getattr(owner, function)

    def watched(*args: Any, **kwargs: Any) -> Any:
        with kept.part(name):
            return original(*args, **kwargs)

    monkeypatch.setattr(owner, function, watched)


@pytest.fixture
def kept_by_part(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counter[str]]:
    """Run a forward pass and say what it keeps."""

    def run(config: PldrConfig, batch: int, context: int, half: bool) -> Counter[str]:
        model = PldrForCausalLM(config).train()
        kept = Kept(model)
        for name, module in modules_by_part(model):
            watch(monkeypatch, kept, name, module, "forward")
        watch(monkeypatch, kept, "density (rotated queries)", operator, "gram")
        watch(monkeypatch, kept, "density (rotated queries)", chunked, "chunk_grams")
        for function in ("metric_tensor", "potential_tensor", "curvature_tensor"):
            watch(monkeypatch, kept, "power laws (W, b_W, P, a, b_a)", operator, function)
        for module in (operator, chunked):
            # Its look at the tensors saves some of them, for a moment and for nobody.
            monkeypatch.setattr(module, "require_finite", lambda *args: None)
        for function in ("bend", "bend_chunks"):
            watch(monkeypatch, kept, "bent queries (G)", modeling, function)
        watch(monkeypatch, kept, "head and loss", modeling, "next_token_cross_entropy")
        attention = "fused attention (q', k, v, output)"
        watch(monkeypatch, kept, attention, nn.functional, "scaled_dot_product_attention")
        windows = torch.randint(config.vocab_size, (batch, context + 1))
        with (
            torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=half),
        ):
            next_token_loss(model, windows)
        return kept.by_part()

    return run


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "kind",
    [LEARNED, CONSTANT, {**LEARNED, "rope_interleaved": False}, CHUNKED, {**CHUNKED, "gram_chunk": 37}],
    ids=["learned", "constant", "half rotary", "chunked", "one chunk"],
)
def test_each_part_keeps_what_is_planned_to_the_byte(
    kept_by_part: Callable[..., Counter[str]], kind: dict[str, Any], batch: int, half: bool
) -> None:
    config = PldrConfig(**kind)
    planned = dict(plan(config, batch, 37, "bf16" if half else "float32").activations)
    if not half:  # the loss keeps gradients, where no hook sees them: test_the_loss_keeps_gradients_and_no_logits does
        del planned["head and loss"]
    assert {name: size for name, size in planned.items() if size} == dict(kept_by_part(config, batch, 37, half))


# --- what the allocator gives ---


def allocated(run: Callable[[], Any], folder: Path) -> tuple[int, int]:
    """Bytes that ``run`` holds at most, and at its end, more than before it."""
    gc.collect()  # or what an earlier test left would be freed meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    trace = folder / "trace.json"
    profiled.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most, held


def test_the_loss_keeps_gradients_and_no_logits(tmp_path: Path) -> None:
    config = PldrConfig(**{**LARGER, "num_hidden_layers": 1, "vocab_size": 2000})
    model = PldrForCausalLM(config).train()
    windows = torch.randint(config.vocab_size, (4, 201))
    held: list[torch.Tensor] = []
    _, kept = allocated(lambda: held.append(next_token_loss(model, windows)), tmp_path)
    tokens = 4 * 200 * 8  # the windows were there before; a copy of the targets is not kept
    planned = sum(plan(config, 4, 200).activations.values())
    assert kept == pytest.approx(planned - tokens, rel=2e-3)
    assert plan(config, 4, 200).activations["head and loss"] < 4 * 200 * config.vocab_size * 4 / 2  # of the logits


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "float32": (LARGER, {}),
    "bf16": (LARGER, {"precision": "bf16"}),
    "constant": ({**LARGER, "operator": "constant", "constant": "identity"}, {}),
    "chunked": ({**LARGER, "gram": "chunked", "gram_chunk": 64}, {}),
    "chunked, learner recomputed": (
        {**LARGER, "gram": "chunked", "gram_chunk": 64},
        {"checkpointing": "learner"},
    ),
    "learner recomputed": ({**LARGER, "metric_intermediate_size": 200}, {"checkpointing": "learner"}),
    "layers recomputed": (LARGER, {"checkpointing": "layers"}),
    "layers recomputed in bf16": (LARGER, {"checkpointing": "layers", "precision": "bf16"}),
    "two parts a step": (LARGER, {"accumulate": 2}),
    "many pieces": ({**LARGER, "vocab_size": 6000}, {}),
    "many pieces in bf16": ({**LARGER, "vocab_size": 6000}, {"precision": "bf16"}),
    "many pieces, few tokens": ({**LARGER, "vocab_size": 6000}, {"tokens": 8}),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
def test_the_peak_is_the_allocators(name: str, tmp_path: Path) -> None:
    kind, how = VARIANTS[name]
    how = dict(how)
    tokens = how.pop("tokens", 200)
    config = PldrConfig(**kind)
    planned = plan(config, 4, tokens, **how)
    model = PldrForCausalLM(config).train()
    if how.get("checkpointing") == "layers":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if how.get("checkpointing") == "learner":
        model.checkpoint_metric_learner()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), fused=True)
    windows = torch.randint(config.vocab_size, (4, tokens + 1))

    def step() -> None:
        for _ in range(how.get("accumulate", 1)):
            with torch.autocast("cpu", torch.bfloat16, enabled=how.get("precision") == "bf16"):
                loss = next_token_loss(model, windows)
            loss.backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    most, _ = allocated(step, tmp_path)
    assert planned.peak.total == pytest.approx(planned.parameters + planned.optimizer + most, rel=0.03)


# --- FLOPs ---


@pytest.mark.parametrize("kind", [LEARNED, CONSTANT, CHUNKED], ids=["learned", "constant", "chunked"])
def test_flops_are_those_that_torch_counts(kind: dict[str, Any]) -> None:
    """With attention in the open, since torch counts none for the fused kernel of the CPU."""
    config = PldrConfig(**kind)
    planned = plan(config, 3, 37).flops
    model = PldrForCausalLM._from_config(config, attn_implementation="eager").train()
    windows = torch.randint(config.vocab_size, (3, 38))
    with FlopCounterMode(display=False) as forward:
        logits = model(windows[:, :-1], use_cache=False).logits
    with FlopCounterMode(display=False) as backward:
        nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).backward()

    counted = {name: sum(by_operation.values()) for name, by_operation in forward.get_flop_counts().items()}
    assert planned["head and loss"].forward == counted["PldrForCausalLM.lm_head"]
    modules = {"feed-forward": ["mlp"], "attention projections": [f"self_attn.{x}_proj" for x in "qkvo"]}
    if config.operator == "learned":
        modules["metric learner"] = ["self_attn.operator.learner"]
    for part, names in modules.items():
        of_layers = [f"PldrForCausalLM.model.layers.{index}.{name}" for index in range(3) for name in names]
        assert planned[part].forward == sum(counted[name] for name in of_layers), part
    assert sum(f.forward for f in planned.values()) == forward.get_total_flops()
    attention = planned["fused attention (q', k, v, output)"]
    again = attention.backward - 2 * attention.forward  # the scores, which a fused kernel computes once more
    assert again == attention.forward / 2
    assert sum(f.backward for f in planned.values()) - again == backward.get_total_flops()


def test_recomputing_and_accumulating_cost_flops() -> None:
    config = PldrConfig(**LEARNED)
    once = plan(config, 2, 8)
    for checkpointing, recomputed in {
        "learner": {"metric learner"},
        "layers": once.flops.keys() - {"head and loss"},
    }.items():
        again = plan(config, 2, 8, checkpointing=checkpointing).flops
        for name, flops in once.flops.items():
            assert again[name].forward == flops.forward
            assert again[name].backward == flops.backward + flops.forward * (name in recomputed)
    twice = plan(config, 2, 8, accumulate=2)
    assert twice.tokens == 2 * once.tokens
    assert all(f.forward == 2 * once.flops[name].forward for name, f in twice.flops.items())


# --- what the processes share, and what a sequence keeps ---


def test_ddp_copies_gradients_into_buckets_and_fsdp2_shares_all() -> None:
    config = PldrConfig(**LARGER)
    alone = plan(config, 4, 200)
    ddp = plan(config, 4, 200, processes=4)
    assert (ddp.parameters, ddp.optimizer, ddp.activations) == (alone.parameters, alone.optimizer, alone.activations)
    assert ddp.peak.communication == alone.gradients
    assert ddp.peak.total - alone.peak.total == alone.gradients
    fsdp2 = plan(config, 4, 200, processes=4, strategy="fsdp2")
    assert (fsdp2.parameters, fsdp2.gradients, fsdp2.optimizer) == (
        alone.parameters // 4,
        alone.gradients // 4,
        alone.optimizer // 4,
    )
    assert fsdp2.activations == alone.activations
    outside = 4 * sum(alone.numbers[name] for name in ("embedding", "head and loss"))
    assert outside < fsdp2.peak.communication < alone.parameters + alone.gradients
    assert plan(config, 4, 200, strategy="fsdp2") == alone


def test_the_published_model_in_generation_by_hand() -> None:
    planned = plan(PldrConfig(), 3, 1024)
    assert planned.curvature == 14 * 64 * 64 * 4 == 229_376
    assert planned.generation["G_LM"] == 3 * 5 * 229_376
    assert planned.generation["KV-cache"] == 3 * 2 * 5 * 1024 * 896 * 4
    assert plan(PldrConfig(), 3, 1024, "bf16").generation["KV-cache"] == 3 * 2 * 5 * 1024 * 896 * 2
    constant = PldrConfig(operator="constant", constant="identity")
    assert plan(constant, 3, 1024).generation["G_LM"] == 5 * 229_376  # one for all sequences


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"batch": 0}, "batch is 0, expected >= 1"),
        ({"context": -1}, "context is -1, expected >= 1"),
        ({"context": 65}, "context is 65, expected <= 64, the model's positions"),
        ({"processes": 0}, "processes is 0"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"precision": "float16"}, "precision is 'float16', expected one of float32, bf16"),
        ({"checkpointing": "all"}, "checkpointing is 'all', expected one of none, learner, layers"),
        ({"strategy": "fsdp"}, "strategy is 'fsdp', expected one of ddp, fsdp2"),
    ],
)
def test_what_cannot_be_planned(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(PldrConfig(**LEARNED), **{"batch": 1, "context": 8, **how})


def test_a_constant_operator_has_no_learner_to_recompute() -> None:
    with pytest.raises(ValueError, match="checkpointing is 'learner', but the operator is constant"):
        plan(PldrConfig(**CONSTANT), 1, 8, checkpointing="learner")


# --- what a process takes ---


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and tells glibc's malloc to give memory back")
@pytest.mark.parametrize("name", ["attention and feed-forward", "metric learner", "vocabulary"])
def test_the_peak_of_a_process_is_within_15_percent(name: str) -> None:
    command = [sys.executable, BENCHMARK, "--json", name]
    [row] = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment()).stdout)
    assert row["measured"] > 290e6  # or the noise of the allocator would count
    assert row["planned"] == pytest.approx(row["measured"], rel=0.15)
