"""Checkpoints: every format is read strictly and written whole."""

import errno
import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from plga.model import atomic
from plga.model.checkpoint import load_config, load_model, save_model, save_pth
from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.model.released import VALUES
from plga.model.released_models import PldrllmForCausalLM
from tests.model.conftest import constant, tiny, tokens

Tensors = dict[str, Tensor]


def same(ours: Tensors, theirs: Tensors) -> bool:
    """Same names, dtypes and bits."""
    return ours.keys() == theirs.keys() and all(
        tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]) for name, tensor in ours.items()
    )


def logits(model: PldrForCausalLM) -> Tensor:
    with torch.no_grad():
        return model(tokens(2, 12), use_cache=False).logits


def write(model: PldrForCausalLM, folder: Path, kind: str) -> Path:
    """Write ``model`` in one of the formats."""
    if kind == "pth":
        save_pth(model, folder / "model.pth")
        return folder / "model.pth"
    save_model(model if kind == "plga" else PldrllmForCausalLM.from_plga(model), folder / kind)
    return folder / kind


def edit(path: Path, change: Callable[[Tensors], Any]) -> None:
    """Change the tensors of a checkpoint in place, in whatever format it is."""
    if path.suffix == ".pth":
        saved = torch.load(path, weights_only=True)
        change(saved["model_state_dict"])
        torch.save(saved, path)
    else:
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


KINDS = ("plga", "released", "pth")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [tiny, constant])
def test_round_trip(tmp_path: Path, kind: str, make: Callable[..., PldrForCausalLM]) -> None:
    model = make(torch.float32)
    loaded = load_model(write(model, tmp_path, kind))
    assert type(loaded) is PldrForCausalLM
    assert not loaded.training
    assert same(loaded.state_dict(), model.state_dict())
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.config.operator == model.config.operator
    assert loaded.config.intermediate_size == model.config.intermediate_size
    assert loaded.config.max_position_embeddings == 32
    assert {name: p.requires_grad for name, p in loaded.named_parameters()} == {
        name: p.requires_grad for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_dtype_and_context_can_be_chosen(tmp_path: Path, kind: str) -> None:
    model = tiny(torch.bfloat16)
    path = write(model, tmp_path, kind)
    assert same(load_model(path, dtype=None).state_dict(), model.state_dict())
    wide = load_model(path, torch.float64, max_positions=7)
    assert wide.config.max_position_embeddings == 7
    assert wide.dtype == wide.config.dtype == torch.float64
    assert same(wide.state_dict(), {name: t.double() for name, t in model.state_dict().items()})
    with pytest.raises(ValueError, match="max_positions is 0, expected >= 1"):
        load_model(path, max_positions=0)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_the_configuration_needs_no_tensor(tmp_path: Path, kind: str) -> None:
    folder = write(tiny(), tmp_path, kind)
    (folder / "model.safetensors").unlink()
    for path in (folder, folder / "config.json"):
        config = load_config(path)
        assert type(config) is PldrConfig
        assert (config.hidden_size, config.metric_intermediate_size) == (
            tiny().config.hidden_size,
            tiny().config.metric_intermediate_size,
        )
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=r"config\.json: model_type is 'llama'"):
        load_config(folder)
    with pytest.raises(FileNotFoundError, match="absent: no such file or directory"):
        load_config(tmp_path / "absent")


def test_a_loaded_model_does_not_hang_on_its_file(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    path = write(model, tmp_path, "plga")
    loaded = load_model(path)
    with (path / "model.safetensors").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(b"\0" * size)
    assert same(loaded.state_dict(), model.state_dict())


SPELLED = {
    "plga": "model.layers.1.self_attn.operator.exponent",
    "released": "decoder.dec_layers.1.mha1.plgatt_layer.pwlst",
    "pth": "decoder.dec_layers.1.mha1.plgatt_layer.pwlst",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, key: t.pop(key), "missing: {key}"),
        (lambda t, key: t.update({f"{key}2": torch.zeros(3)}), "unexpected: {key}2"),
        (lambda t, key: t.update({key: torch.zeros(2, 4, 5)}), r"wrong: {key} is \[2, 4, 5\], expected \[2, 4, 4\]"),
        (
            lambda t, key: t.update({key: torch.zeros(2, 4, 4, dtype=torch.int64)}),
            "wrong: {key} is int64, expected floating point",
        ),
    ],
    ids=["missing", "extra", "misshaped", "integers"],
)
def test_every_tensor_counts(tmp_path: Path, kind: str, change: Callable[..., Any], message: str) -> None:
    path = write(tiny(torch.float32), tmp_path, kind)
    edit(path, lambda tensors: change(tensors, SPELLED[kind]))
    with pytest.raises(ValueError, match=message.format(key=SPELLED[kind])) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_operator_counts_too(tmp_path: Path, kind: str) -> None:
    key = "model.layers.0.self_attn.operator.curvature" if kind == "plga" else VALUES
    path = write(constant(torch.float32), tmp_path, kind)
    edit(path, lambda tensors: tensors.update({key: tensors[key][..., :3].clone()}))
    with pytest.raises(ValueError, match=f"{key} is "):
        load_model(path)
    edit(path, lambda tensors: tensors.pop(key))
    with pytest.raises(ValueError, match="missing: "):
        load_model(path)


