"""What a model must notice by itself, however it got there."""

import json
from pathlib import Path

import pytest
import torch

from plga.model.cache import PldrCache
from plga.model.checkpoint import save_model
from plga.model.modeling import PldrForCausalLM
from plga.model.released_models import PldrllmForCausalLM
from tests.model.conftest import constant, tiny, tiny_config

IDS = torch.tensor([[5, 9, 13, 7, 21]])


@torch.no_grad()
def test_a_constant_that_turns_nan_after_it_was_used() -> None:
    model = constant()
    model(IDS)
    model.model.layers[1].self_attn.operator.curvature.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"G_LM of layer 1 is not finite in heads \[0, 1\]"):
        model(IDS)


@torch.no_grad()
def test_a_g_that_only_float16_cannot_hold() -> None:
    """Attention would take the NaN scores of an infinite G for masked ones and go on."""
    learned, fixed = tiny(torch.float16), constant(torch.float32)
    for layer in learned.model.layers:
        layer.self_attn.operator.coupling_bias.fill_(6e4)
        layer.self_attn.operator.coupling_weight.fill_(6e4)
    with pytest.raises(FloatingPointError, match="G_LM of layer 0"):
        learned(IDS)
    for layer in fixed.model.layers:
        layer.self_attn.operator.curvature.fill_(1e30)
    fixed(IDS)
    with pytest.raises(FloatingPointError, match="G_LM of layer 0"):
        fixed.half()(IDS)


def test_a_cache_of_the_other_kind_of_operator() -> None:
    kept = PldrCache(tiny_config(operator="constant"))
    with pytest.raises(ValueError, match="cache is in mode 'constant', but the operator of this model is learned"):
        tiny()(IDS, cache=kept)


@torch.no_grad()
@pytest.mark.parametrize("model", [tiny(), constant()], ids=["learned", "constant"])
def test_right_padding_is_seen_without_a_mask_and_in_embeddings(model: PldrForCausalLM) -> None:
    padded = torch.cat([IDS, torch.zeros(1, 3, dtype=torch.long)], dim=1)  # pad is 0
    options = {"max_new_tokens": 4, "do_sample": False}
    alone = model.generate(IDS, **options)[:, -4:]
    assert torch.equal(model.generate(padded, **options)[:, -4:], alone)
    embeds = model.get_input_embeddings()(padded)
    written = model.generate(inputs_embeds=embeds, attention_mask=padded.ne(0).long(), **options)
    assert torch.equal(written[:, -4:], alone)


@torch.no_grad()
def test_any_non_zero_value_of_a_mask_is_a_real_token() -> None:
    model = tiny()
    mask = torch.tensor([[0, 0, 2, 3, 1]])
    assert torch.equal(model(IDS, attention_mask=mask).logits, model(IDS, attention_mask=mask.clamp(max=1)).logits)


@pytest.mark.parametrize("published", [False, True])
def test_a_checkpoint_of_the_other_format(published: bool, tmp_path: Path) -> None:
    """Read by the wrong class, its operator would be drawn at random."""
    model = constant(torch.float32)
    save_model(PldrllmForCausalLM.from_plga(model) if published else model, tmp_path / "saved")
    wrong = PldrForCausalLM if published else PldrllmForCausalLM
    with pytest.raises(ValueError, match=r"model_type is .*, but Pldr\w*ForCausalLM reads .* takes either"):
        wrong.from_pretrained(tmp_path / "saved")


def test_a_folder_that_is_more_than_a_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    model = constant(torch.float32)
    foreign, mixed = tmp_path / "app", tmp_path / "mixed"
    foreign.mkdir()
    (foreign / "config.json").write_text(json.dumps({"name": "an app"}))
    save_model(model, mixed)
    (mixed / "notes").mkdir()
    for folder in (foreign, mixed):
        with pytest.raises(FileExistsError, match="is not overwritten"):
            save_model(model, folder, overwrite=True)
    assert (mixed / "notes").is_dir() and (foreign / "config.json").exists()
