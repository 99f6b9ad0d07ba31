"""Adopted models, their configurations and caches as pickles: their classes are made as they are needed."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers.modeling_utils import PreTrainedModel

import plga
from tests.adopt.conftest import KINDS, bend, small, tokens


def ours(name: str = "llama", kind: str = "constant") -> PreTrainedModel:
    return bend(plga.adopt(small(name, "sdpa", torch.float32), kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss"])
def test_a_model_comes_back(name: str, kind: str) -> None:
    model = ours(name, kind) if name != "gpt_oss" else bend(plga.adopt(small(name, "eager", torch.float32), kind))
    for protocol in (0, pickle.HIGHEST_PROTOCOL):
        again = pickle.loads(pickle.dumps(model, protocol))
        assert type(again) is type(model) and again.config.to_dict() == model.config.to_dict()
        with torch.no_grad():
            assert torch.equal(again(tokens(2, 9)).logits, model(tokens(2, 9)).logits)


READ = """
import sys, torch
model, config = torch.load(sys.argv[1], weights_only=False)
torch.save(model(torch.arange(1, 10)[None]).logits.detach(), sys.argv[2])
from transformers import AutoModelForCausalLM
assert type(AutoModelForCausalLM.from_config(config)) is type(model)
"""


def test_a_process_that_has_adopted_nothing_reads_it(tmp_path: Path) -> None:
    model = ours(kind="learned")
    torch.save((model, model.config), tmp_path / "model.pt")
    paths = os.pathsep.join([str(Path(plga.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "model.pt"), str(tmp_path / "logits.pt")],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert torch.equal(torch.load(tmp_path / "logits.pt"), model(torch.arange(1, 10)[None]).logits)


@torch.no_grad()
def test_a_filled_cache_comes_back() -> None:
    model = ours(kind="learned")
    cache = model(tokens(1, 9), use_cache=True).past_key_values
    again = pickle.loads(pickle.dumps(cache))
    assert type(again) is type(cache)
    step = tokens(1, 1, seed=1)
    assert torch.equal(model(step, past_key_values=again).logits, model(step, past_key_values=cache).logits)


def test_adoption_leaves_no_hooks_of_its_look_at_hidden_states() -> None:
    """Transformers' own, by which it collects them, cannot be pickled; whoever asked before keeps them."""
    model = small("llama")
    plga.adopt(model)
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    assert not any(hook.__module__.startswith("transformers") for hook in hooks)
    asked = small("llama")
    states = len(asked(tokens(1, 9), output_hidden_states=True).hidden_states)
    before = {module: set(module._forward_hooks) for module in asked.modules()}
    assert any(before.values())
    plga.adopt(asked)
    assert all(hooks <= module._forward_hooks.keys() for module, hooks in before.items())
    for each in (model, asked):
        assert len(each(tokens(1, 9), output_hidden_states=True).hidden_states) == states