def test_a_name_of_the_other_format_is_unexpected(tmp_path: Path) -> None:
    path = write(tiny(torch.float32), tmp_path, "released")
    edit(path, lambda t: t.update({"model.embed_tokens.weight": t.pop("decoder.embedding.weight")}))
    with pytest.raises(ValueError, match=r"unexpected: model.embed_tokens.weight"):
        load_model(path)


def test_only_the_first_of_many_is_named(tmp_path: Path) -> None:
    path = write(tiny(torch.float32), tmp_path, "plga")
    edit(path, lambda tensors: [tensors.pop(key) for key in list(tensors)[5:]])
    with pytest.raises(ValueError, match=r"missing: \S+, \S+, \S+ and \d+ more$"):
        load_model(path)


@pytest.mark.parametrize(("kind", "file"), [("plga", "model.safetensors"), ("plga", "config.json"), ("pth", "")])
@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_truncated(tmp_path: Path, kind: str, file: str, left: float) -> None:
    path = write(tiny(torch.float32), tmp_path, kind)
    broken = path / file if file else path
    os.truncate(broken, int(broken.stat().st_size * left))
    with pytest.raises(ValueError, match="truncated") as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{broken}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["", "config.json", "model.safetensors"])
def test_absent(tmp_path: Path, file: str) -> None:
    path = write(tiny(torch.float32), tmp_path, "plga")
    absent = path / file
    absent.unlink() if file else shutil.rmtree(absent)
    with pytest.raises(FileNotFoundError, match=f"{absent}: no such file"):
        load_model(path)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a checkpoint\n")
    with pytest.raises(ValueError, match=r"notes.txt: truncated, or not a file of tensors"):
        load_model(text)
    other = tmp_path / "other.pth"
    torch.save({"state": {"a": torch.zeros(1)}}, other)
    with pytest.raises(ValueError, match="expected a dictionary whose model_state_dict holds tensors by name"):
        load_model(other)
    torch.save({"model_state_dict": {"a": torch.zeros(1)}}, other)
    with pytest.raises(ValueError, match=r"missing: decoder.embedding.weight"):
        load_model(other)
    torch.save({"model_state_dict": {"decoder.embedding.weight": torch.zeros(1)}}, other)
    with pytest.raises(ValueError, match=r"decoder.embedding.weight is \[1\], expected 2 axes"):
        load_model(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', expected one of pldr, pldrllm"),
        ({"num_attention_heads": 3}, "hidden_size is 8, expected a multiple of num_attention_heads = 3"),
        ({"num_attention_heads": 8}, "is 1, expected an even head width"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected >= 1"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
    ],
)
def test_impossible_configuration(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tiny(torch.float32), tmp_path, "plga")
    config = json.loads((path / "config.json").read_text()) | change
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as caught:
        load_model(path)
    assert str(caught.value).startswith(f"{path / 'config.json'}: ")
    assert "\n" not in str(caught.value)


