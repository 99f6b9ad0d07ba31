"""The published Transformers format: loaded by the Auto classes as it is, and given back as it was."""

import builtins
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from plga.collapse.freeze import freeze
from plga.model.checkpoint import load_model, load_released, save_model
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.names import from_released, to_released
from plga.model.released import STATUS, VALUES, PldrllmConfig, from_published, to_published
from plga.model.released_models import PldrllmForCausalLM, PldrllmModel
from tests.model.conftest import constant, tiny, tokens

Tensors = dict[str, Tensor]

# A published config.json, but for its numbers; transformers_version and auto_map are as published too.
CONFIG = {
    "A_dff": 5,
    "architectures": ["PldrllmForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_pldrllm.PldrllmConfig",
        "AutoModelForCausalLM": "modeling_pldrllm.PldrllmForCausalLM",
    },
    "bos_token_id": 2,
    "cache_first_G": False,
    "custom_G_type": None,
    "dtype": "float32",
    "eos_token_id": 3,
    "final_bias": True,
    "glu_bias": True,
    "head_dim": 4,
    "hidden_act": "silu",
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 10,
    "layer_norm_eps": 1e-06,
    "max_position_embeddings": 32,
    "model_type": "pldrllm",
    "num_attention_heads": 2,
    "num_denseA": 2,
    "num_hidden_layers": 2,
    "num_reslayerA": 2,
    "output_pldr_attentions": False,
    "pad_token_id": 0,
    "reference_rope": True,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.56.1",
    "use_cache": True,
    "vocab_size": 64,
}


def publish(folder: Path, tensors: Tensors, **changes: Any) -> Path:
    """Write a directory in the published format by hand: config.json and tensors, nothing of ours involved."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def learned_tensors(model: PldrForCausalLM) -> Tensors:
    return {to_released(name): tensor.clone() for name, tensor in model.state_dict().items()}


def constant_tensors(status: torch.dtype = torch.bool) -> Tensors:
    """Tensors of a published model with a constant G_LM, and with something in every slot."""
    tensors = {name: t for name, t in learned_tensors(constant(torch.float32)).items() if "operator" not in name}
    tensors[VALUES] = torch.randn(2, 3, 1, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    tensors[STATUS] = torch.tensor([1, 0]).to(status)
    return tensors


def same(ours: Tensors, theirs: Tensors) -> bool:
    """Same names, dtypes and bits."""
    return ours.keys() == theirs.keys() and all(
        tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]) for name, tensor in ours.items()
    )


def logits(model: Any, seed: int = 0) -> Tensor:
    with torch.no_grad():
        return model(tokens(2, 12, seed=seed), use_cache=False).logits


@pytest.fixture(autouse=True)
def _no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked whether to trust remote code."""

    def refuse(*arguments: object) -> str:
        raise AssertionError(f"asked: {arguments}")

    monkeypatch.setattr(builtins, "input", refuse)


