"""The model against figures of the published implementation: two trained checkpoints, three sequences each."""

import json
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plga.model.cache import PldrCache
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.names import from_released
from plga.ops.acyclicity import dag_loss
from tests.model.conftest import curvatures, greedy_by_hand, pad, relative

CASES = ("case0", "case1", "case2")
DEDUCTIVE = ("generator", "metric", "potential", "curvature")
BOUND = 1e-9


class Checkpoint:
    """One published-format checkpoint with its expected figures."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        released = torch.load(folder / f"{name}.pth", weights_only=True)["model_state_dict"]
        self.state = {from_released(key): tensor for key, tensor in released.items()}
        self.shape = json.loads((folder / f"{name}.hparams.json").read_text())
        self.expected = load_file(folder / f"{name}.expected.safetensors")

    def model(self, dtype: torch.dtype, rounded_to: torch.dtype | None = None) -> PldrForCausalLM:
        """The model in ``dtype``, its weights first rounded to another one if asked."""
        vocabulary, width = self.state["model.embed_tokens.weight"].shape
        config = PldrConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=self.state["model.layers.0.mlp.gate_proj.weight"].shape[0],
            num_hidden_layers=self.shape["num_layers"],
            num_attention_heads=self.shape["num_heads"],
            metric_intermediate_size=self.shape["A_dff"],
            max_position_embeddings=128,
            eos_token_id=None,
        )
        model = PldrForCausalLM(config).double().eval()
        model.load_state_dict({key: tensor.to(rounded_to or tensor.dtype) for key, tensor in self.state.items()})
        return model.to(dtype)

    def case(self, name: str) -> SimpleNamespace:
        """Expected figures of one sequence; the keys are explained beside the data."""
        prefix = f"{name}."
        figures = {key: tensor for key, tensor in self.expected.items() if key.startswith(prefix)}
        return SimpleNamespace(**{key.removeprefix(prefix): tensor for key, tensor in figures.items()})

    @cached_property
    def wide(self) -> PldrForCausalLM:
        return self.model(torch.float64)


@pytest.fixture(scope="module", params=["critical", "subcritical"])
def checkpoint(request: pytest.FixtureRequest, reference: Path) -> Checkpoint:
    return Checkpoint(reference, request.param)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> SimpleNamespace:
    return checkpoint.case(request.param)


@torch.no_grad()
def test_block_pass(checkpoint: Checkpoint, case: SimpleNamespace) -> None:
    outputs = checkpoint.wide(case.input_ids, output_deductive=True, output_hidden_states=True)
    assert outputs.logits.dtype == torch.float64
    assert relative(outputs.logits, case.logits) < BOUND
    assert relative(outputs.hidden_states[-1], case.last_hidden) < BOUND
    for name in DEDUCTIVE:
        ours = torch.stack([getattr(layer, name)[0] for layer in outputs.deductive])
        assert relative(ours, getattr(case, name)) < BOUND, name


@torch.no_grad()
def test_dag_losses(checkpoint: Checkpoint, case: SimpleNamespace) -> None:
    layers = checkpoint.wide(case.input_ids, output_deductive=True).deductive
    for name in ("metric", "potential", "curvature"):
        ours = torch.stack([dag_loss(getattr(layer, name)[0]) for layer in layers])
        torch.testing.assert_close(ours, getattr(case, f"dag_{name}"), rtol=BOUND, atol=0.0)


@pytest.mark.parametrize(("mode", "key"), [("recompute", "greedy_recompute"), ("prompt", "greedy_prompt_frozen")])
def test_greedy_tokens(checkpoint: Checkpoint, case: SimpleNamespace, mode: str, key: str) -> None:
    length = case.input_ids.shape[1]
    written = checkpoint.wide.generate(case.input_ids, max_new_tokens=16, do_sample=False, operator_mode=mode)
    assert torch.equal(written[:, length:], getattr(case, key))


@torch.no_grad()
def test_step_logits_with_the_operator_of_the_prompt(checkpoint: Checkpoint, case: SimpleNamespace) -> None:
    # Step by step: generate() hands its logits out in float32.
    model = checkpoint.wide
    cache = PldrCache(model.config, "prompt")
    logits = [model(case.input_ids, cache=cache).logits[0, -1]]
    for token in case.greedy_prompt_frozen[0, :-1]:
        logits.append(model(token.view(1, 1), cache=cache).logits[0, -1])
    assert relative(torch.stack(logits), case.prompt_frozen_step_logits) < BOUND


@torch.no_grad()
def test_log_probabilities_of_both_contracts(checkpoint: Checkpoint, case: SimpleNamespace) -> None:
    """Block: one pass over all tokens but the last, which is only a target. Sequential: one call a prefix."""
    model, length, targets = checkpoint.wide, case.input_ids.shape[1], case.continuation[0]
    whole = torch.cat([case.input_ids, case.continuation], dim=1)
    rows = model(whole[:, :-1]).logits[0, length - 1 :]
    block = rows.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(block, case.logprob_block[0], rtol=0.0, atol=BOUND)

    cache = PldrCache(model.config, "recompute")
    rows = [model(case.input_ids, cache=cache).logits[0, -1]]
    rows += [model(token.view(1, 1), cache=cache).logits[0, -1] for token in targets[:-1]]
    sequential = torch.stack(rows).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(sequential, case.logprob_sequential[0], rtol=0.0, atol=BOUND)
    # Target exposure: what a row gains from having seen its target.
    gap = float((block - sequential).abs().max())
    assert 0.04 < gap < 0.13 if checkpoint.name == "subcritical" else gap < 2e-7


@torch.no_grad()
def test_float32_logits(checkpoint: Checkpoint, case: SimpleNamespace) -> None:
    logits = checkpoint.model(torch.float32)(case.input_ids).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), case.logits, rtol=0.0, atol=2e-5)


# The deductive branch in bfloat16 models ------------------------------------------------------------------------------


def record_operators(model: PldrForCausalLM) -> list[tuple[Tensor, tuple]]:
    """Queries and deductive outputs of each layer, filled by the next forward pass."""
    seen: list[tuple[Tensor, tuple]] = []
    for layer in model.model.layers:
        layer.self_attn.operator.register_forward_hook(lambda module, args, outputs: seen.append((args[0], outputs)))
    return seen


@torch.no_grad()
def test_bfloat16_weights_build_g_in_float32(checkpoint: Checkpoint, case: SimpleNamespace) -> None:
    """On the same queries the operator of a bfloat16 model is that of a float32 model of its weights, bit for bit."""
    low, wide = checkpoint.model(torch.bfloat16), checkpoint.model(torch.float32, rounded_to=torch.bfloat16)
    seen = record_operators(low)
    low(case.input_ids)
    assert len(seen) == len(wide.model.layers)
    for layer, (queries, outputs) in zip(wide.model.layers, seen, strict=True):
        assert queries.dtype == torch.bfloat16
        for ours, theirs in zip(outputs, layer.self_attn.operator(queries.float(), None, None), strict=True):
            assert ours.dtype == torch.float32
            assert torch.equal(ours, theirs)


@torch.no_grad()
def test_bfloat16_autocast_builds_g_in_float32(checkpoint: Checkpoint, case: SimpleNamespace) -> None:
    model = checkpoint.model(torch.float32)
    seen = record_operators(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(case.input_ids).logits
    assert logits.dtype == torch.bfloat16
    for layer, (queries, outputs) in zip(model.model.layers, seen.copy(), strict=True):
        for ours, theirs in zip(outputs, layer.self_attn.operator(queries.float(), None, None), strict=True):
            assert ours.dtype == torch.float32
            assert torch.equal(ours, theirs)


@torch.no_grad()
def test_bfloat16_model_and_float32_model_of_its_weights_agree_on_a_collapsed_g(reference: Path) -> None:
    """Whole models, where also the queries are rounded: what is collapsed does not see that."""
    checkpoint = Checkpoint(reference, "critical")
    low, wide = checkpoint.model(torch.bfloat16), checkpoint.model(torch.float32, rounded_to=torch.bfloat16)
    for name in CASES:
        ids = checkpoint.case(name).input_ids
        ours, theirs = curvatures(low, ids), curvatures(wide, ids)
        assert ours.dtype == torch.float32
        for layer in range(len(ours)):
            assert relative(ours[layer], theirs[layer]) < torch.finfo(torch.bfloat16).eps / 2


# Padding --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padded_batch_equals_its_sequences_alone(checkpoint: Checkpoint, left: bool) -> None:
    model, text = checkpoint.wide, checkpoint.case("case2").input_ids[0]
    sequences = [text[5 * start : 5 * start + length] for start, length in enumerate((3, 5, 8, 13, 17, 21, 29, 40))]
    ids, mask = pad(sequences, left)
    batch = curvatures(model, ids, mask)
    for row, sequence in enumerate(sequences):
        assert relative(batch[:, row], curvatures(model, sequence[None])[:, 0]) < 1e-6
    for mode in ("recompute", "prompt"):
        together = greedy_by_hand(model, ids, mask, 6, PldrCache(model.config, mode))
        for row, sequence in enumerate(sequences):
            one = sequence[None]
            alone = greedy_by_hand(model, one, torch.ones_like(one), 6, PldrCache(model.config, mode))
            assert torch.equal(together[row], alone[0])


def test_padded_batch_in_float32(reference: Path) -> None:
    """The same in float32, for the collapsed checkpoint: elsewhere G itself magnifies a rounding of the Gram."""
    checkpoint = Checkpoint(reference, "critical")
    model, text = checkpoint.model(torch.float32), checkpoint.case("case2").input_ids[0]
    sequences = [text[5 * start : 5 * start + length] for start, length in enumerate((3, 5, 8, 13, 17, 21, 29, 40))]
    for left in (True, False):
        batch = curvatures(model, *pad(sequences, left))
        for row, sequence in enumerate(sequences):
            assert relative(batch[:, row], curvatures(model, sequence[None])[:, 0]) < 1e-6
