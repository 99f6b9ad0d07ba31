"""Pickles: tensors come out of them, and nothing in them runs."""

import builtins
import functools
import io
import operator
import os
import pickle
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from plga.model import pickles
from plga.model.checkpoint import load_model
from plga.model.pickles import load_curvatures, load_tensors


def test_published_curvatures(reference: Path) -> None:
    trained = load_curvatures(reference / "G_LM_PLDRv51-110M-1.pkl")
    assert trained.shape == (5, 14, 64, 64)
    assert trained.dtype == torch.float32
    assert trained.device.type == "cpu"
    assert trained.std() > 0
    control = load_curvatures(reference / "G_LM_mismatched_identity.pkl")
    assert torch.equal(control, torch.eye(64).expand(5, 14, 64, 64))


def _pickled(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_curvature_is_the_last_tensor_of_a_layer(tmp_path: Path, protocol: int) -> None:
    layers = torch.randn(3, 2, 1, 4, 5, 5)
    path = _pickled(tmp_path / "G.pkl", [[layer[0].clone(), layer[1].clone()] for layer in layers], protocol)
    assert torch.equal(load_curvatures(path), layers[:, 1, 0])
    path = _pickled(tmp_path / "G.pkl", [torch.nn.Parameter(layer[0, 0].clone()) for layer in layers], protocol)
    loaded = load_curvatures(path)
    assert torch.equal(loaded, layers[:, 0, 0])
    assert not loaded.requires_grad


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 1}, "holds dict, expected a list of layers"),
        ([], "holds list"),
        ([["G"]], "layer 0 holds str"),
        ([[torch.zeros(1, 2, 3, 3, dtype=torch.int64)]], "layer 0 holds Tensor"),
        ([[torch.zeros(2, 2, 3, 3)]], r"layer 0 is \[2, 2, 3, 3\]"),
        ([[torch.zeros(1, 2, 3, 4)]], r"layer 0 is \[2, 3, 4\]"),
        ([[torch.zeros(1, 2, 3, 3)], [torch.zeros(1, 2, 4, 4)]], r"layer 1 is \[2, 4, 4\]"),
        ([[torch.full((1, 2, 3, 3), float("nan"))]], "not finite"),
    ],
)
def test_not_curvatures(tmp_path: Path, content: object, message: str) -> None:
    path = _pickled(tmp_path / "G.pkl", content)
    with pytest.raises(ValueError, match=message) as caught:
        load_curvatures(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("size", [0, 1, 40, 400])
def test_truncated_curvatures(tmp_path: Path, size: int) -> None:
    path = _pickled(tmp_path / "G.pkl", [[torch.zeros(1, 2, 8, 8)]])
    os.truncate(path, size)
    with pytest.raises(ValueError, match="truncated, or not a file of tensors"):
        load_curvatures(path)
    with pytest.raises(FileNotFoundError):
        load_curvatures(tmp_path / "absent.pkl")


class Call:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


class Built:
    """Pickles as an object of another class with a state."""

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.Popen.__new__, (subprocess.Popen,), {"args": "true"}


def _attacks(marker: Path) -> dict[str, tuple[object, str]]:
    """Objects whose unpickling would create ``marker``, or get closer to it, and what is to be refused."""
    touch = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w')"
    return {
        "system": (Call(os.system, touch), f"{os.system.__module__}.system"),
        "eval": (Call(builtins.eval, code), "eval"),
        "exec": (Call(builtins.exec, code), "exec"),
        "open": (Call(builtins.open, str(marker), "w"), "open"),
        "getattr": (Call(builtins.getattr, 1, "__class__"), "getattr"),
        "partial": (functools.partial(os.system, touch), "functools.partial"),
        "attrgetter": (operator.attrgetter("load"), "operator.attrgetter"),
        "popen": (Call(subprocess.Popen, ["touch", str(marker)]), "(subprocess|commands).Popen"),
        "built": (Built(), "getattr|Popen"),
        "torch.load": (Call(torch.load, str(marker)), "torch.serialization.load"),
        "module": (torch.nn.Linear(2, 2), "linear.Linear|_reconstructor"),
        "hub": (Call(torch.hub.load, str(marker), "model"), "torch.hub.load"),
    }


@pytest.mark.parametrize("name", _attacks(Path("x")))
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_with_code_in_it_is_refused_by_name(tmp_path: Path, name: str, protocol: int) -> None:
    marker = tmp_path / "ran"
    attack, wanted = _attacks(marker)[name]
    contents: list[object] = [attack, [[torch.zeros(1, 1, 2, 2), attack]], {"deep": [([attack],)]}]
    # A storage inside a pickled tensor is a pickle of its own: once as torch wrote it long ago, once as a zip.
    contents.append([[Call(torch.storage._load_from_bytes, pickle.dumps(attack, min(protocol, 2)))]])
    buffer = io.BytesIO()
    torch.save([attack], buffer)
    contents.append([[Call(torch.storage._load_from_bytes, buffer.getvalue())]])
    for content in contents:
        path = _pickled(tmp_path / "G.pkl", content, protocol)
        with pytest.raises(ValueError, match=rf"G.pkl: refused, because it wants \S*({wanted})") as caught:
            load_curvatures(path)
        assert "\n" not in str(caught.value)
        assert not marker.exists()


@pytest.mark.parametrize("name", _attacks(Path("x")))
def test_a_pth_with_code_in_it_is_refused_by_name(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "ran"
    attack, wanted = _attacks(marker)[name]
    torch.save({"model_state_dict": {"decoder.embedding.weight": attack}}, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=rf"model.pth: refused, because it wants \S*({wanted})") as caught:
        load_model(tmp_path / "model.pth")
    assert "\n" not in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (b"cos\nsystem\n.", "os.system"),
        (b"(S'true'\nios\nsystem\n.", "os.system"),  # INST
        (b"(cos\nsystem\nS'true'\no.", "os.system"),  # OBJ
        (b"\x80\x04\x8c\x0ctorch._utils\x8c\x1e_rebuild_tensor_v2.__globals__\x93.", "__globals__"),  # a dotted name
        (b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.", "builtins.getattr"),
        (b"Pname\n.", "a persistent id"),
    ],
)
def test_handwritten_pickles(tmp_path: Path, code: bytes, wanted: str) -> None:
    (tmp_path / "G.pkl").write_bytes(code)
    with pytest.raises(ValueError, match=f"refused, because it wants \\S*{wanted}"):
        load_curvatures(tmp_path / "G.pkl")


def test_a_pickle_cannot_change_what_it_may_call(tmp_path: Path) -> None:
    # Opcode BUILD sets attributes: here the defaults of the function that rebuilds tensors.
    code = b"ctorch._utils\n_rebuild_tensor_v2\n(N}S'__defaults__'\n(I1\nI2\nI3\ntstb."
    (tmp_path / "G.pkl").write_bytes(code)
    before = torch._utils._rebuild_tensor_v2.__defaults__
    with pytest.raises(ValueError, match="holds function, expected a list of layers"):
        load_curvatures(tmp_path / "G.pkl")
    assert torch._utils._rebuild_tensor_v2.__defaults__ == before
    assert pickles._CALLABLES["collections", "OrderedDict"] is OrderedDict


def test_tensors_of_a_pth_may_be_in_containers(tmp_path: Path) -> None:
    content = {"a": [torch.ones(2), (1, "b", None)], "c": OrderedDict(d=torch.zeros(1))}
    torch.save(content, tmp_path / "x.pth")
    loaded = load_tensors(tmp_path / "x.pth")
    assert torch.equal(loaded["a"][0], torch.ones(2))
    assert loaded["a"][1] == (1, "b", None)
