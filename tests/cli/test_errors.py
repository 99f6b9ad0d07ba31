"""What bad input gets: one line that names it, exit code 1, and nothing written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.runner import fresh, plga


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint to spoil."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def change_tensor(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors.pop(name))
    save_file(tensors if changed is None else tensors | {name: changed}, folder / "model.safetensors", {"format": "pt"})


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


SPOILED = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: no such file"),
    "truncated weights": (lambda f: halve(f / "model.safetensors"), "model.safetensors: truncated"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json: no such file"),
    "truncated config": (lambda f: halve(f / "config.json"), "config.json: truncated"),
    "another model": (lambda f: change_config(f, model_type="llama"), "model_type is 'llama'"),
    "heads": (lambda f: change_config(f, num_attention_heads=3), "expected a multiple of num_attention_heads = 3"),
    "odd width": (lambda f: change_config(f, num_attention_heads=8, hidden_size=8), "expected an even head width"),
    "missing": (lambda f: change_tensor(f, "lm_head.bias", lambda t: None), "missing: lm_head.bias"),
    "misshaped": (lambda f: change_tensor(f, "lm_head.bias", lambda t: t[1:]), "lm_head.bias is [299], expected [300]"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_checkpoint(copy: Path, name: str) -> None:
    spoil, message = SPOILED[name]
    spoil(copy)
    ending = plga("generate", copy, "--prompt", "x")
    assert message in ending.error()
    assert str(copy) in ending.error()
    assert ending.out == ""


def test_what_is_no_checkpoint_at_all(tmp_path: Path, reference: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "half.pth").write_bytes((reference / "critical.pth").read_bytes()[:4_000_000])
    torch.save({"model_state_dict": os.system}, tmp_path / "code.pth")
    for name, message in {
        "missing": "no such file or directory",
        "missing.pth": "no such file or directory",
        "notes.txt": "not a file of tensors",
        "half.pth": "truncated",
        "code.pth": "refused, because it wants posix.system",
        "": "config.json: no such file",
    }.items():
        error = plga("info", tmp_path / name).error()
        assert message in error
        assert name in error


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("model.embed_tokens.weight", "A of layer 0 is not finite"),
        ("model.layers.1.self_attn.operator.exponent", "A_P of layer 1 is not finite"),
        # Behind the last operator nothing but the logits shows it, and greedy decoding would take NaN for the best.
        ("lm_head.weight", "the logits after 1 tokens are not finite"),
    ],
)
def test_weights_that_are_not_finite(copy: Path, tensor: str, message: str) -> None:
    change_tensor(copy, tensor, lambda t: torch.full_like(t, torch.nan))
    assert message in plga("generate", copy, "--prompt", "x").error()


def test_a_constant_that_is_not_finite(frozen: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(frozen, tmp_path / "frozen"))
    change_tensor(folder, "model.layers.1.self_attn.operator.curvature", lambda t: t * torch.nan)
    assert "not finite" in plga("generate", folder, "--prompt", "x").error()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompt", ""), "--prompt is empty"),
        (("--prompt", "\udcff"), "--prompt is not valid UTF-8"),
        (("--prompt", "import os\n" * 20), "tokens, expected at most 23 (context 24)"),
        (("--prompt", "x", "--mode", "fast"), "--mode is 'fast', expected one of recompute, prompt, chunked, constant"),
        (("--prompt", "x", "--sample", "--temperature", "0"), "--temperature is 0"),
        (("--prompt", "x", "--sample", "--temperature", "nan"), "--temperature is nan"),
        (("--prompt", "x", "--sample", "--temperature", "1e-40"), "--temperature is 1e-40"),
        (("--prompt", "x", "--sample", "--top-p", "2"), "--top-p is 2, expected in (0, 1]"),
        (("--prompt", "x", "--sample", "--top-p", "0"), "--top-p is 0"),
        (("--prompt", "x", "--repetition-penalty", "0"), "--repetition-penalty is 0"),
        (("--prompt", "x", "--repetition-penalty", "inf"), "--repetition-penalty is inf"),
        (("--prompt", "x", "--tokenizer", "/missing"), "/missing: no such file"),
        (("--prompt", "x", "--tokenizer", os.devnull), "expected a tokenizer"),
        (("--prompt", "x", "--mode", "constant", "--calibration", "/missing"), "/missing"),
        (("--prompt", "x", "--mode", "constant", "--calibration", os.devnull), f"{os.devnull} has 0 tokens"),
    ],
)
def test_impossible_options_of_generate(checkpoint: Path, options: tuple[str, ...], message: str) -> None:
    ending = plga("generate", checkpoint, *options)
    assert message in ending.error()
    assert ending.out == ""


def test_a_calibration_text_that_is_none(checkpoint: Path, tmp_path: Path) -> None:
    options = ("--prompt", "x", "--mode", "constant", "--calibration", tmp_path / "latin.txt")
    assert plga("generate", checkpoint, *options).error() == f"{tmp_path}/latin.txt: No such file or directory"
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "latin.txt: not UTF-8" in plga("generate", checkpoint, *options).error()


@pytest.mark.parametrize("mode", ["recompute", "prompt"])
def test_a_constant_operator_has_one_mode(frozen: Path, mode: str) -> None:
    assert f"mode is '{mode}'" in plga("generate", frozen, "--prompt", "x", "--mode", mode).error()


def test_tokenizers_that_are_missing_or_of_another_model(copy: Path, reference: Path) -> None:
    larger = reference / "tokenizer.json"
    error = plga("generate", copy, "--prompt", "x", "--tokenizer", larger).error()
    assert f"{larger}: 2048 pieces, expected at most the model's 300" in error
    for file in copy.glob("tokenizer*"):
        file.unlink()
    assert str(copy) in plga("generate", copy, "--prompt", "x").error()
    assert plga("generate", copy, "--prompt", "x", "--tokenizer", copy).error()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stop", "0"), "stop is 0, expected greater than or equal to 1"),
        (("--stop", "100000000"), "stop is 100000000"),
        (("--learning-rate", "0"), "learning_rate is 0"),
        (("--learning-rate", "nan"), "learning_rate is nan"),
    ],
)
def test_impossible_options_of_the_demo(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    assert message in plga("demo", "--out", tmp_path / "out", *options, small_library=True).error()
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for out in (file, file / "below"):
        assert str(file) in plga("demo", "--out", out, small_library=True).error()
    assert file.read_text() == "kept"


def test_one_line_from_a_fresh_interpreter_or_a_traceback_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> tuple[str, str, int]:
        process = fresh("generate", "x", "--prompt", "")
        return (*process.communicate(), process.returncode)

    assert end() == ("", "plga: error: --prompt is empty, expected at least one token of text\n", 1)
    monkeypatch.setenv("PLGA_TRACEBACK", "1")
    _, err, code = end()
    assert code == 1
    assert "Traceback" in err


def test_a_reader_that_went_away_is_no_error(checkpoint: Path) -> None:
    process = fresh("info", checkpoint)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1
