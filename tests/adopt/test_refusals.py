"""Models that cannot be adopted: one line with the name and the reason, and the model as it was."""

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.modeling_utils import PreTrainedModel

import plga
from plga.adopt.classes import operators
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from tests.adopt.conftest import KINDS, VOCABULARY, bend, small, state, tokens

SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT = SMALL | {"intermediate_size": 48}
SEQ2SEQ = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}

REFUSED: dict[str, tuple[Any, str]] = {
    "an encoder": (
        lambda: hf.BertModel(hf.BertConfig(**BERT)),
        "BertModel is no decoder-only causal LM, expected what",
    ),
    "a masked LM": (lambda: hf.BertForMaskedLM(hf.BertConfig(**BERT)), "BertForMaskedLM is no decoder-only causal LM"),
    "a decoder that sees both ways": (
        lambda: hf.BertLMHeadModel(hf.BertConfig(**BERT)),
        "BertLMHeadModel lets tokens see later ones (BertSelfAttention.is_causal is False), expected a causal LM",
    ),
    "an encoder-decoder": (
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**SEQ2SEQ)),
        "T5ForConditionalGeneration is no decoder-only causal LM",
    ),
    "a decoder without its head": (
        lambda: small("llama").model,
        "LlamaModel is no decoder-only causal LM, expected what AutoModelForCausalLM gives",
    ),
    "Bloom": (
        lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)),
        "BloomForCausalLM runs its attention past Transformers' attention interface (ALL_ATTENTION_FUNCTIONS)",
    ),
    "Falcon": (
        lambda: hf.FalconForCausalLM(hf.FalconConfig(**SMALL)),
        "FalconForCausalLM runs its attention past Transformers' attention interface (ALL_ATTENTION_FUNCTIONS)",
    ),
    "Mamba": (
        lambda: hf.MambaForCausalLM(
            hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)
        ),
        "MambaForCausalLM runs its attention past Transformers' attention interface (ALL_ATTENTION_FUNCTIONS)",
    ),
    "a model of four streams of tokens": (
        lambda: hf.MusicgenForCausalLM(
            hf.MusicgenDecoderConfig(**SMALL, ffn_dim=48, num_codebooks=4, max_position_embeddings=64)
        ),
        "MusicgenForCausalLM does not run on 5 tokens alone: shape '[-1, 4, 5]' is invalid",
    ),
    "a PLDR-LLM": (
        lambda: PldrForCausalLM(PldrConfig(vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)),
        "PldrForCausalLM is a PLDR-LLM, which has operators of its own; expected an SDPA model",
    ),
    "the meta device": (
        lambda: small("llama").to("meta"),
        "weights of LlamaForCausalLM are on the meta device; load them first, then adopt the model",
    ),
}


def one_line(error: BaseException) -> str:
    message = str(error)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_is_refused_with_its_name_and_the_reason(case: str) -> None:
    make, message = REFUSED[case]
    model = make()
    before = state(model)
    with pytest.raises(ValueError) as error:
        plga.adopt(model)
    assert one_line(error.value).startswith(message)
    assert state(model) == before
    assert not operators(model)


@pytest.mark.parametrize("thing", [None, "gpt2", 3, nn.Linear(2, 2)])
def test_what_is_no_model_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"^model is \w+, expected a causal LM of Transformers$"):
        plga.adopt(thing)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adopted_model_is_not_adopted_again(kind: str) -> None:
    ours = bend(plga.adopt(small("llama"), kind, metric_units=1))
    want = ours(tokens(1, 9)).logits
    with pytest.raises(
        ValueError, match=r"^AdoptedLlamaForCausalLM is adopted already; its operators are at 'operator'"
    ):
        plga.adopt(ours)
    assert torch.equal(ours(tokens(1, 9)).logits, want)


