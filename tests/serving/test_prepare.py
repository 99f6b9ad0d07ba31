"""``plga serve`` refuses in one line, before any engine starts."""

import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch

from plga.collapse.seal import seal
from plga.model.checkpoint import load_model, save_model
from plga.model.released_models import PldrllmForCausalLM
from plga.model.signing import create_keys
from plga.serving import serve
from plga.serving.serve import prepare
from tests.cli.runner import plga


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules of engines that seem to be there."""
    modules = {"vllm", "fastapi", "openai", "uvicorn"}
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: name if name in modules else None)
    return modules


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_learned_operator(learned: Path) -> None:
    error = plga("serve", learned).error()
    assert error == (
        f"{learned}: the operator is learned, expected constant; collapse it first: plga collapse {learned} --out DIR"
    )


def test_missing_folder(tmp_path: Path) -> None:
    assert plga("serve", tmp_path / "nothing").error().startswith(f"{tmp_path / 'nothing'}: no such file or directory")


def test_a_file(reference: Path) -> None:
    error = plga("serve", reference / "critical.pth").error()
    assert "is a file, expected a directory" in error and "plga convert" in error


def test_no_tokenizer(collapsed: Path, tmp_path: Path) -> None:
    save_model(load_model(collapsed), tmp_path / "bare")
    assert "tokenizer" in plga("serve", tmp_path / "bare").error()


def test_other_weights_than_sealed(collapsed: Path, installed: set[str], tmp_path: Path) -> None:
    create_keys(tmp_path / "key.pem")
    sealed = tmp_path / "sealed"
    shutil.copytree(collapsed, sealed)
    seal(sealed, tmp_path / "key.pem")
    assert prepare(sealed, port=free_port()).engine == "vllm"
    weights = sealed / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ValueError, match=r"model\.safetensors differs in .*: not what was sealed"):
        prepare(sealed, port=free_port())


def test_unknown_engine(collapsed: Path) -> None:
    assert plga("serve", collapsed, "--engine", "other").error() == (
        "engine is 'other', expected one of auto, vllm, transformers"
    )


def test_no_engine(collapsed: Path, installed: set[str]) -> None:
    installed.remove("openai")
    assert prepare(collapsed, port=free_port()).engine == "vllm"
    with pytest.raises(ValueError, match=r"engine transformers is not installed; .*serve-transformers"):
        prepare(collapsed, engine="transformers")
    installed.remove("vllm")
    with pytest.raises(ValueError, match=r"engine vllm or transformers is not installed; .*make setup-serving"):
        prepare(collapsed)
    installed.add("openai")
    assert prepare(collapsed, port=free_port()).engine == "transformers"


def test_port_in_use(collapsed: Path, installed: set[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: .*choose another --port"):
            prepare(collapsed, port=port)
    assert prepare(collapsed, port=port).engine == "vllm"
    for impossible in (0, -1, 65536):
        with pytest.raises(ValueError, match=f"port is {impossible}, expected 1 to 65535"):
            prepare(collapsed, port=impossible)
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1"):
        prepare(collapsed, host="192.0.2.1", port=port)


def test_what_starts(collapsed: Path, installed: set[str], tmp_path: Path) -> None:
    port = free_port()
    _, command, environment = prepare(collapsed, port=port, options=["--max-num-seqs", "4"])
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert command[:5] == [sys.executable, "-m", "plga.serving.vllm_server", "--model", str(collapsed)]
    assert command[command.index("--dtype") + 1] == "float32"
    assert command[-2:] == ["--max-num-seqs", "4"]
    if not torch.accelerator.is_available():  # 64 contexts of 128 tokens: keys and values of 2 layers of 128 numbers
        assert command[command.index("--kv-cache-memory-bytes") + 1] == str(64 * 2 * 2 * 128 * 128 * 4)
    published = tmp_path / "published"
    save_model(PldrllmForCausalLM.from_plga(load_model(collapsed).bfloat16()), published)
    for file in collapsed.glob("tokenizer*"):
        (published / file.name).write_bytes(file.read_bytes())
    command = prepare(published, port=port).command
    assert command[command.index("--dtype") + 1] == "bfloat16"
    command = prepare(published, port=port, engine="transformers").command
    assert command[1:5] == ["-m", "plga.serving.transformers_server", "serve", str(published)]
