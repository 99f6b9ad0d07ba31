"""vLLM through its plugin: ``vllm.LLM`` on both formats, on one rank and on two, and what it refuses."""

import json
import logging
import logging.handlers
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from plga.collapse.guard import write_guard
from plga.collapse.seal import seal
from plga.model.checkpoint import load_model, save_model
from plga.model.guard_settings import GuardSettings
from plga.model.released_models import PldrllmForCausalLM
from plga.model.seal import TRUST
from plga.model.signing import create_keys
from plga.model.tokenizer import load_tokenizer

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-serving")


def written(checkpoint: Path, ranks: int, prompts: list[list[int]], count: int, file: Path) -> list[list[int]]:
    """What ``vllm.LLM`` writes after ``prompts``, by way of ``file``."""
    # By itself vLLM gives every rank a NUMA node of its own, and a small machine has one.
    settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.serving.offline", str(checkpoint), str(ranks), str(count), str(file)],
        cwd=Path(__file__).parents[2],
        env=os.environ | settings | quiet,
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    tokens: list[list[int]] = json.loads(file.read_text(encoding="utf-8"))
    return tokens


@pytest.mark.parametrize(("published", "ranks"), [(False, 2), (True, 1)], ids=["two ranks, guarded", "published"])
def test_tokens_of_the_reference(
    collapsed: Path, learned: Path, reference: Path, tmp_path: Path, published: bool, ranks: int
) -> None:
    """One rank on our format gives these tokens too: tests/serving/test_vllm_server.py."""
    expected = load_file(reference / "critical.expected.safetensors")
    checkpoint, model = tmp_path / "checkpoint", load_model(collapsed)
    written_as = PldrllmForCausalLM.from_plga(model) if published else model
    save_model(written_as, checkpoint, tokenizer=load_tokenizer(collapsed))
    if not published:  # vLLM does not run the guard, but reads every tensor that lies beside the weights
        write_guard(load_model(learned), checkpoint, GuardSettings(64, 2.0, 1e-5, 1e-3))
    cases = [f"case{i}" for i in range(3)]
    prompts = [expected[f"{case}.input_ids"][0].tolist() for case in cases]
    greedy = [expected[f"{case}.greedy_recompute"][0].tolist() for case in cases]
    assert written(checkpoint, ranks, prompts, 16, tmp_path / "tokens.json") == greedy


def test_learned_operator_is_refused(learned: Path) -> None:
    from vllm.config import ModelConfig
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    with pytest.raises(ValueError) as error:
        ModelConfig(model=str(learned))
    lines = [line for line in str(error.value).splitlines() if "plga collapse" in line]
    assert len(lines) == 1
    assert f"{learned}: the operator is learned, expected constant" in lines[0]
    assert f"plga collapse {learned} --out DIR" in lines[0]


@pytest.fixture
def plugin() -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()


def copied(collapsed: Path, folder: Path) -> Path:
    return Path(shutil.copytree(collapsed, folder))


@pytest.mark.usefixtures("plugin")
def test_what_differs_from_its_seal_is_refused(
    collapsed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plugin, so by ``vllm serve`` and ``vllm.LLM`` too, which no ``plga serve`` goes before."""
    from vllm.config import ModelConfig

    create_keys(tmp_path / "key.pem")
    sealed = copied(collapsed, tmp_path / "sealed")
    seal(sealed, tmp_path / "key.pem")
    ModelConfig(model=str(sealed))
    weights = bytearray((sealed / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (sealed / "model.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match=r"model\.safetensors differs in .*: not what was sealed"):
        ModelConfig(model=str(sealed))
    (tmp_path / "trust.json").write_text('{"required": true}')
    monkeypatch.setenv(TRUST, str(tmp_path / "trust.json"))
    with pytest.raises(FileNotFoundError, match=r"no seal\.json, but a seal is required"):
        ModelConfig(model=str(collapsed))


@pytest.mark.usefixtures("plugin")
def test_a_guard_that_is_not_run_is_told(collapsed: Path, learned: Path, tmp_path: Path) -> None:
    from vllm.config import ModelConfig

    guarded, seen = copied(collapsed, tmp_path / "guarded"), logging.handlers.BufferingHandler(1000)
    logging.getLogger("vllm.plga").addHandler(seen)
    try:
        ModelConfig(model=str(guarded))
        assert seen.buffer == []
        write_guard(load_model(learned), guarded, GuardSettings(64, 2.0, 1e-5, 1e-3))
        ModelConfig(model=str(guarded))
    finally:
        logging.getLogger("vllm.plga").removeHandler(seen)
    (record,) = seen.buffer
    assert record.getMessage().startswith(
        f"{guarded / 'generation_config.json'}: guard is set, but vLLM does not run it"
    )
