"""Configurations and classes of adopted models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import plga
from plga.adopt.classes import adopted_model_class, base_model_class, is_adopted
from plga.adopt.configuration import adopted_config_class, base_config, base_config_class, base_digest
from plga.adopt.settings import OperatorSettings
from tests.adopt.conftest import ARCHITECTURES, CONFIGS, bend, relative, small, tokens


def test_an_adopted_llama_is_a_llama() -> None:
    ours = plga.adopt(small("llama"), "low_rank", rank=3)
    assert isinstance(ours, LlamaForCausalLM) and isinstance(ours.config, LlamaConfig)
    assert type(ours).__name__ == "AdoptedLlamaForCausalLM"
    assert base_model_class(ours) is LlamaForCausalLM and base_config_class(ours.config) is LlamaConfig
    assert is_adopted(ours) and not is_adopted(small("llama"))
    assert ours.config.operator_settings == OperatorSettings("low_rank", rank=3)
    assert ours.config.plga_layers == {f"model.layers.{n}.self_attn": [4, 8] for n in range(2)}
    assert ours.config.base_model_type == "llama" and ours.config.model_type == "plga_adopted"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_configuration_survives_json(name: str, tmp_path: Path) -> None:
    ours = plga.adopt(small(name, dtype=torch.float32), "low_rank")
    ours.config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is type(ours.config) is adopted_config_class(type(CONFIGS[name]()))
    assert loaded.plga_layers == ours.config.plga_layers and loaded.plga_operator == ours.config.plga_operator
    assert "plga_eager" not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM._model_mapping[type(loaded)] is type(ours)


def test_classes_are_made_once() -> None:
    assert adopted_model_class(LlamaForCausalLM) is adopted_model_class(LlamaForCausalLM)
    assert type(plga.adopt(small("llama"))) is adopted_model_class(LlamaForCausalLM)


def test_a_model_made_from_an_adopted_configuration_starts_at_the_identity() -> None:
    ours = plga.adopt(small("llama", dtype=torch.float32), "learned", metric_units=1)
    torch.manual_seed(0)
    fresh = AutoModelForCausalLM.from_config(ours.config).eval()
    plain = LlamaForCausalLM._from_config(CONFIGS["llama"](), attn_implementation="eager").eval()
    plain.load_state_dict({k: v for k, v in fresh.state_dict().items() if ".operator." not in k})
    assert torch.equal(fresh(tokens(2, 9)).logits, plain(tokens(2, 9)).logits)
    assert fresh.config._attn_implementation == "plga_eager"


def test_the_base_configuration_comes_back() -> None:
    before = small("llama").config
    config = plga.adopt(small("llama")).config
    base = base_config(config)
    assert type(base) is LlamaConfig
    assert not any(name.startswith("plga") or name == "base_model_type" for name in base.to_dict())
    assert base.to_dict() == before.to_dict()
    assert is_adopted(plga.adopt(small("llama")))
    assert base_digest(config) == base_digest(before)


@pytest.mark.parametrize(
    "change, same",
    [
        ({"use_cache": False}, True),
        ({"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 7}, True),
        ({"dtype": "bfloat16"}, True),
        ({"num_hidden_layers": 3}, False),
        ({"rms_norm_eps": 1e-5}, False),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, False),
        ({"intermediate_size": 50}, False),
        ({"vocab_size": 98}, False),
    ],
)
def test_a_digest_is_of_the_model_alone(change: dict[str, Any], same: bool) -> None:
    before = base_digest(CONFIGS["llama"]())
    assert (base_digest(CONFIGS["llama"](**change)) == before) is same


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"base_model_type": "unheard"},
            r"config.json: base_model_type is 'unheard', expected a type that this version of",
        ),
        ({"base_model_type": None}, r"config.json: base_model_type is None, expected a type that this version of"),
        ({"plga_operator": None}, r"config.json: plga_operator is None, expected what plga.adopt wrote"),
        ({"base_model_type": ["llama"]}, r"config.json: base_model_type is \['llama'\], expected a type that this"),
        ({"base_model_type": "plga_adopted"}, r"config.json: base_model_type is 'plga_adopted', expected a type that"),
        ({"base_model_type": "t5"}, r"config.json: base_model_type is 't5', expected that of a causal LM"),
        ({"plga_operator": {}}, r"config.json: plga_operator is {}, expected what plga.adopt wrote"),
        ({"plga_layers": 3}, r"config.json: plga_layers is 3, expected what plga.adopt wrote"),
        ({"plga_layers": {}}, r"config.json: plga_layers is {}, expected what plga.adopt wrote"),
        ({"plga_layers": {"x": 4}}, r"config.json: plga_layers has 4 for x, expected \[heads, width\], whole numbers"),
        ({"plga_layers": {"x": [4]}}, r"config.json: plga_layers has \[4\] for x, expected \[heads, width\]"),
        ({"plga_layers": {"x": [4, 8, 1]}}, r"config.json: plga_layers has \[4, 8, 1\] for x, expected \[heads"),
        ({"plga_layers": {"x": [0, 8]}}, r"config.json: plga_layers has \[0, 8\] for x, expected \[heads, width\]"),
        ({"plga_layers": {"x": [4.0, 8]}}, r"config.json: plga_layers has \[4.0, 8\] for x, expected \[heads"),
        ({"plga_layers": {"x": [True, 8]}}, r"config.json: plga_layers has \[True, 8\] for x, expected \[heads"),
        ({"plga_layers": {"x": "48"}}, r"config.json: plga_layers has '48' for x, expected \[heads, width\]"),
    ],
)
def test_a_damaged_configuration_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    plga.adopt(small("llama")).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=f"^{message}"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"plga_layers": {"model.layers.7.self_attn": [4, 8]}},
            r"plga_layers: model.layers.7.self_attn is no module of",
        ),
        ({"plga_operator": {"kind": "unitary"}}, r"operator is 'unitary', expected one of"),
        ({"plga_operator": {"kind": "low_rank", "rank": 10**12}}, r"rank is 1000000000000, expected at most 8, the"),
    ],
)
def test_operators_that_do_not_fit_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    plga.adopt(small("llama")).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=f"^{message}"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_two_adopted_models_of_one_class_have_operators_of_their_own_kind(tmp_path: Path) -> None:
    models = {kind: bend(plga.adopt(small("llama", "sdpa", torch.float32), kind)) for kind in ("constant", "low_rank")}
    for kind, model in models.items():
        model.save_pretrained(tmp_path / kind)
    for kind, model in models.items():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / kind)
        assert relative(loaded(tokens(1, 9)).logits, model(tokens(1, 9)).logits) == 0
