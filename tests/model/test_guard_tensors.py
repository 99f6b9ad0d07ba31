"""The learned operators beside a constant: on the same trunk, written and read with it, refused where they do not."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from plga.model.checkpoint import load_model, save_model
from plga.model.guard_tensors import GUARD_FILE, attach, operator_tensors, recomputing
from plga.model.modeling import PldrForCausalLM
from plga.model.released_models import PldrllmForCausalLM
from tests.model.conftest import constant, curvatures, held, tiny, tokens

SETTINGS = {"every": 1, "margin_factor": 2.0, "deviation": 1.0, "tolerance": 0.0}


def guarded() -> tuple[PldrForCausalLM, PldrForCausalLM]:
    """A learned model in float32, and the same frozen, with its operators attached and a guard set."""
    learned = tiny(torch.float32)
    frozen = held(learned, curvatures(learned, tokens(8, 9)).mean(dim=1))
    attach(frozen, operator_tensors(learned))
    frozen.generation_config.guard = dict(SETTINGS)
    return learned, frozen


def test_the_trunk_is_shared_and_stays_so() -> None:
    learned, frozen = guarded()
    names, state = set(frozen.state_dict()), copy.deepcopy(frozen.state_dict())
    (twin,) = frozen.recomputing
    own = dict(twin.named_parameters())
    for name, parameter in frozen.named_parameters():
        if ".operator." not in name:
            assert own[name] is parameter, name
    for name, tensor in operator_tensors(learned).items():
        assert own[name].data_ptr() == tensor.data_ptr(), name
        assert not own[name].requires_grad
    assert not any(parameter.is_meta for parameter in own.values())
    # The operators are no part of the model, and the model is as it was.
    assert set(constant(torch.float32).state_dict()) == names == set(frozen.state_dict())
    assert all(torch.equal(frozen.state_dict()[name], tensor) for name, tensor in state.items())
    ids = tokens(2, 7)
    torch.testing.assert_close(twin(ids).logits, learned(ids).logits)
    # What is cast, moved or set in the one is so in the other.
    frozen.to(torch.bfloat16)
    with torch.no_grad():
        frozen.lm_head.bias.fill_(7)
    assert twin.lm_head.bias.dtype == torch.bfloat16 and bool((twin.lm_head.bias == 7).all())
    assert next(iter(operator_tensors(twin).values())).dtype == torch.float32


def test_a_copy_of_the_model_has_a_guard_on_its_own_trunk() -> None:
    _, frozen = guarded()
    other = copy.deepcopy(frozen)
    assert other.recomputing[0].lm_head is other.lm_head is not frozen.lm_head


@pytest.mark.parametrize("how", ["load_model", "from_pretrained", "auto"])
def test_written_and_read_with_the_weights(tmp_path: Path, how: str) -> None:
    learned, frozen = guarded()
    save_model(frozen, tmp_path / "frozen")
    stored = load_file(tmp_path / "frozen" / GUARD_FILE)
    assert stored.keys() == operator_tensors(learned).keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in operator_tensors(learned).items())
    load = {
        "load_model": load_model,
        "from_pretrained": PldrForCausalLM.from_pretrained,
        "auto": AutoModelForCausalLM.from_pretrained,
    }[how]
    read, ids = load(tmp_path / "frozen"), tokens(1, 5)
    assert read.generation_config.guard == SETTINGS
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    ours, theirs = read.generate(ids, **options), frozen.generate(ids, **options)
    assert torch.equal(ours.sequences, theirs.sequences) and ours.guard == theirs.guard
    # And again, from what was read.
    save_model(read, tmp_path / "again")
    assert load_file(tmp_path / "again" / GUARD_FILE).keys() == stored.keys()
    assert load_model(tmp_path / "again").generate(ids, **options).guard == theirs.guard


def test_a_checkpoint_without_a_guard_has_none(tmp_path: Path) -> None:
    save_model(constant(torch.float32), tmp_path / "frozen")
    assert not (tmp_path / "frozen" / GUARD_FILE).exists()
    assert load_model(tmp_path / "frozen").recomputing == ()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "frozen").recomputing == ()


def test_the_published_format_has_no_place_for_it(tmp_path: Path) -> None:
    _, frozen = guarded()
    save_model(PldrllmForCausalLM.from_plga(frozen), tmp_path / "published")
    assert not (tmp_path / "published" / GUARD_FILE).exists()
    read = load_model(tmp_path / "published")
    assert read.generate(tokens(1, 5), max_new_tokens=2, do_sample=False).shape == (1, 7)


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    learned, frozen = guarded()
    good = operator_tensors(learned)
    name = "model.layers.1.self_attn.operator.exponent"
    for wrong, message in (
        ({key: tensor for key, tensor in good.items() if key != name}, f"missing: {name}"),
        ({**good, "model.lm_head.weight": torch.zeros(1)}, "unexpected: model.lm_head.weight"),
        ({**good, name: torch.zeros(2, 4, 5)}, rf"{name} is \[2, 4, 5\] float32, expected \[2, 4, 4\] floating point"),
        ({**good, name: good[name].long()}, rf"{name} is \[2, 4, 4\] int64, expected"),
    ):
        with pytest.raises(ValueError, match=message):
            recomputing(frozen, wrong)
    with pytest.raises(ValueError, match="with a learned operator, expected 'pldr' with a constant one"):
        recomputing(learned, good)

    save_model(frozen, tmp_path / "frozen")
    file = tmp_path / "frozen" / GUARD_FILE
    save_file({name: good[name]}, file)
    for load in (load_model, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=rf"{GUARD_FILE}: missing: model.layers.0.self_attn.operator"):
            load(tmp_path / "frozen")
    file.write_bytes(b"torn")
    with pytest.raises(ValueError, match=rf"{GUARD_FILE}: truncated, or not a safetensors file"):
        load_model(tmp_path / "frozen")
