"""The guard of a collapsed checkpoint: measured, written beside the weights, and on the trained reference models."""

import argparse
import heapq
import json
import textwrap
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from plga.collapse.freeze import freeze, freeze_on
from plga.collapse.guard import attach_guard, measure_guard, write_guard
from plga.model.checkpoint import load_model, save_model
from plga.model.guard_settings import GuardSettings
from plga.model.guard_tensors import GUARD_FILE, operator_tensors
from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer
from tests.training import examples

SETTINGS = GuardSettings(every=2, margin_factor=2.0, deviation=0.5, tolerance=0.0)


def pair() -> tuple[PldrForCausalLM, PldrForCausalLM]:
    """A learned model and the same, frozen at its mean over some inputs."""
    learned = examples.model()
    frozen, _ = freeze_on(learned, torch.randint(examples.VOCABULARY, (4, 9)))
    return learned, frozen


def test_measured_deviation_is_that_of_every_step() -> None:
    learned, frozen = pair()
    prompts = torch.randint(examples.VOCABULARY, (3, 5))
    settings = measure_guard(learned, frozen, prompts, 6, every=7, margin_factor=3.0, tolerance=0.25)
    assert (settings.every, settings.margin_factor, settings.tolerance) == (7, 3.0, 0.25)
    worst = 0.0
    for prompt in prompts:
        text = prompt[None]
        for _ in range(6):
            with torch.no_grad():
                true, own = (model(text, use_cache=False).logits[0, -1] for model in (learned, frozen))
            worst = max(worst, float((true - own).abs().max()))
            text = torch.cat([text, true.argmax().view(1, 1)], dim=1)
    assert settings.deviation == pytest.approx(worst, rel=1e-4)


def test_a_guard_attached_in_memory_shares_the_operators() -> None:
    learned, frozen = pair()
    attach_guard(frozen, learned, SETTINGS.to_dict())
    own = operator_tensors(frozen.recomputing[0])
    assert all(own[name].data_ptr() == tensor.data_ptr() for name, tensor in operator_tensors(learned).items())
    options = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True, "eos_token_id": None}
    assert frozen.generate(torch.ones(1, 3, dtype=torch.long), **options).guard[0].tokens == 5


def test_a_guard_written_beside_the_weights(tmp_path: Path) -> None:
    learned, frozen = pair()
    frozen.generation_config.max_new_tokens = 7
    save_model(frozen, tmp_path / "frozen")
    weights = (tmp_path / "frozen" / "model.safetensors").read_bytes()
    for settings in (GuardSettings(1, 1.0, 1.0, 1.0), SETTINGS):  # the second replaces the first
        write_guard(learned, tmp_path / "frozen", settings)
    assert (tmp_path / "frozen" / "model.safetensors").read_bytes() == weights
    assert json.loads((tmp_path / "frozen" / "generation_config.json").read_text())["guard"] == SETTINGS.to_dict()
    attach_guard(frozen, learned, SETTINGS)
    read, ids = load_model(tmp_path / "frozen"), torch.randint(1, examples.VOCABULARY, (2, 4))
    ours, theirs = (m.generate(ids, do_sample=False, return_dict_in_generate=True) for m in (read, frozen))
    assert torch.equal(ours.sequences, theirs.sequences) and ours.guard == theirs.guard
    assert ours.sequences.shape[1] <= 4 + 7 and ours.guard[0].checks > 0


def test_a_checkpoint_in_another_dtype_is_known_by_its_rounded_weights(tmp_path: Path) -> None:
    learned, frozen = pair()
    save_model(frozen.to(torch.bfloat16), tmp_path / "frozen")
    write_guard(learned, tmp_path / "frozen", SETTINGS)
    assert load_model(tmp_path / "frozen", dtype=None).recomputing


def test_what_is_refused(tmp_path: Path) -> None:
    learned, frozen = pair()
    save_model(learned, tmp_path / "learned")
    save_model(frozen, tmp_path / "frozen")
    with pytest.raises(ValueError, match="with a learned operator, expected 'pldr' with a constant one"):
        write_guard(learned, tmp_path / "learned", SETTINGS)
    with pytest.raises(ValueError, match=r"embed_tokens\.weight is not that of the learned model, expected the"):
        write_guard(examples.model(seed=1), tmp_path / "frozen", SETTINGS)
    with pytest.raises(ValueError, match="every of the guard is 0"):
        write_guard(learned, tmp_path / "frozen", {**SETTINGS.to_dict(), "every": 0})
    chunked = examples.model(gram="chunked", gram_chunk=4)
    for wrong, kind in ((frozen, "constant with a global Gram"), (chunked, "learned with a chunked Gram")):
        with pytest.raises(ValueError, match=f"is {kind}, expected learned with a global one"):
            attach_guard(freeze(chunked, torch.randn(2, 2, 4, 4)), wrong, SETTINGS)
    assert not (tmp_path / "frozen" / GUARD_FILE).exists()


# On the trained reference models --------------------------------------------------------------------------------------

PROMPTS, NEW = 50, 32


def standard_library(reference: Path, module: ModuleType) -> Tensor:
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    return load_tokenizer(reference / "tokenizer.json")(text, return_tensors="pt").input_ids[0]


def prompts_of(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Fifty prompts of 16 to 48 tokens, one after the other, padded on the left, and their mask."""
    padded, mask = torch.zeros(PROMPTS, 48, dtype=torch.long), torch.zeros(PROMPTS, 48, dtype=torch.long)
    start = 0
    for row, length in zip(range(PROMPTS), (16 + 7 * number % 33 for number in count()), strict=False):
        padded[row, 48 - length :], mask[row, 48 - length :] = ids[start : start + length], 1
        start += length
    return padded, mask


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_guarded_decoding_of_a_trained_model(reference: Path, name: str) -> None:
    learned = load_model(reference / f"{name}.pth")
    frozen, _ = freeze_on(learned, standard_library(reference, argparse)[: 16 * 128].view(16, 128))
    calibration = standard_library(reference, heapq)[: 4 * 16].view(4, 16)
    attach_guard(frozen, learned, measure_guard(learned, frozen, calibration, 16, every=8))
    ids, mask = prompts_of(standard_library(reference, textwrap))

    def decode(model: PldrForCausalLM, **options: object) -> object:
        options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, **options}
        return model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **options)

    recomputed, unguarded, guarded = decode(learned), decode(frozen, guard=False), decode(frozen)
    assert torch.equal(guarded.sequences, recomputed.sequences)
    seen = guarded.guard
    assert all(s.tokens == NEW and s.checks >= 3 for s in seen)
    if name == "critical":
        assert sum(s.fallbacks for s in seen) == sum(s.recomputed for s in seen) == 0
        # Measured: 2e-6 for G, 6e-6 for logits.
        assert max(s.curvature_deviation for s in seen) < 1e-4 and max(s.logit_deviation for s in seen) < 1e-4
        assert torch.equal(unguarded.sequences, recomputed.sequences)
    else:
        assert not torch.equal(unguarded.sequences, recomputed.sequences)
        assert all(s.fallbacks >= 1 for s in seen)
        # Most of the fifty texts part without the guard.
        parted = (unguarded.sequences != recomputed.sequences).any(dim=1)
        assert int(parted.sum()) > PROMPTS // 2
