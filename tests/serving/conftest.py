"""A collapsed checkpoint to serve: the near-critical reference model with its operator frozen."""

import argparse
from pathlib import Path

import pytest
import torch
from torch import Tensor

from plga.collapse.freeze import freeze_on
from plga.model.checkpoint import load_model, save_model
from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def text(reference: Path) -> Tensor:
    """Tokens of a module of the standard library, [T]."""
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    source = Path(argparse.__file__).read_text(encoding="utf-8")
    ids: Tensor = tokenizer(source, return_tensors="pt", verbose=False).input_ids[0]
    return ids


@pytest.fixture(scope="session")
def model(reference: Path, text: Tensor) -> PldrForCausalLM:
    """The collapsed model, in float32."""
    frozen, _ = freeze_on(load_model(reference / "critical.pth"), text[: 16 * 128].view(16, 128))
    return frozen


@pytest.fixture(scope="session")
def collapsed(model: PldrForCausalLM, reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoint, with the tokenizer. Not to be written to."""
    folder = tmp_path_factory.mktemp("serving") / "collapsed"
    save_model(model, folder, tokenizer=load_tokenizer(reference / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def learned(reference: Path, collapsed: Path) -> Path:
    """A checkpoint with a learned operator."""
    folder = collapsed.parent / "learned"
    tokenizer = load_tokenizer(reference / "tokenizer.json")
    save_model(load_model(reference / "critical.pth"), folder, tokenizer=tokenizer)
    return folder


@torch.no_grad()
def greedy(model: PldrForCausalLM, prompt: list[int], count: int) -> list[int]:
    """What our own generation writes after ``prompt``, one sequence at a time."""
    ids = torch.tensor([prompt])
    written = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
    tokens: list[int] = written[0, len(prompt) :].tolist()
    return tokens


@pytest.fixture(scope="session")
def requests(model: PldrForCausalLM, text: Tensor) -> list[tuple[list[int], list[int]]]:
    """Sixteen prompts of different lengths, and what our own generation writes after each."""
    prompts = [text[40 * i : 40 * i + 3 + 5 * i].tolist() for i in range(16)]
    return [(prompt, greedy(model, prompt, 16 + i)) for i, prompt in enumerate(prompts)]