def auto(folder: Path, **options: Any) -> PldrllmForCausalLM:
    """AutoModelForCausalLM, which must find every tensor and no other."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values()), info
    assert type(model) is PldrllmForCausalLM
    return model


def test_names_are_one_to_one() -> None:
    for model in (tiny(), constant()):
        for name in model.state_dict():
            if not name.endswith("curvature"):
                assert from_released(to_released(name)) == name
                assert "operator" not in to_released(name)
    for name in (VALUES, STATUS):
        assert to_released(from_released(name)) == name


def test_published_names(reference: Path) -> None:
    published = torch.load(reference / "critical.pth", weights_only=True)["model_state_dict"]
    assert all(to_released(from_released(name)) == name for name in published)
    ours, unread = from_published(published)
    assert not unread
    assert same(to_published(ours), published)


def test_auto_model_loads_and_saves_the_published_format(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    tensors = learned_tensors(model)
    loaded = auto(publish(tmp_path / "published", tensors))
    assert same(loaded.state_dict(), model.state_dict())
    assert torch.equal(logits(loaded), logits(model))
    loaded.save_pretrained(tmp_path / "again")
    assert same(load_file(tmp_path / "again" / "model.safetensors"), tensors)
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    expected = {name: value for name, value in CONFIG.items() if name != "auto_map"}
    assert written | {"transformers_version": CONFIG["transformers_version"]} == expected
    assert torch.equal(logits(auto(tmp_path / "again")), logits(model))


def test_trained_weights_in_the_published_format(reference: Path, tmp_path: Path) -> None:
    """The trained .pth and the published config.json, put together as published checkpoints are."""
    tensors = torch.load(reference / "critical.pth", weights_only=True)["model_state_dict"]
    config = json.loads((reference / "released_config.json").read_text())
    config |= {"A_dff": 85, "hidden_size": 128, "head_dim": 32, "num_attention_heads": 4, "intermediate_size": 341}
    config |= {"max_position_embeddings": 128, "num_hidden_layers": 2, "vocab_size": 2048}
    loaded = auto(publish(tmp_path, tensors, **config))
    expected = load_file(reference / "critical.expected.safetensors")
    with torch.no_grad():
        ours = loaded(expected["case0.input_ids"]).logits
    assert (ours - expected["case0.logits"]).abs().max() < 2e-5
    loaded.save_pretrained(tmp_path / "again")
    assert same(load_file(tmp_path / "again" / "model.safetensors"), tensors)


def test_a_new_process_that_only_imports_plga(tmp_path: Path) -> None:
    folder = publish(tmp_path, learned_tensors(tiny(torch.float32)))
    for imports in ("import plga, transformers", "import transformers, plga"):
        code = f"{imports}; print(type(transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})).__module__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.stdout.strip() == "plga.model.released_models", done.stderr
        assert "trust_remote_code" not in done.stderr


def test_from_a_hub_cache(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    snapshot = tmp_path / "models--someone--pldr" / "snapshots" / "0123abc"
    publish(snapshot, learned_tensors(model))
    (tmp_path / "models--someone--pldr" / "refs").mkdir()
    (tmp_path / "models--someone--pldr" / "refs" / "main").write_text("0123abc")
    loaded = AutoModelForCausalLM.from_pretrained("someone/pldr", cache_dir=tmp_path, local_files_only=True)
    assert torch.equal(logits(loaded), logits(model))


def test_shards_and_dtype(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    auto(publish(tmp_path / "one", learned_tensors(model))).save_pretrained(tmp_path / "many", max_shard_size="4KB")
    shards = sorted((tmp_path / "many").glob("model-*.safetensors"))
    assert len(shards) > 1
    assert same({k: t for shard in shards for k, t in load_file(shard).items()}, learned_tensors(model))
    assert same(auto(tmp_path / "many").state_dict(), model.state_dict())
    assert same(load_model(tmp_path / "many").state_dict(), model.state_dict())
    half = auto(tmp_path / "many", dtype=torch.bfloat16)
    assert same(half.state_dict(), {name: tensor.bfloat16() for name, tensor in model.state_dict().items()})


@pytest.mark.parametrize("interleaved", [True, False])
def test_both_rotary_kinds(tmp_path: Path, interleaved: bool) -> None:
    model = tiny(torch.float32, rope_interleaved=interleaved)
    other = tiny(torch.float32, rope_interleaved=not interleaved)
    publish(tmp_path, learned_tensors(model), reference_rope=interleaved)
    for loaded in (auto(tmp_path), load_model(tmp_path)):
        assert torch.equal(logits(loaded), logits(model))
        assert not torch.allclose(logits(loaded), logits(other))
    assert load_model(tmp_path).config.rope_interleaved is interleaved


@pytest.mark.parametrize("kind", ["identity", "random", "external"])
def test_constant_operator(tmp_path: Path, kind: str) -> None:
    tensors = constant_tensors()
    folder = publish(tmp_path / "published", tensors, custom_G_type=kind)
    loaded, plain = auto(folder), load_model(folder)
    assert plain.config.constant == loaded.config.custom_G_type == kind
    for index in range(2):
        curvature = tensors[VALUES][index, 2, 0]
        assert torch.equal(loaded.model.layers[index].self_attn.operator.curvature, curvature)
        assert torch.equal(plain.model.layers[index].self_attn.operator.curvature, curvature)
    assert torch.equal(logits(loaded), logits(plain))
    ids = tokens(2, 6)
    assert torch.equal(loaded.generate(ids, max_new_tokens=5), plain.generate(ids, max_new_tokens=5))
    # Every slot, and the status, survive a round trip.
    loaded.save_pretrained(tmp_path / "again")
    assert same(load_file(tmp_path / "again" / "model.safetensors"), tensors)


@pytest.mark.parametrize("status", [torch.bool, torch.int64, torch.float32])
def test_the_status_keeps_its_dtype(tmp_path: Path, status: torch.dtype) -> None:
    tensors = constant_tensors(status)
    loaded = load_released(publish(tmp_path / "published", tensors, custom_G_type="external"))
    save_model(loaded, tmp_path / "again")
    assert same(load_file(tmp_path / "again" / "model.safetensors"), tensors)


def test_what_our_format_leaves_out_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = constant_tensors()
    load_model(publish(tmp_path, tensors, custom_G_type="external"))
    assert "left out the two slots" in caplog.text
    caplog.clear()
    tensors[VALUES][:, :2] = 0
    load_model(publish(tmp_path, tensors, custom_G_type="external"))
    assert "left out" not in caplog.text


def test_a_constant_operator_moves_with_its_model() -> None:
    model = PldrllmForCausalLM.from_plga(constant(torch.float32))
    before = logits(model)
    wide = PldrllmForCausalLM.from_plga(constant(torch.float32)).double()
    operator = wide.model.layers[1].self_attn.operator
    assert operator.curvature.dtype == torch.float64
    wide.model.past_G_values.zero_()
    assert not operator.curvature.any()
    assert torch.equal(logits(model), before)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(logits(compiled), before)


def test_without_a_checkpoint() -> None:
    for kind in ("identity", "random", "external"):
        config = PldrllmConfig(**CONFIG | {"custom_G_type": kind})
        theirs = AutoModelForCausalLM.from_config(config)
        ours = PldrForCausalLM(config.to_plga())
        for mine, published in zip(ours.model.layers, theirs.model.layers, strict=True):
            expected = mine.self_attn.operator.curvature
            assert torch.equal(published.self_attn.operator.curvature.isnan(), expected.isnan())
            assert torch.equal(published.self_attn.operator.curvature.nan_to_num(), expected.nan_to_num())
        assert theirs.model.past_G_values_status.all()
        assert not theirs.model.past_G_values[:, :2].any()


@pytest.mark.parametrize("make", [tiny, constant])
def test_from_plga_and_back(tmp_path: Path, make: Any) -> None:
    model = make(torch.float32)
    published = PldrllmForCausalLM.from_plga(model)
    assert torch.equal(logits(published), logits(model))
    save_model(published, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "pldrllm"
    assert all(name.startswith(("decoder.", "final_layer.")) for name in load_file(tmp_path / "model.safetensors"))
    back = load_model(tmp_path)
    assert same(back.state_dict(), model.state_dict())
    assert back.config.to_dict() == model.config.to_dict() | {
        "architectures": back.config.architectures,
        "dtype": "float32",
        "operator_initialization": "xavier_uniform",
    }
    assert torch.equal(logits(auto(tmp_path)), logits(model))


def test_a_published_model_can_be_frozen(tmp_path: Path) -> None:
    folder = publish(tmp_path / "published", learned_tensors(tiny(torch.float32)))
    curvature = torch.randn(2, 2, 4, 4)
    frozen, plain = freeze(auto(folder), curvature), freeze(load_model(folder), curvature)
    assert torch.equal(logits(frozen), logits(plain))
    again = freeze(frozen, 2 * curvature)
    assert torch.equal(again.model.layers[1].self_attn.operator.curvature, 2 * curvature[1])
    save_model(frozen, tmp_path / "frozen")
    assert torch.equal(logits(auto(tmp_path / "frozen")), logits(plain))


@pytest.mark.parametrize(
    ("head", "added"),
    [
        (AutoModelForSequenceClassification, {"score.weight"}),
        (AutoModelForTokenClassification, {"score.weight", "score.bias"}),
        (AutoModelForQuestionAnswering, {"qa_outputs.weight", "qa_outputs.bias"}),
        (AutoModel, set()),
    ],
)
@pytest.mark.parametrize("kind", [None, "external"])
def test_other_heads(tmp_path: Path, head: Any, added: set[str], kind: str | None) -> None:
    tensors = learned_tensors(tiny(torch.float32)) if kind is None else constant_tensors()
    folder = publish(tmp_path / "published", tensors, custom_G_type=kind)
    model, info = head.from_pretrained(folder, output_loading_info=True)
    assert info["missing_keys"] == added
    assert info["unexpected_keys"] == {"lm_head.weight", "lm_head.bias"}
    body = model if head is AutoModel else model.model
    assert isinstance(body, PldrllmModel)
    with torch.no_grad():
        hidden = body(tokens(1, 5), use_cache=False).last_hidden_state
        assert torch.equal(hidden, load_model(folder).model(tokens(1, 5), use_cache=False).last_hidden_state)
    if head is AutoModel:
        with pytest.raises(ValueError, match="expected to save a PldrllmForCausalLM"):
            model.save_pretrained(tmp_path / "again")
        return
    model.save_pretrained(tmp_path / "again")
    again, info = head.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values())
    assert same(again.state_dict(), model.state_dict())


def test_configuration(reference: Path) -> None:
    published = json.loads((reference / "released_config.json").read_text())
    config = AutoConfig.from_pretrained(reference / "released_config.json")
    assert type(config) is PldrllmConfig
    config._name_or_path = ""
    ours = config.to_plga()
    assert type(ours) is PldrConfig
    defaults = PldrConfig(operator_initialization="xavier_uniform", dtype="float32")
    assert ours.to_dict() == defaults.to_dict()
    assert PldrllmConfig.from_plga(ours).to_dict() | {"architectures": published["architectures"]} == config.to_dict()


def test_both_names_of_a_setting() -> None:
    config = PldrllmConfig(A_dff=7, num_reslayerA=3, num_denseA=4, reference_rope=False, cache_first_G=True)
    ours = (config.metric_intermediate_size, config.num_metric_units, config.num_metric_blocks, config.rope_interleaved)
    assert ours == (config.A_dff, config.num_reslayerA, config.num_denseA, config.reference_rope) == (7, 3, 4, False)
    assert config.cache_first_G
    assert config.operator_mode == "prompt"
    assert config.to_plga().operator_mode == "prompt"
    config.cache_first_G = False
    assert config.operator_mode == "recompute"
    config.A_dff = 9
    assert config.to_dict()["A_dff"] == config.to_plga().metric_intermediate_size == 9
    config.custom_G_type = "random"
    assert (config.operator, config.constant) == ("constant", "random")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": False}, "attention_bias is False, expected True"),
        ({"glu_bias": False}, "glu_bias is False, expected True"),
        ({"final_bias": False}, "final_bias is False, expected True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is .*, expected None"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True, expected False"),
        ({"custom_G_type": "median"}, "custom_G_type is 'median', expected null or one of identity, random, external"),
        ({"head_dim": 3}, "head_dim is 3, expected hidden_size / num_attention_heads = 8 / 2"),
        ({"num_reslayerA": 0}, "num_metric_units is 0, expected >= 1"),
        ({"num_denseA": "two"}, "num_metric_blocks"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    publish(tmp_path, learned_tensors(tiny(torch.float32)), **change)
    with pytest.raises(ValueError, match=message) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(Exception, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_load_released_is_strict(tmp_path: Path) -> None:
    tensors = constant_tensors()
    del tensors[VALUES]
    with pytest.raises(ValueError, match=f"missing: {VALUES}$"):
        load_released(publish(tmp_path / "a", tensors, custom_G_type="external"))
    shutil.rmtree(tmp_path / "a")
    save_model(tiny(torch.float32), tmp_path / "a")
    with pytest.raises(ValueError, match="model_type is 'pldr', expected 'pldrllm'"):
        load_released(tmp_path / "a")
