"""Operators as a file, and whole adopted models: written, read, and refused where they do not belong."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from transformers.modeling_utils import PreTrainedModel

import plga
from plga.adopt import load_operators, save_operators
from plga.adopt.classes import operators
from tests.adopt.conftest import (
    ARCHITECTURES,
    KERNELS,
    KINDS,
    bend,
    equal,
    everything,
    small,
    state,
    tokens,
)


def ours(name: str = "llama", kind: str = "constant", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return bend(plga.adopt(small(name, dtype=dtype), kind, metric_units=1, rank=3))


def written(folder: Path, kind: str = "constant", name: str = "llama") -> Path:
    file = folder / "operators.safetensors"
    save_operators(ours(name, kind), file)
    return file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_operators_come_back_from_their_file(name: str, kind: str, tmp_path: Path) -> None:
    model = ours(name, kind)
    want = model(tokens(2, 12)).logits
    file = tmp_path / "operators.safetensors"
    save_operators(model, file)
    base = small(name, dtype=torch.float32)
    assert load_operators(base, file) is base
    assert torch.equal(base(tokens(2, 12)).logits, want)
    names = set(load_file(file))
    assert names == {name.replace(".operator.", ".") for name in model.state_dict() if ".operator." in name}
    size = sum(p.numel() * 4 for operator in operators(model).values() for p in operator.parameters())
    assert size < file.stat().st_size < size + 20_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_whole_model_comes_back(name: str, kind: str, tmp_path: Path) -> None:
    model = ours(name, kind)
    before = everything(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert type(loaded) is type(model)
    assert equal(everything(loaded), before)
    assert {k: v.dtype for k, v in loaded.state_dict().items()} == {k: v.dtype for k, v in model.state_dict().items()}


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "phi3"])
def test_tensors_of_the_base_keep_their_published_names(name: str, tmp_path: Path) -> None:
    base = small(name, dtype=torch.float32)
    base.save_pretrained(tmp_path / "base")
    plga.adopt(base).save_pretrained(tmp_path / "adopted")
    theirs, found = (
        load_file(tmp_path / "base" / "model.safetensors"),
        load_file(tmp_path / "adopted" / "model.safetensors"),
    )
    assert {key for key in found if ".operator." not in key} == theirs.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in theirs.items())
    assert len(found) == len(theirs) + 2


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_lower_dtype_is_for_the_base_alone(dtype: torch.dtype, kernel: str, tmp_path: Path) -> None:
    for kind in KINDS:
        model = ours(kind=kind)
        model.save_pretrained(tmp_path / kind)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / kind, dtype=dtype, attn_implementation=kernel)
        assert loaded.config._attn_implementation == f"plga_{kernel}"
        for key, tensor in loaded.state_dict().items():
            assert tensor.dtype == (torch.float32 if ".operator." in key else dtype)
            if ".operator." in key:
                assert torch.equal(tensor, model.state_dict()[key])


def test_shards_come_back(tmp_path: Path) -> None:
    model = ours(kind="learned")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")(tokens(1, 9)).logits,
        model(tokens(1, 9)).logits,
    )


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    model = bend(plga.adopt(small("llama", dtype=torch.float32, tie_word_embeddings=True)))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert loaded.lm_head.weight is loaded.get_input_embeddings().weight
    assert torch.equal(loaded(tokens(1, 9)).logits, model(tokens(1, 9)).logits)


def test_adoption_touches_no_file_of_the_base(tmp_path: Path) -> None:
    def digests() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in tmp_path.iterdir()}

    small("llama", dtype=torch.float32).save_pretrained(tmp_path)
    before = digests()
    model = plga.adopt(AutoModelForCausalLM.from_pretrained(tmp_path))
    bend(model)
    model(tokens(1, 5)).logits.sum().backward()
    assert digests() == before


LOAD = """
import torch, sys
{first}
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
torch.save(model(torch.arange(1, 10)[None]).logits.detach(), sys.argv[2])
"""


def load_elsewhere(folder: Path, first: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(plga.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", LOAD.format(first=first), str(folder), str(folder / "logits.pt")],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("first", ["import plga", "import transformers, plga", "import plga.adopt"])
def test_a_fresh_process_loads_it_after_import_plga(first: str, tmp_path: Path) -> None:
    model = ours(kind="learned")
    torch.set_num_threads(1)
    want = model(torch.arange(1, 10)[None]).logits
    model.save_pretrained(tmp_path)
    result = load_elsewhere(tmp_path, first)
    assert result.returncode == 0, result.stderr
    assert torch.equal(torch.load(tmp_path / "logits.pt"), want)


def test_without_plga_it_is_refused_and_no_base_model(tmp_path: Path) -> None:
    ours().save_pretrained(tmp_path)
    result = load_elsewhere(tmp_path, "")
    assert result.returncode != 0
    assert "plga_adopted" in result.stderr and "does not recognize this architecture" in result.stderr
    assert not (tmp_path / "logits.pt").exists()


def test_importing_the_package_imports_no_transformers() -> None:
    code = "import sys, plga, plga.adopt; sys.exit('transformers' in sys.modules or 'torch' in sys.modules)"
    paths = os.pathsep.join([str(Path(plga.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": paths}).returncode == 0


class TestRefusals:
    def refused(self, model: PreTrainedModel, file: Path, message: str, kind: type[Exception] = ValueError) -> None:
        before, want = state(model), model(tokens(1, 9)).logits
        with pytest.raises(kind) as error:
            load_operators(model, file)
        assert "\n" not in str(error.value)
        assert message in str(error.value)
        assert state(model) == before
        assert not operators(model)
        assert torch.equal(model(tokens(1, 9)).logits, want)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "name, changes, message",
        [
            ("mistral", {}, "is for a model of type 'llama', but this is 'mistral'"),
            ("llama", {"num_hidden_layers": 3}, "is for a model of 2 attention layers, but this one has 3"),
            (
                "llama",
                {"num_attention_heads": 8, "head_dim": 8},
                "model.layers.0.self_attn has 4 heads of width 8, but in this model 8 of width 8",
            ),
            (
                "llama",
                {"head_dim": 16},
                "model.layers.0.self_attn has 4 heads of width 8, but in this model 4 of width 16",
            ),
            ("llama", {"rms_norm_eps": 1e-5}, "is for a llama of another configuration (SHA-256 "),
            ("llama", {"vocab_size": 101}, "is for a llama of another configuration (SHA-256 "),
        ],
    )
    def test_another_model(self, name: str, changes: dict[str, Any], message: str, kind: str, tmp_path: Path) -> None:
        self.refused(small(name, dtype=torch.float32, **changes), written(tmp_path, kind), message)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        file = tmp_path / "none.safetensors"
        self.refused(small("llama", dtype=torch.float32), file, f"{file}: no such file", FileNotFoundError)

    @pytest.mark.parametrize("keep", [0, 7, 100, -1])
    def test_a_truncated_file(self, keep: int, tmp_path: Path) -> None:
        file = written(tmp_path)
        file.write_bytes(file.read_bytes()[:keep])
        self.refused(small("llama", dtype=torch.float32), file, f"{file}: truncated, or not a safetensors file")

    def test_a_foreign_file(self, tmp_path: Path) -> None:
        file = tmp_path / "foreign.safetensors"
        save_file({"x": torch.zeros(2)}, file)
        self.refused(
            small("llama", dtype=torch.float32), file, f"{file}: format is None, expected 'plga operators 1', whi"
        )

    def rewritten(self, file: Path, change: Any) -> None:
        with safe_open(file, framework="pt") as opened:
            metadata = dict(opened.metadata())
        tensors = load_file(file)
        change(tensors, metadata)
        save_file(tensors, file, metadata=metadata)

    @pytest.mark.parametrize(
        "change",
        [
            lambda t, m: m.pop("layers"),
            lambda t, m: m.update(operator="["),
            lambda t, m: m.update(layers="[1]"),
            lambda t, m: m.update(layers='{"x": "y"}'),
            lambda t, m: m.update(operator="3"),
        ],
    )
    def test_damaged_metadata(self, change: Any, tmp_path: Path) -> None:
        file = written(tmp_path)
        self.rewritten(file, change)
        self.refused(small("llama", dtype=torch.float32), file, f"{file}: its metadata is damaged (")

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda t, m: m.update(operator='{"kind": "unitary"}'), "operator is 'unitary', expected one of"),
            (lambda t, m: m.update(operator='{"rank": 0}'), "rank is 0, expected a whole number >= 1"),
            (lambda t, m: m.update(operator='{"size": 1}'), "operator has a setting 'size', expected some of kind, "),
            (
                lambda t, m: m.update(format="plga operators 2"),
                "format is 'plga operators 2', expected 'plga operators 1'",
            ),
            (
                lambda t, m: t.pop("model.layers.1.self_attn.curvature"),
                "tensors differ in model.layers.1.self_attn.curvature",
            ),
            (lambda t, m: t.update(x=torch.zeros(1)), "tensors differ in x; expected alike"),
            (
                lambda t, m: t.update({"model.layers.1.self_attn.curvature": torch.zeros(4, 8, 7)}),
                "is (4, 8, 7), expected (4, 8, 8)",
            ),
            (
                lambda t, m: t["model.layers.1.self_attn.curvature"].fill_(float("nan")),
                "model.layers.1.self_attn.curvature has entries that are not finite",
            ),
            (
                lambda t, m: t.update({"model.layers.1.self_attn.curvature": torch.zeros(4, 8, 8, dtype=torch.int32)}),
                "model.layers.1.self_attn.curvature is torch.int32, expected floating point",
            ),
        ],
    )
    def test_contents_that_are_wrong(self, change: Any, message: str, tmp_path: Path) -> None:
        file = written(tmp_path)
        self.rewritten(file, change)
        self.refused(small("llama", dtype=torch.float32), file, message)

    def test_a_model_adopted_already(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"^AdoptedLlamaForCausalLM is adopted already"):
            load_operators(ours(), written(tmp_path))

    def test_a_model_that_is_not_adopted_has_none_to_save(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"^LlamaForCausalLM is not adopted, so it has no operators; call plga.adopt"
        ):
            save_operators(small("llama"), tmp_path / "x")

    def test_a_file_that_exists(self, tmp_path: Path) -> None:
        file = written(tmp_path)
        before = file.read_bytes()
        with pytest.raises(FileExistsError, match="exists, expected a new file, or --overwrite"):
            save_operators(ours(kind="low_rank"), file)
        assert file.read_bytes() == before
        save_operators(ours(kind="low_rank"), file, overwrite=True)
        assert file.read_bytes() != before
        assert [path.name for path in tmp_path.iterdir()] == [file.name]

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(OSError, match="file"):
            save_operators(ours(), tmp_path / "file" / "operators.safetensors")
        with pytest.raises(FileExistsError):
            save_operators(ours(), tmp_path, overwrite=True)


def test_the_file_says_what_it_belongs_to(tmp_path: Path) -> None:
    with safe_open(written(tmp_path, "low_rank"), framework="pt") as opened:
        metadata = opened.metadata()
    assert metadata["format"] == "plga operators 1" and metadata["base_model_type"] == "llama"
    assert json.loads(metadata["operator"])["kind"] == "low_rank" and len(metadata["base_config_sha256"]) == 64


def test_operators_of_a_bf16_model_are_written_in_float32(tmp_path: Path) -> None:
    model = ours(dtype=torch.bfloat16)
    save_operators(model, tmp_path / "x")
    tensors: dict[str, Tensor] = load_file(tmp_path / "x")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    other = load_operators(small("llama", dtype=torch.bfloat16), tmp_path / "x")
    assert torch.equal(other(tokens(1, 9)).logits, model(tokens(1, 9)).logits)


def test_loaded_operators_train_on(tmp_path: Path) -> None:
    model = load_operators(small("llama", dtype=torch.float32), written(tmp_path))
    model(tokens(1, 9)).logits.square().sum().backward()
    assert all(bool(p.grad.any()) for operator in operators(model).values() for p in operator.parameters())


def test_the_class_of_the_base_leaves_the_operators_of_a_whole_model_out_with_a_warning_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Transformers lets any class read any configuration: what it says is that the type differs."""
    ours().save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    assert not operators(loaded)
