"""The ONNX graph in ONNX Runtime against our own model: the same tokens, whatever past, padding and batch."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plga.collapse.freeze import freeze
from plga.model.checkpoint import load_model
from plga.model.modeling import PldrForCausalLM
from plga.serving import onnx as serving
from plga.serving.onnx import export_onnx
from tests.model.conftest import constant, pad, tiny, tokens
from tests.threads import one_thread

__all__ = ["one_thread"]


class Runtime:
    """One exported model in ONNX Runtime."""

    def __init__(self, file: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.past = [value for value in self.session.get_inputs() if value.name.startswith("past.")]

    def __call__(self, ids: Tensor, mask: Tensor, past: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        """Logits [B, S, V] and the present, which is the past of the next step."""
        if past is None:
            heads, width = self.past[0].shape[1], self.past[0].shape[3]
            past = [numpy.zeros((len(ids), heads, 0, width), numpy.float32) for _ in self.past]
        feeds = {value.name: array for value, array in zip(self.past, past, strict=True)}
        logits, *present = self.session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy(), **feeds})
        return torch.from_numpy(logits), present

    def greedy(self, ids: Tensor, mask: Tensor, steps: int) -> Tensor:
        """Greedy tokens [B, steps]; padding on the left."""
        past, chosen = None, []
        for _ in range(steps):
            logits, past = self(ids, mask, past)
            ids = logits[:, -1:].argmax(dim=-1)
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            chosen.append(ids)
        return torch.cat(chosen, dim=1)


@pytest.fixture(scope="module")
def critical(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The collapsed reference checkpoint, frozen at the mean G_LM of its three cases, and its graph."""
    expected = load_file(reference / "critical.expected.safetensors")
    learned = load_model(reference / "critical.pth")
    curvature = torch.stack([expected[f"case{i}.curvature"] for i in range(3)]).mean(dim=0)
    model = freeze(learned, curvature)
    file = tmp_path_factory.mktemp("onnx") / "critical.onnx"
    assert export_onnx(model, file) == [file]
    return SimpleNamespace(model=model, expected=expected, runtime=Runtime(file), file=file)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[PldrForCausalLM, Runtime]:
    """A random model, whose G_LM is far from a collapsed one."""
    model, file = constant(torch.float32), tmp_path_factory.mktemp("onnx") / "small.onnx"
    export_onnx(model, file)
    return model, Runtime(file)


@pytest.mark.parametrize("case", ["case0", "case1", "case2"])
def test_greedy_tokens_of_the_reference(critical: SimpleNamespace, case: str) -> None:
    ids, wanted = critical.expected[f"{case}.input_ids"], critical.expected[f"{case}.greedy_recompute"]
    ours = critical.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    assert torch.equal(ours[:, ids.shape[1] :], wanted)
    assert torch.equal(critical.runtime.greedy(ids, torch.ones_like(ids), 16), wanted)


def test_prompts_of_every_length(critical: SimpleNamespace) -> None:
    ids = critical.expected["case0.input_ids"]
    for length in (1, 2, 3, 4, 7, ids.shape[1]):
        prompt = ids[:, :length]
        mask = torch.ones_like(prompt)
        ours = critical.model.generate(
            prompt, attention_mask=mask, max_new_tokens=8, do_sample=False, eos_token_id=None
        )
        assert torch.equal(critical.runtime.greedy(prompt, mask, 8), ours[:, length:]), length


@torch.no_grad()
def test_logits_whatever_the_past(small: tuple[PldrForCausalLM, Runtime]) -> None:
    model, runtime = small
    ids = tokens(3, 12)
    mask = torch.ones_like(ids)
    expected = model(ids).logits
    whole, present = runtime(ids, mask)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5)
    for cut in (1, 2, 5, 11):
        first, past = runtime(ids[:, :cut], mask[:, :cut])
        second, both = runtime(ids[:, cut:], mask, past)
        torch.testing.assert_close(torch.cat([first, second], dim=1), expected, rtol=1e-4, atol=1e-5)
        assert [array.shape for array in both] == [(3, 2, 12, 4)] * 4
        for ours, theirs in zip(both, present, strict=True):
            numpy.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_padding_on_the_left_changes_no_token(small: tuple[PldrForCausalLM, Runtime]) -> None:
    model, runtime = small
    sequences = [tokens(length, seed=length) for length in (1, 4, 9)]
    ids, mask = pad(sequences, left=True)
    found = runtime.greedy(ids, mask, 6)
    for row, sequence in enumerate(sequences):
        prompt = sequence[None]
        ours = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
        assert torch.equal(found[row], ours[0, len(sequence) :])


def test_the_graph_is_whole_and_its_axes_are_named(critical: SimpleNamespace) -> None:
    onnx.checker.check_model(critical.file, full_check=True)
    inputs = {value.name: value.shape for value in critical.runtime.session.get_inputs()}
    outputs = {value.name: value.shape for value in critical.runtime.session.get_outputs()}
    past, present = ["batch", 4, "past", 32], ["batch", 4, "past + new", 32]
    names = [f"{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    assert inputs == {
        "input_ids": ["batch", "new"],
        "attention_mask": ["batch", "known"],
        **{f"past.{name}": past for name in names},
    }
    assert outputs == {"logits": ["batch", "new", 2048], **{f"present.{name}": present for name in names}}
    assert [path.name for path in critical.file.parent.iterdir()] == ["critical.onnx"]


def test_a_learned_operator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="operator of this model is learned, expected constant: plga collapse freezes"):
        export_onnx(tiny(torch.float32), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    model = constant(torch.float32)
    with torch.no_grad():
        model.model.layers[0].self_attn.operator.curvature[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.operator\.curvature is not finite, expected finite"):
        export_onnx(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.onnx"
    file.write_text("mine")
    with pytest.raises(FileExistsError, match=r"m\.onnx exists, expected a new file"):
        export_onnx(constant(torch.float32), file)
    assert file.read_text() == "mine"

    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError("in the middle")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(ValueError, match="in the middle"):
        export_onnx(constant(torch.float32), file, overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("m.onnx", "mine")]


def test_weights_that_no_file_holds_go_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_LARGEST", 1000)
    model, file = constant(torch.float32), tmp_path / "m.onnx"
    file.write_text("old")
    assert export_onnx(model, file, overwrite=True) == [file, tmp_path / "m.onnx.data"]
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
    ids = tokens(1, 5)
    ours = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    assert torch.equal(Runtime(file).greedy(ids, torch.ones_like(ids), 6), ours[:, 5:])


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OSError, match=rf"the package {package} is missing: pip install 'plga\[export\]'"):
        export_onnx(constant(torch.float32), tmp_path / "m.onnx")


def test_the_example_of_the_docs_prints_our_tokens(critical: SimpleNamespace) -> None:
    """docs/export.md: its Python block, run as it stands, beside the graph that it names."""
    page = Path(__file__).resolve().parents[2] / "docs" / "export.md"
    code = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=critical.file.parent, env=os.environ, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    prompt = torch.tensor([[int(token) for token in code.split("prompt = [")[1].split("]")[0].split(",")]])
    ours = critical.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    assert run.stdout.strip() == str(ours[0, prompt.shape[1] :].tolist())
