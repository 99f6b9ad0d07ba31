"""``plga convert``: every format into every other, tensor for tensor."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from plga.cli.convert import command
from plga.model.checkpoint import load_model, save_model, save_pth
from plga.model.released import STATUS, VALUES
from plga.model.released_models import PldrllmForCausalLM
from plga.model.tokenizer import load_tokenizer
from tests.model.conftest import constant, tiny, tokens


def convert(source: Path, target: Path, **options: Any) -> Path:
    """The command, with the defaults of its options."""
    defaults = {"to": "plga", "tokenizer": None, "curvature": None, "dtype": None, "overwrite": False}
    command(source, target, **(defaults | options))
    return target


def tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".pth":
        return torch.load(path, weights_only=True)["model_state_dict"]
    return load_file(path / "model.safetensors")


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Same names, dtypes and bits."""
    return ours.keys() == theirs.keys() and all(
        tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]) for name, tensor in ours.items()
    )


@torch.no_grad()
def logits(path: Path) -> Tensor:
    return load_model(path, dtype=None)(tokens(2, 12), use_cache=False).logits


def around(first: Path, folder: Path) -> None:
    """.pth → ours → published → ours → .pth, comparing each with what went before."""
    ours = convert(first, folder / "ours")
    published = convert(ours, folder / "published", to="released")
    again = convert(published, folder / "again")
    last = convert(again, folder / "last.pth", to="pth")
    assert same(tensors(published), tensors(first))
    assert same(tensors(again), tensors(ours))
    assert same(tensors(last), tensors(first))
    for path in (ours, published, again, last):
        assert torch.equal(logits(path), logits(first))
    direct = convert(published, folder / "direct.pth", to="pth")
    assert same(tensors(direct), tensors(first))


@pytest.mark.parametrize("make", [tiny, constant])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_around_the_formats(tmp_path: Path, make: Any, dtype: torch.dtype) -> None:
    save_pth(make(dtype), tmp_path / "first.pth")
    around(tmp_path / "first.pth", tmp_path)


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_around_the_formats_with_trained_weights(reference: Path, tmp_path: Path, name: str) -> None:
    around(reference / f"{name}.pth", tmp_path)
    hparams = json.loads((reference / f"{name}.hparams.json").read_text())
    assert json.loads((tmp_path / "last.hparams.json").read_text()) == hparams
    config = json.loads((tmp_path / "published" / "config.json").read_text())
    published = json.loads((reference / "released_config.json").read_text())
    assert config.keys() == published.keys() - {"auto_map"}
    assert config["num_reslayerA"] == hparams["num_reslayerA"]
    # The tokenizer beside the .pth came along, and with it the ids of its special pieces.
    tokenizer = load_tokenizer(tmp_path / "again")
    assert tokenizer.get_vocab() == load_tokenizer(reference / "tokenizer.json").get_vocab()
    assert (config["pad_token_id"], config["eos_token_id"]) == (0, 1)
    assert load_model(tmp_path / "again").generation_config.eos_token_id == 1


