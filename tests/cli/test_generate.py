"""``plga generate`` writes what the model itself would write."""

import argparse
import shutil
from pathlib import Path

import pytest
import torch

from plga.collapse.freeze import freeze_on
from plga.collapse.guard import write_guard
from plga.model.checkpoint import load_model, save_model
from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer
from tests.cli.runner import fresh, plga

PROMPT = "def __init__(self, name):\n    self."


@pytest.mark.parametrize("mode", [None, "recompute", "prompt", "constant"])
@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_greedy_text_of_published_checkpoints(reference: Path, name: str, mode: str | None) -> None:
    model = load_model(reference / f"{name}.pth")
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    if mode == "constant":
        text = tokenizer(Path(argparse.__file__).read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
        model, _ = freeze_on(model, text[: 16 * 128].view(16, 128))
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, operator_mode=mode, do_sample=False, max_new_tokens=20)

    chosen = () if mode is None else ("--mode", mode)
    ending = plga("generate", reference / f"{name}.pth", "--prompt", PROMPT, "--max-new-tokens", 20, *chosen)
    assert ending.code == 0, ending
    assert ending.out == tokenizer.decode(expected[0], skip_special_tokens=True) + "\n"
    if mode == "constant":
        assert ending.err.startswith("plga: operator frozen at its mean over 16 windows of 128 tokens of argparse.py")
    else:
        assert ending.err == ""


def test_a_checkpoint_of_ours(checkpoint: Path, frozen: Path) -> None:
    for folder in (checkpoint, frozen):
        ending = plga("generate", folder, "--prompt", "def f", "--max-new-tokens", 3)
        assert ending.code == 0, ending
        assert ending.out.startswith("def f")
        assert ending.err == ""
    constant = plga("generate", frozen, "--prompt", "def f", "--max-new-tokens", 3, "--mode", "constant")
    assert constant == ending


def test_the_guard_of_a_checkpoint(model: PldrForCausalLM, checkpoint: Path, frozen: Path, tmp_path: Path) -> None:
    tokenizer, folder = load_tokenizer(checkpoint), tmp_path / "guarded"
    shutil.copytree(frozen, folder)
    settings = {"every": 3, "margin_factor": 2.0, "deviation": 0.0, "tolerance": 0.0}
    write_guard(model, folder, settings)
    ids = tokenizer("def f", return_tensors="pt").input_ids
    mask = torch.ones_like(ids)
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 8, "return_dict_in_generate": True}
    expected = load_model(folder).generate(ids, **options)
    (seen,) = expected.guard
    assert seen.recomputed == seen.tokens - 2

    ending = plga("generate", folder, "--prompt", "def f", "--max-new-tokens", 8)
    assert ending.code == 0, ending
    assert ending.out == tokenizer.decode(expected.sequences[0], skip_special_tokens=True) + "\n"
    assert ending.err == (
        f"plga: guard: {seen.checks} checks, 1 fall-back, {seen.recomputed} of {seen.tokens} tokens recomputed, worst "
        f"deviation of G {seen.curvature_deviation:.1e}, of logits {seen.logit_deviation:.1e}\n"
    )
    (folder / "guard.safetensors").unlink()
    error = plga("generate", folder, "--prompt", "def f").error()
    assert "expected guard.safetensors beside its weights; write it with plga.collapse.guard.write_guard" in error


def test_a_chunked_gram(checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint)
    model.config.gram, model.config.gram_chunk, model.config.operator_mode = "chunked", 4, "chunked"
    save_model(model, tmp_path / "chunked", tokenizer=tokenizer)
    model = load_model(tmp_path / "chunked")
    ids = tokenizer("def f(x)", return_tensors="pt").input_ids
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
    for mode in ((), ("--mode", "chunked")):
        ending = plga("generate", tmp_path / "chunked", "--prompt", "def f(x)", "--max-new-tokens", 8, *mode)
        assert (ending.code, ending.err) == (0, ""), ending
        assert ending.out == tokenizer.decode(expected[0], skip_special_tokens=True) + "\n"
    error = plga("generate", tmp_path / "chunked", "--prompt", "def f(x)", "--mode", "prompt").error()
    assert "mode is 'prompt', but the operator of this model is learned with a chunked Gram, expected chunked" in error
    frozen = plga("generate", tmp_path / "chunked", "--prompt", "def f(x)", "--max-new-tokens", 3, "--mode", "constant")
    assert frozen.code == 0 and "operator frozen" in frozen.err


def test_sampling_is_a_function_of_its_seed(checkpoint: Path) -> None:
    def draw(seed: int, *options: object) -> str:
        ending = plga(
            "generate", checkpoint, "--prompt", "x", "--max-new-tokens", 12, "--sample", "--seed", seed, *options
        )
        assert ending.code == 0, ending
        return ending.out

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)
    assert draw(0, "--top-k", 1) == draw(1, "--top-k", 1)
    greedy = plga("generate", checkpoint, "--prompt", "x", "--max-new-tokens", 12).out
    assert draw(0, "--top-k", 1) == draw(1, "--temperature", 1e-6) == draw(2, "--top-p", 1e-9) == greedy


def test_it_stops_at_the_context(checkpoint: Path) -> None:
    ending = plga("generate", checkpoint, "--prompt", "def f", "--max-new-tokens", 1000)
    assert ending.code == 0
    assert ending.err == "plga: stopped at the context of 24 tokens\n"


def test_the_last_prompt_that_fits(checkpoint: Path) -> None:
    tokenizer = load_tokenizer(checkpoint)
    ids = tokenizer("import os\n" * 20).input_ids
    fits, too_long = tokenizer.decode(ids[:23]), tokenizer.decode(ids[:24])
    assert [len(tokenizer(text).input_ids) for text in (fits, too_long)] == [23, 24]
    ending = plga("generate", checkpoint, "--prompt", fits, "--max-new-tokens", 1)
    assert ending.code == 0, ending
    assert "expected at most 23" in plga("generate", checkpoint, "--prompt", too_long).error()


def test_a_calibration_text_of_ones_own(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("def f(x): return x\n" * 30, encoding="utf-8")
    options = ("--prompt", "x", "--max-new-tokens", 2, "--mode", "constant", "--calibration", file)
    ending = plga("generate", checkpoint, *options)
    assert ending.code == 0
    assert "windows of 24 tokens of own.txt" in ending.err


def test_from_a_fresh_interpreter(checkpoint: Path) -> None:
    process = fresh("generate", checkpoint, "--prompt", "def f", "--max-new-tokens", 3)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out == plga("generate", checkpoint, "--prompt", "def f", "--max-new-tokens", 3).out
