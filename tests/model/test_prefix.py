"""A saved cache continues as the one that was saved, and only for what it was computed from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from plga.model.cache import PldrCache
from plga.model.checkpoint import load_model, save_model
from plga.model.configuration import MODES
from plga.model.digests import digest_tensor
from plga.model.modeling import PldrForCausalLM
from plga.model.seal import TRUST, SealPolicy
from plga.model.signing import create_keys, read_public_key
from plga.model.tokenizer import load_tokenizer
from plga.training.data.tokenizer import train_tokenizer
from tests.model.conftest import constant, held, model_for, tiny, tokens
from tests.training import runs

PREFIX, SUFFIX, NEW = 7, 3, 8


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(runs.texts(), 300, 24)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        create_keys(folder / f"{name}.pem")
    return folder


@torch.no_grad()
def prefilled(model: PldrForCausalLM, ids: Tensor) -> PldrCache:
    cache = PldrCache(model.config)
    model(ids, cache=cache)
    return cache


def continued(model: PldrForCausalLM, ids: Tensor, cache: PldrCache) -> Any:
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        cache=cache,
        max_new_tokens=NEW,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_generation_goes_on_as_without_saving(
    tmp_path: Path, tokenizer: Any, mode: str, dtype: torch.dtype, batch: int
) -> None:
    model = model_for(mode, dtype=dtype, **({"operator_mode": mode} if mode == "prompt" else {}))
    ids = tokens(batch, PREFIX + SUFFIX)
    cache = prefilled(model, ids[:, :PREFIX])
    assert cache.mode == mode
    cache.save(tmp_path / "prefix.safetensors", model, tokenizer, ids[:, :PREFIX])
    loaded = PldrCache.load(tmp_path / "prefix.safetensors", model, tokenizer, ids[:, :PREFIX], mode=mode)
    assert (loaded.mode, loaded.get_seq_length(), loaded.nbytes()) == (mode, PREFIX, cache.nbytes())
    expected, found = continued(model, ids, cache), continued(model, ids, loaded)
    assert torch.equal(found.sequences, expected.sequences)
    assert all(torch.equal(a, b) for a, b in zip(found.logits, expected.logits, strict=True))
    # A second run from the file: the first one changed nothing in it.
    again = PldrCache.load(tmp_path / "prefix.safetensors", model, tokenizer, ids[:, :PREFIX])
    assert torch.equal(continued(model, ids, again).sequences, expected.sequences)


def test_after_beam_search_made_views(tmp_path: Path, tokenizer: Any) -> None:
    model, ids = tiny(torch.float32, operator_mode="prompt"), tokens(2, PREFIX)
    cache = prefilled(model, ids)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.save(tmp_path / "p.safetensors", model, tokenizer, ids.flip(0))
    loaded = PldrCache.load(tmp_path / "p.safetensors", model, tokenizer, ids.flip(0))
    assert torch.equal(loaded.curvature(1), cache.curvature(1))


def test_model_and_tokenizer_read_from_disk_are_the_same(tmp_path: Path, tokenizer: Any) -> None:
    model, ids = constant(torch.float32, vocab_size=300), tokens(1, PREFIX)
    prefilled(model, ids).save(tmp_path / "p.safetensors", model, tokenizer, ids)
    save_model(model, tmp_path / "model", tokenizer=tokenizer)
    again = load_tokenizer(tmp_path / "model")
    again(["a", "a longer text"], padding=True, truncation=True, max_length=4)  # leaves its traces in the backend
    PldrCache.load(tmp_path / "p.safetensors", load_model(tmp_path / "model"), again, ids.int())


def one_weight(model: PldrForCausalLM) -> PldrForCausalLM:
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.bias[3] += 1e-6
    return model


OTHERS = {
    "one weight": ("model", lambda: one_weight(constant(torch.float32))),
    "the operator": ("model", lambda: held(constant(torch.float32), torch.randn(2, 2, 4, 4))),
    "rotary base": ("model", lambda: constant(torch.float32, rope_theta=5000.0)),
    "rotary pairs": ("model", lambda: constant(torch.float32, rope_interleaved=False)),
    "eps": ("model", lambda: constant(torch.float32, layer_norm_eps=1e-5)),
    "kind of operator": ("model", lambda: tiny(torch.float32)),
    "dtype": ("dtype", lambda: constant(torch.bfloat16)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model(tmp_path: Path, tokenizer: Any, name: str) -> None:
    model, ids = constant(torch.float32), tokens(1, PREFIX)
    prefilled(model, ids).save(tmp_path / "p.safetensors", model, tokenizer, ids)
    word, make = OTHERS[name]
    with pytest.raises(ValueError, match=rf"p\.safetensors: saved for another {word}: "):
        PldrCache.load(tmp_path / "p.safetensors", make(), tokenizer, ids)
    PldrCache.load(tmp_path / "p.safetensors", constant(torch.float32), tokenizer, ids)


def test_another_prompt_tokenizer_or_mode(tmp_path: Path, tokenizer: Any) -> None:
    model, ids = tiny(torch.float32, operator_mode="prompt"), tokens(2, PREFIX)
    path = tmp_path / "p.safetensors"
    prefilled(model, ids).save(path, model, tokenizer, ids)
    changed = ids.clone()
    changed[1, 3] += 1
    for other in (changed, ids[:, :-1], ids[:1], ids.flip(0), ids.view(1, -1)):
        with pytest.raises(ValueError, match="saved for another prompt"):
            PldrCache.load(path, model, tokenizer, other)
    with pytest.raises(ValueError, match="saved for another tokenizer"):
        PldrCache.load(path, model, train_tokenizer(runs.texts(), 290, 24), ids)
    with pytest.raises(ValueError, match='saved for another mode: "prompt", expected "recompute"'):
        PldrCache.load(path, model, tokenizer, ids, mode="recompute")
    with pytest.raises(ValueError, match=r"input_ids is \(7,\), expected \[B, S\]"):
        PldrCache.load(path, model, tokenizer, ids[0])


def test_a_cache_of_something_else_is_not_saved(tmp_path: Path, tokenizer: Any) -> None:
    model, ids = constant(torch.float32), tokens(1, PREFIX)
    cache, path = prefilled(model, ids), tmp_path / "p.safetensors"
    with pytest.raises(ValueError, match=r"layers\.0\.keys is \[1, 2, 7, 4\], expected \[1, 2, 6, 4\]"):
        cache.save(path, model, tokenizer, ids[:, :-1])
    with pytest.raises(ValueError, match=r"layers\.0\.keys is missing, expected"):
        PldrCache(model.config).save(path, model, tokenizer, ids)
    with pytest.raises(ValueError, match=r"expected \[1, 4, 7, 2\]"):
        cache.save(path, constant(torch.float32, num_attention_heads=4), tokenizer, ids)
    with pytest.raises(ValueError, match=r"input_ids is \(7,\), expected \[B, S\]"):
        cache.save(path, model, tokenizer, ids[0])
    with pytest.raises(ValueError, match="tokenizer is object, expected a fast one"):
        cache.save(path, model, object(), ids)  # type: ignore[arg-type]
    assert not path.exists()
    cache.save(path, model, tokenizer, ids)
    with pytest.raises(FileExistsError, match=r"p\.safetensors exists"):
        cache.save(path, model, tokenizer, ids)
    cache.save(path, model, tokenizer, ids, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["p.safetensors"]


@pytest.mark.parametrize("mode", MODES)
def test_every_byte_of_the_tensors_and_any_of_the_header(tmp_path: Path, tokenizer: Any, mode: str, keys: Path) -> None:
    model = model_for(mode, dtype=torch.float32, **({"operator_mode": mode} if mode == "prompt" else {}))
    ids, path = tokens(1, PREFIX), tmp_path / "p.safetensors"
    prefilled(model, ids).save(path, model, tokenizer, ids, key=keys / "ours.pem")
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        for position in (start + entry["data_offsets"][0], start + entry["data_offsets"][1] - 1):
            spoiled = bytearray(content)
            spoiled[position] ^= 1
            path.write_bytes(spoiled)
            with pytest.raises(ValueError, match=rf"p\.safetensors: {name} differs: not what was saved"):
                PldrCache.load(path, model, tokenizer, ids)
    text = content[8:start].rstrip(b" ")  # what follows is padding
    for position in range(8, 8 + len(text), 23):
        spoiled = bytearray(content)
        spoiled[position] ^= 1
        path.write_bytes(spoiled)
        with pytest.raises((ValueError, OSError), match=r"p\.safetensors"):
            PldrCache.load(path, model, tokenizer, ids)
    for length in (0, 7, start, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"p\.safetensors: truncated, or not a safetensors file"):
            PldrCache.load(path, model, tokenizer, ids)


def restated(path: Path, change: Any) -> None:
    """Write a saved cache with something else in its metadata."""
    with safe_open(path, framework="pt") as opened:
        statement = json.loads(opened.metadata()["plga"])
    tensors = load_file(path)
    change(statement, tensors)
    save_file(tensors, path, {"plga": json.dumps(statement, sort_keys=True, indent=1) + "\n"})


def test_what_the_file_says_is_not_believed(tmp_path: Path, tokenizer: Any) -> None:
    """Unsigned, so anybody may write it; it still has to fit the model."""
    model, ids, path = constant(torch.float32), tokens(1, PREFIX), tmp_path / "p.safetensors"
    changes = {
        "saved for another format: null": lambda said, _: said.pop("format"),
        "saved for another model": lambda said, _: said.pop("model"),
        "mode is null, expected one of": lambda said, _: said.update(mode=None),
        r"p\.safetensors: mode is 3, expected one of": lambda said, _: said.update(mode=3),
        "mode is 'prompt', but the operator of this model is constant": lambda said, _: said.update(mode="prompt"),
        "it does not say what its tensors are": lambda said, _: said.update(tensors=[]),
        r"layers\.0\.keys differs": lambda said, _: said["tensors"].pop("layers.0.keys"),
        r"layers\.1\.values differs": lambda _, tensors: tensors.pop("layers.1.values"),
        "the signature does not fit": lambda said, _: said.update(signature="0" * 128, public_key="0" * 64),
    }
    for message, change in changes.items():
        prefilled(model, ids).save(path, model, tokenizer, ids, overwrite=True)
        restated(path, change)
        with pytest.raises(ValueError, match=message):
            PldrCache.load(path, model, tokenizer, ids)
    prefilled(model, ids).save(path, model, tokenizer, ids, overwrite=True)
    save_file(load_file(path), path)
    with pytest.raises(ValueError, match="it does not say what it belongs to"):
        PldrCache.load(path, model, tokenizer, ids)
    with pytest.raises(FileNotFoundError, match="expected a saved cache"):
        PldrCache.load(tmp_path / "absent", model, tokenizer, ids)


def with_own_digests(path: Path, name: str, change: Any) -> None:
    """Change a tensor of a saved cache, and what the cache says of it, as anybody can who need not sign."""

    def both(statement: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors[name] = change(tensors[name])
        statement["tensors"][name] = digest_tensor(tensors[name])

    restated(path, both)


@pytest.mark.parametrize("mode", MODES)
def test_numbers_that_no_model_computes(tmp_path: Path, tokenizer: Any, mode: str) -> None:
    model = model_for(mode, dtype=torch.float32, **({"operator_mode": mode} if mode == "prompt" else {}))
    ids, path = tokens(1, PREFIX), tmp_path / "p.safetensors"
    cache = prefilled(model, ids)
    cache.save(path, model, tokenizer, ids)
    changes = {
        "is not finite, expected finite numbers": lambda t: torch.full_like(t, torch.nan),
        "is float16, expected ": lambda t: t.half(),
        "is float64, expected ": lambda t: t.double(),
        "is bool, expected ": lambda t: t > 0,
        "is int32, expected ": lambda t: t.int(),
    }
    for name, tensor in load_file(path).items():
        for message, change in changes.items():
            if message.startswith("is not finite") and not tensor.is_floating_point():
                continue
            cache.save(path, model, tokenizer, ids, overwrite=True)
            with_own_digests(path, name, change)
            with pytest.raises(ValueError, match=rf"p\.safetensors: {name} {message}"):
                PldrCache.load(path, model, tokenizer, ids)
    with pytest.raises(ValueError, match="input_ids is float32, expected integers"):
        PldrCache.load(path, model, tokenizer, ids + 0.5)
    with pytest.raises(ValueError, match=r'saved for another mode: ".*", expected ""'):
        cache.save(path, model, tokenizer, ids, overwrite=True)
        PldrCache.load(path, model, tokenizer, ids, mode="")
    with torch.no_grad():
        for layer in cache.layers:
            layer.keys[0, 0, 0, 0] = torch.nan  # type: ignore[index]
    with pytest.raises(ValueError, match=r"layers\.0\.keys is not finite"):
        cache.save(path, model, tokenizer, ids, overwrite=True)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 100_000_001, 2**20])
def test_a_header_that_says_to_be_huge(tmp_path: Path, tokenizer: Any, length: int) -> None:
    model, ids, path = constant(torch.float32), tokens(1, PREFIX), tmp_path / "p.safetensors"
    prefilled(model, ids).save(path, model, tokenizer, ids)
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(ValueError, match=r"p\.safetensors: truncated, or not a safetensors file"):
        PldrCache.load(path, model, tokenizer, ids)


def test_signatures(tmp_path: Path, tokenizer: Any, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, path = constant(torch.float32), tokens(1, PREFIX), tmp_path / "p.safetensors"
    ours = SealPolicy((read_public_key(keys / "ours.pub"),))
    cache = prefilled(model, ids)
    cache.save(path, model, tokenizer, ids, key=keys / "ours.pem")
    for policy in (None, SealPolicy(required=True), ours):
        PldrCache.load(path, model, tokenizer, ids, seal=policy)
    restated(path, lambda said, _: said.update(prompt="0" * 64))
    with pytest.raises(ValueError, match="the signature does not fit what it says"):
        PldrCache.load(path, model, tokenizer, ids)
    cache.save(path, model, tokenizer, ids, key=keys / "theirs.pem", overwrite=True)
    with pytest.raises(ValueError, match="expected one that is trusted"):
        PldrCache.load(path, model, tokenizer, ids, seal=ours)
    cache.save(path, model, tokenizer, ids, overwrite=True)
    for policy in (SealPolicy(required=True), ours):
        with pytest.raises(ValueError, match=r"p\.safetensors: not signed, but a signature is required"):
            PldrCache.load(path, model, tokenizer, ids, seal=policy)
    (tmp_path / "trust.json").write_text('{"required": true}')
    monkeypatch.setenv(TRUST, str(tmp_path / "trust.json"))
    with pytest.raises(ValueError, match="not signed, but a signature is required"):
        PldrCache.load(path, model, tokenizer, ids)