def test_a_bert_that_is_a_decoder_is_adopted() -> None:
    model = hf.BertLMHeadModel(hf.BertConfig(**BERT, is_decoder=True)).eval()
    before = model(tokens(1, 9)).logits
    assert torch.equal(plga.adopt(model)(tokens(1, 9)).logits, before)


def test_weights_that_are_not_finite_are_refused() -> None:
    model = small("llama", dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    before = state(model)
    with pytest.raises(ValueError, match=r"^LlamaForCausalLM gives logits or hidden states that are not finite$"):
        plga.adopt(model)
    assert state(model) == before and not operators(model)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"operator": "unitary"}, "operator is 'unitary', expected one of constant, learned, low_rank"),
        ({"operator": "low_rank", "rank": 0}, "rank is 0, expected a whole number >= 1"),
        ({"operator": "low_rank", "rank": 9}, "rank is 9, expected at most 8, the width of a head"),
        ({"operator": "learned", "metric_units": "8"}, "metric_units is '8', expected a whole number >= 1"),
    ],
)
def test_settings_are_refused_before_anything_happens(settings: dict[str, Any], message: str) -> None:
    model = small("llama")
    before = state(model)
    with pytest.raises(ValueError, match=f"^{message}$"):
        plga.adopt(model, **settings)
    assert state(model) == before


def test_an_attribute_of_the_same_name_is_not_overwritten() -> None:
    model = small("llama")
    model.model.layers[1].self_attn.operator = nn.Identity()
    before = state(model)
    with pytest.raises(ValueError, match=r"^model.layers.1.self_attn of .* has an attribute 'operator' already$"):
        plga.adopt(model)
    assert state(model) == before
    assert not operators(model)
    assert isinstance(model.model.layers[1].self_attn.operator, nn.Identity)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_would_change_is_left_as_it_was(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from plga.adopt import adoption

    model = small("llama", dtype=torch.float32)
    before, want = state(model), model(tokens(1, 9)).logits
    become = adoption._become

    def spoiled(model: PreTrainedModel, *args: Any) -> None:
        become(model, *args)
        bend(model)

    monkeypatch.setattr(adoption, "_become", spoiled)
    with pytest.raises(ValueError, match=r"^LlamaForCausalLM is not the same model at G = I on this device \(largest"):
        plga.adopt(model, kind, metric_units=1)
    assert state(model) == before
    assert torch.equal(model(tokens(1, 9)).logits, want)
    monkeypatch.undo()
    assert torch.equal(plga.adopt(model, kind, metric_units=1)(tokens(1, 9)).logits, want)


def test_a_refused_model_in_training_mode_stays_in_it() -> None:
    model = hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)).train()
    with pytest.raises(ValueError, match="attention interface"):
        plga.adopt(model)
    assert all(module.training for module in model.modules())


def test_adapters_come_after_adoption() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    wrapped = peft.get_peft_model(small("llama"), peft.LoraConfig(target_modules=["v_proj"]))
    with pytest.raises(
        TypeError, match=r"^model is PeftModel\w*, expected .* adopt the base model before PEFT wraps it$"
    ):
        plga.adopt(wrapped)


class TestQuantized:
    def test_dynamic_quantization_works_to_the_bit(self) -> None:
        model = small("llama", "sdpa", torch.float32)
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        before = model(tokens(2, 9)).logits
        for kind in KINDS:
            ours = plga.adopt(copy.deepcopy(model), kind, metric_units=1)
            assert torch.equal(ours(tokens(2, 9)).logits, before)
            assert all(p.dtype == torch.float32 for o in operators(ours).values() for p in o.parameters())

    def test_weights_of_torchao_work_to_the_bit(self) -> None:
        quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
        model = small("llama", "sdpa", torch.float32)
        quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
        before = model(tokens(2, 9)).logits
        for kind in KINDS:
            ours = plga.adopt(copy.deepcopy(model), kind, metric_units=1)
            assert torch.equal(ours(tokens(2, 9)).logits, before)