def test_published_to_published_keeps_every_slot(tmp_path: Path) -> None:
    model = PldrllmForCausalLM.from_plga(constant(torch.float32))
    with torch.no_grad():
        model.model.past_G_values.normal_()
    model.model.past_G_values_status[1] = False
    save_model(model, tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b", to="released")
    assert same(tensors(tmp_path / "b"), tensors(tmp_path / "a"))
    assert not tensors(tmp_path / "b")[STATUS][1]
    half = tensors(convert(tmp_path / "a", tmp_path / "c", to="released", dtype="bfloat16"))
    assert torch.equal(half[VALUES], tensors(tmp_path / "a")[VALUES].bfloat16())


@pytest.mark.parametrize("to", ["plga", "released"])
def test_another_curvature(tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(torch.float32)
    save_model(model, tmp_path / "a")
    curvature = torch.randn(2, 1, 2, 4, 4)
    (tmp_path / "G.pkl").write_bytes(pickle.dumps([[torch.zeros_like(g), g.clone()] for g in curvature]))
    converted = load_model(convert(tmp_path / "a", tmp_path / "b", to=to, curvature=tmp_path / "G.pkl"))
    assert (converted.config.operator, converted.config.constant) == ("constant", "external")
    assert not any("learner" in name for name in converted.state_dict())
    for layer, expected in zip(converted.model.layers, curvature, strict=True):
        assert torch.equal(layer.self_attn.operator.curvature, expected[0])
    assert torch.equal(converted.lm_head.weight, model.lm_head.weight)
    assert "operator constant (external)" in capsys.readouterr().out

    (tmp_path / "G.pkl").write_bytes(pickle.dumps([[torch.zeros(1, 2, 4, 4)]]))
    with pytest.raises(ValueError, match=r"G\.pkl: curvature is \(1, 2, 4, 4\), expected \(2, 2, 4, 4\)"):
        convert(tmp_path / "a", tmp_path / "c", curvature=tmp_path / "G.pkl")
    (tmp_path / "G.pkl").write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(ValueError, match=r"refused, because it wants .*getcwd"):
        convert(tmp_path / "a", tmp_path / "c", curvature=tmp_path / "G.pkl")
    assert not (tmp_path / "c").exists()


def test_published_curvature_does_not_fit_a_small_model(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"curvature is \(5, 14, 64, 64\), expected \(2, 4, 32, 32\)"):
        convert(reference / "critical.pth", tmp_path / "a", curvature=reference / "G_LM_PLDRv51-110M-1.pkl")
    assert not list(tmp_path.iterdir())


def test_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(torch.float32)
    save_model(model, tmp_path / "a")
    half = tensors(convert(tmp_path / "a", tmp_path / "b", dtype="bfloat16"))
    assert same(half, {name: tensor.bfloat16() for name, tensor in model.state_dict().items()})
    count = sum(tensor.numel() for tensor in half.values())
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"wrote {tmp_path / 'b'}: plga format, {count:,} numbers, bfloat16, operator learned",
        "tokenizer: none known, pass --tokenizer to add one",
    ]


def test_tokenizer(reference: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pth"
    shutil.copy(reference / "critical.pth", alone)
    convert(alone, tmp_path / "without")
    assert load_model(tmp_path / "without").config.eos_token_id is None
    convert(alone, tmp_path / "with", tokenizer=reference / "tokenizer.json")
    assert load_tokenizer(tmp_path / "with").eos_token_id == load_model(tmp_path / "with").config.eos_token_id == 1
    with pytest.raises(ValueError, match="32000 pieces, expected at most the model's 2048"):
        convert(alone, tmp_path / "other", tokenizer=reference / "refinedweb-tokenizer.model")
    with pytest.raises(FileNotFoundError, match="pass --tokenizer"):
        convert(alone, tmp_path / "other", tokenizer=tmp_path / "without")
    assert not (tmp_path / "other").exists()


def test_refusals(tmp_path: Path) -> None:
    save_model(tiny(torch.float32), tmp_path / "a")
    before = tensors(tmp_path / "a")
    for options, message in (
        ({"to": "gguf"}, "--to is 'gguf', expected one of plga, released, pth"),
        ({"dtype": "int8"}, "--dtype is 'int8', expected one of float32"),
        ({"to": "pth", "tokenizer": tmp_path}, "--tokenizer goes with --to plga and --to released"),
        ({"to": "pth"}, r"expected a name that ends in \.pth"),
    ):
        with pytest.raises(ValueError, match=message):
            convert(tmp_path / "a", tmp_path / "b", **options)
    with pytest.raises(FileExistsError, match="expected a new or empty directory"):
        convert(tmp_path / "a", tmp_path / "a", dtype="bfloat16")
    assert same(tensors(tmp_path / "a"), before)
    convert(tmp_path / "a", tmp_path / "a", dtype="bfloat16", overwrite=True)
    assert same(tensors(tmp_path / "a"), {name: tensor.bfloat16() for name, tensor in before.items()})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