def test_shards(tmp_path: Path) -> None:
    model = tiny(torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert same(load_model(tmp_path).state_dict(), model.state_dict())

    kept = load_file(shards[0])
    save_file(dict(list(kept.items())[1:]), shards[0])
    with pytest.raises(ValueError, match=f"{shards[0].name}: differs from model.safetensors.index.json in "):
        load_model(tmp_path)
    shards[0].unlink()
    with pytest.raises(FileNotFoundError, match=shards[0].name):
        load_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    with pytest.raises(ValueError, match="to files of this directory"):
        load_model(tmp_path)


def test_pth_tells_its_shape(reference: Path, tmp_path: Path) -> None:
    hparams = json.loads((reference / "critical.hparams.json").read_text())
    config = load_model(reference / "critical.pth").config
    assert config.num_hidden_layers == hparams["num_layers"]
    assert config.hidden_size == hparams["d_model"]
    assert config.num_attention_heads == hparams["num_heads"]
    assert config.intermediate_size == hparams["dff"]
    assert config.num_metric_units == hparams["num_reslayerA"]
    assert config.num_metric_blocks == hparams["num_denseA"]
    assert config.metric_intermediate_size == hparams["A_dff"]
    assert config.vocab_size == hparams["input_vocab_size"]
    assert config.max_position_embeddings == hparams["max_seq_len"]
    assert config.eos_token_id is None  # its tokenizer is not the published one

    alone = tmp_path / "alone.pth"
    shutil.copy(reference / "critical.pth", alone)
    assert load_model(alone).config.max_position_embeddings == 1024
    (tmp_path / "alone.hparams.json").write_text(json.dumps(hparams | {"A_dff": 86}))
    with pytest.raises(ValueError, match=r"A_dff is 86, expected 85 as in alone.pth"):
        load_model(alone)


@pytest.mark.parametrize("name", ["critical", "subcritical"])
def test_published_pth_comes_back_bit_for_bit(reference: Path, tmp_path: Path, name: str) -> None:
    save_pth(load_model(reference / f"{name}.pth"), tmp_path / "again.pth")
    before = torch.load(reference / f"{name}.pth", weights_only=True)
    after = torch.load(tmp_path / "again.pth", weights_only=True)
    assert same(after["model_state_dict"], before["model_state_dict"])
    assert after.keys() == before.keys()
    assert json.loads((tmp_path / "again.hparams.json").read_text()) == json.loads(
        (reference / f"{name}.hparams.json").read_text()
    )


def test_pth_says_only_shapes(tmp_path: Path) -> None:
    for changes in ({"rope_interleaved": False}, {"rope_theta": 5000.0}, {"layer_norm_eps": 1e-5}):
        with pytest.raises(ValueError, match=f"{next(iter(changes))} is .*: a .pth cannot say otherwise"):
            save_pth(tiny(torch.float32, **changes), tmp_path / "model.pth")
    with pytest.raises(ValueError, match=r"expected a name that ends in .pth"):
        save_pth(tiny(torch.float32), tmp_path / "model.bin")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    first, second = tiny(torch.float32, seed=0), tiny(torch.float32, seed=1)
    folder, file = tmp_path / "model", tmp_path / "model.pth"
    folder.mkdir()
    save_model(first, folder)  # an empty folder is as good as none
    save_pth(first, file)
    with pytest.raises(FileExistsError, match=f"{folder} exists"):
        save_model(second, folder)
    with pytest.raises(FileExistsError, match="exists, expected a new file"):
        save_pth(second, file)
    assert same(load_model(folder).state_dict(), first.state_dict())
    assert same(load_model(file).state_dict(), first.state_dict())
    save_model(second, folder, overwrite=True)
    save_pth(second, file, overwrite=True)
    assert same(load_model(folder).state_dict(), second.state_dict())
    assert same(load_model(file).state_dict(), second.state_dict())
    for target in (tmp_path, file):  # a folder of other things, and a file
        with pytest.raises(FileExistsError, match="is not a checkpoint of a PLDR-LLM alone, so it is not overwritten"):
            save_model(second, target, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.hparams.json", "model.pth"]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond 8 kB: writes fail as they do on a full disk, with another number. Not a fixture: pytest
    itself writes while one lasts, and its output may be a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_leaves_nothing(tmp_path: Path, kind: str) -> None:
    model = tiny(torch.float32)
    with pytest.raises(OSError, match=str(tmp_path)) as caught, full_disk():
        write(model, tmp_path, kind)
    assert caught.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())


class _FailingTokenizer:
    def save_pretrained(self, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_save_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    first = tiny(torch.float32, seed=0)
    save_model(first, tmp_path / "model")
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'model'}'"):
        save_model(tiny(torch.float32, seed=1), tmp_path / "model", overwrite=True, tokenizer=_FailingTokenizer())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert same(load_model(tmp_path / "model").state_dict(), first.state_dict())


def test_a_failed_rename_puts_the_previous_checkpoint_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tiny(torch.float32, seed=0)
    save_model(first, tmp_path / "model")
    rename, calls = os.rename, []

    def second_fails(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", second_fails)
    monkeypatch.setattr(atomic, "_exchanged", lambda *_: False)  # as on a file system that cannot
    with pytest.raises(OSError, match="Input/output error"):
        save_model(tiny(torch.float32, seed=1), tmp_path / "model", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert same(load_model(tmp_path / "model").state_dict(), first.state_dict())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds list, expected a JSON object"),
        ("{", "truncated, or not JSON"),
        ("[" * 9999, "truncated, or not JSON"),
        ('{"eos_token_id": "a"}', 'eos_token_id is "a", expected whole numbers'),
        ('{"eos_token_id": [[1]]}', r"eos_token_id is \[\[1\]\], expected whole numbers"),
        ('{"pad_token_id": true}', "pad_token_id is true, expected whole numbers"),
        ('{"max_new_tokens": "a"}', "expected settings of generation"),
        ('{"watermarking_config": 3}', "expected settings of generation"),
    ],
)
def test_generation_settings_of_the_wrong_kind(tmp_path: Path, text: str, message: str) -> None:
    save_model(constant(), tmp_path / "c")
    file = tmp_path / "c" / "generation_config.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: .*{message}"):
        load_model(tmp_path / "c")


def test_more_layers_than_tensors_are_not_built(tmp_path: Path) -> None:
    save_model(constant(), tmp_path / "c")
    file = tmp_path / "c" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 10**9}))
    with pytest.raises(ValueError, match=r"num_hidden_layers is 1000000000, but there are \d+ tensors"):
        load_model(tmp_path / "c")
