"""Training of adopted models by Transformers' own Trainer and with PEFT: what takes gradients, and what moves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import plga
from plga.adopt.classes import operators
from plga.adopt.operators import GeneratedOperator

KINDS = ("constant", "low_rank", "learned")
VOCABULARY, STEPS = 40, 12


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
            initializer_range=0.4,
            eos_token_id=None,
        )
    )


def adopted(kind: str) -> Any:
    return plga.adopt(llama(), operator=kind, rank=2, metric_units=2)


def rows() -> list[dict[str, Tensor]]:
    """Sixteen texts that are read again and again, so that there is something to learn."""
    ids = torch.randint(0, VOCABULARY, (16, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def state(model: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def fit(model: Any, output: Path, **arguments: Any) -> list[float]:
    """Losses of a run of Transformers' Trainer, a step each."""
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(output),
            max_steps=STEPS,
            per_device_train_batch_size=16,
            learning_rate=5e-2,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            **arguments,
        ),
        train_dataset=rows(),
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    "arguments", [{}, {"gradient_checkpointing": True}, {"bf16": True}], ids=["float32", "checkpointing", "bf16"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_operators_alone_by_the_trainer(tmp_path: Path, kind: str, arguments: dict[str, Any]) -> None:
    model = adopted(kind)
    plga.adopt.train_operators_only(model)
    before = state(model)
    losses = fit(model, tmp_path, **arguments)
    assert losses[-1] < losses[0]
    after = state(model)
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved
    assert all(".operator." in name for name in moved)  # of all others no bit
    assert all(p.grad is None for name, p in model.named_parameters() if ".operator." not in name)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
def test_all_weights_by_the_trainer(tmp_path: Path, kind: str) -> None:
    model = adopted(kind)
    before = state(model)
    losses = fit(model, tmp_path)
    assert losses[-1] < losses[0] - 0.5
    after = state(model)
    still = {name for name in before if before[name].equal(after[name])}
    assert not still


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_changes_no_gradient(kind: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = adopted(kind).train()
        plga.adopt.train_operators_only(model)
        if checkpointing:
            model.gradient_checkpointing_enable()
        batch = torch.stack([row["input_ids"] for row in rows()])
        model(input_ids=batch, labels=batch, use_cache=False).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert gradient.equal(gradients[1][name]), name


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_takes_no_gradient(kind: str, kernel: str, side: str) -> None:
    model = adopted(kind)
    model.set_attn_implementation(kernel)
    pad = VOCABULARY - 1
    ids = torch.randint(0, pad, (2, 10), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, slice(0, 4) if side == "left" else slice(6, 10)] = 0
    ids[mask == 0] = pad
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 4] = -100  # with the padding on the left, what the last of it would predict
    model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
    assert not model.get_input_embeddings().weight.grad[pad].any()
    assert model.get_input_embeddings().weight.grad[ids[1, 0]].any()


# --- PEFT ---


def in_place(model: Any) -> Any:
    """LoRA on other weights, and the operators of the model itself: ``get_peft_model`` freezes them, so once more."""
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["v_proj", "o_proj"], task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(model, lora)
    for operator in operators(model).values():
        operator.requires_grad_(True)
    return wrapped


def in_the_adapter(model: Any) -> Any:
    """LoRA on other weights, and a copy of the operators that the adapter holds."""
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(
        r=2, target_modules=["v_proj", "o_proj"], modules_to_save=["operator"], task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, lora)


WAYS = (in_place, in_the_adapter)


def trained(wrapped: Any, steps: int = 3) -> Any:
    batch = torch.stack([row["input_ids"] for row in rows()])
    optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=5e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return wrapped.eval()


@pytest.mark.parametrize("wrap", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_lora_and_operators_and_nothing_else(kind: str, wrap: Callable[[Any], Any]) -> None:
    model = adopted(kind)
    before = state(llama())
    wrapped = wrap(model)
    batch = torch.stack([row["input_ids"] for row in rows()])
    wrapped(input_ids=batch, labels=batch).loss.backward()
    taking = {name for name, p in wrapped.named_parameters() if p.grad is not None}
    assert all(".operator." in name or "lora_" in name for name in taking)
    nonzero = {name for name, p in wrapped.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert sum("lora_B" in name for name in nonzero) == 4
    starts = {"constant": "curvature", "low_rank": "left", "learned": "coupling_weight"}[kind]
    assert sum(name.endswith(starts) for name in nonzero) == 2
    after = state(trained(wrapped).get_base_model())
    for name, tensor in before.items():
        inner = name.replace("v_proj.", "v_proj.base_layer.").replace("o_proj.", "o_proj.base_layer.")
        assert tensor.equal(after[inner]), name


@pytest.mark.parametrize("kind", KINDS)
def test_adapter_and_operators_are_saved_apart_and_loaded(tmp_path: Path, kind: str) -> None:
    peft = pytest.importorskip("peft")
    wrapped = trained(in_place(adopted(kind)))
    wrapped.save_pretrained(tmp_path / "lora")
    plga.adopt.save_operators(wrapped.get_base_model(), tmp_path / "operators.safetensors")
    model = plga.adopt.load_operators(llama(), tmp_path / "operators.safetensors")
    loaded = peft.PeftModel.from_pretrained(model, tmp_path / "lora").eval()
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        assert loaded(input_ids=ids).logits.equal(wrapped(input_ids=ids).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_holds_the_operators_is_loaded(tmp_path: Path, kind: str) -> None:
    peft = pytest.importorskip("peft")
    wrapped = trained(in_the_adapter(adopted(kind)))
    wrapped.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(adopted(kind), tmp_path).eval()
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        expected = wrapped(input_ids=ids).logits
        assert loaded(input_ids=ids).logits.equal(expected)
        with pytest.raises(ValueError, match=r"operators are wrapped .*, expected the adopted model, as PEFT"):
            plga.adopt.save_operators(wrapped, tmp_path / "operators.safetensors")
        wrapped.double()
        expected = wrapped(input_ids=ids).logits
        merged = wrapped.merge_and_unload()
        assert (merged(input_ids=ids).logits - expected).abs().max() < 1e-9
    plga.adopt.save_operators(merged, tmp_path / "operators.safetensors")


def test_a_wrapped_learned_operator_is_kept_with_the_cache() -> None:
    """It is a copy inside of PEFT's module, and has to know the cache as the one it stands for does."""
    model = adopted("learned")
    ids = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, GeneratedOperator):
                module.generator.coupling_weight.normal_(generator=torch.Generator().manual_seed(0))
    model.eval()
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)
    wrapped = in_the_adapter(model).eval()
    assert wrapped.generate(input_ids=ids, max_new_tokens=12, do_sample=False).equal(expected)


def test_lora_wants_its_targets_named() -> None:
    """PEFT has defaults by model_type, and that of an adopted model is its own."""
    peft = pytest.importorskip("peft")
    with pytest.raises(ValueError, match="target_modules"):
        peft.get_peft_model(adopted("constant"), peft.LoraConfig(r=2))
