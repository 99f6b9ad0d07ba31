"""``plga adopt`` and ``plga absorb``: from a causal LM to an adopted one, and back."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import plga.adopt as adopting
from plga.adopt.classes import operators
from plga.training.data.tokenizer import train_tokenizer
from tests.cli.runner import environment, fresh, plga
from tests.training import adopted_models, runs


def make(folder: Path, kind: str = "llama", **settings: Any) -> Path:
    adopted_models.base(kind, **settings).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with a tokenizer. Not to be written to."""
    folder = make(tmp_path_factory.mktemp("models") / "base")
    train_tokenizer(runs.texts(), 300, 24).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adopted(base: Path) -> Path:
    """What plga adopt makes of it. Not to be written to."""
    folder = base.parent / "adopted"
    ending = plga("adopt", base, "--out", folder)
    assert (ending.code, ending.err) == (0, ""), ending
    assert f"wrote {folder}" in ending.out
    assert "logits and hidden states of 5 tokens equal to the bit those of the original" in ending.out
    for name, value in {
        "base": "LlamaForCausalLM",
        "attention layers": "2",
        "heads x width": "4 x 4",
        "operator": "constant",
        "numbers added": "128",  # 2 layers, 4 heads, 4 x 4
    }.items():
        assert any(name in line and value in line for line in ending.out.splitlines()), (name, ending.out)
    return folder


def load(folder: Path) -> PreTrainedModel:
    found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder).eval()
    return found


@torch.no_grad()
def logits(folder: Path) -> Tensor:
    tokens = torch.randint(3, 300, (2, 30), generator=torch.Generator().manual_seed(1))
    found: Tensor = load(folder)(input_ids=tokens).logits
    return found


def test_the_same_bits_and_tokenizer(base: Path, adopted: Path) -> None:
    assert type(load(adopted)).__name__ == "AdoptedLlamaForCausalLM"
    assert torch.equal(logits(adopted), logits(base))
    text = "def read(self, size):"
    assert AutoTokenizer.from_pretrained(adopted)(text) == AutoTokenizer.from_pretrained(base)(text)


@pytest.mark.parametrize("options", [("learned",), ("low_rank", "--rank", "3", "--seed", "5")])
def test_other_operators(base: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    ending = plga("adopt", base, "--out", tmp_path / "out", "--operator", *options)
    assert ending.code == 0, ending
    assert torch.equal(logits(tmp_path / "out"), logits(base))
    assert load(tmp_path / "out").config.plga_operator["kind"] == options[0]
    if options[0] == "low_rank":
        assert "low_rank, rank 3" in ending.out
        assert f"numbers added       │ {2 * 2 * 4 * 4 * 3}" in ending.out


def bent(base: Path) -> PreTrainedModel:
    """Adopted, with operators that stretch the rotary pair (0, 2)."""
    model: PreTrainedModel = adopting.adopt(load(base))
    for operator in operators(model).values():
        operator.curvature.data[:, (0, 2), (0, 2)] = 5.0  # type: ignore[index, union-attr]
    return model


def test_operators_of_a_file_and_back(base: Path, tmp_path: Path) -> None:
    adopting.save_operators(bent(base), tmp_path / "operators.safetensors")
    ending = plga("adopt", base, "--out", tmp_path / "out", "--operators", tmp_path / "operators.safetensors")
    assert ending.code == 0, ending
    assert "the original at G = I, before the file was read" in ending.out
    assert not torch.equal(logits(tmp_path / "out"), logits(base))

    ending = plga("absorb", tmp_path / "out", "--out", tmp_path / "plain")
    assert (ending.code, ending.err) == (0, ""), ending
    assert f"wrote {tmp_path / 'plain'}: LlamaForCausalLM" in ending.out
    assert float((logits(tmp_path / "plain") - logits(tmp_path / "out")).abs().max()) <= 1e-5
    files = {path.name for path in (tmp_path / "plain").iterdir()}
    assert files == {path.name for path in base.iterdir()}
    configs = [json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "plain", base)]
    assert configs[0] == configs[1]
    code = f"""
import sys
from transformers import AutoModelForCausalLM
print(type(AutoModelForCausalLM.from_pretrained({str(tmp_path / "plain")!r})).__module__, "plga" in sys.modules)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["transformers.models.llama.modeling_llama", "False"]


def test_an_operator_that_does_not_commute_writes_nothing(base: Path, tmp_path: Path) -> None:
    model = bent(base)
    list(operators(model).values())[1].curvature.data[3, 0, 1] = 1.0  # type: ignore[index, union-attr]
    model.save_pretrained(tmp_path / "adopted")
    error = plga("absorb", tmp_path / "adopted", "--out", tmp_path / "plain").err
    assert error.count("\n") == 1
    assert "1 of 8 heads do not commute" in error
    assert "head 3 of model.layers.1.self_attn with a residual of 0." in error
    assert [path.name for path in tmp_path.iterdir()] == ["adopted"]


def test_replacing_what_is_there(base: Path, adopted: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(adopted, tmp_path / "out"))
    assert f"{out} exists" in plga("adopt", base, "--out", out).error()
    ending = plga("adopt", base, "--out", out, "--operator", "low_rank", "--rank", "2", "--overwrite")
    assert ending.code == 0, ending
    assert load(out).config.plga_operator["kind"] == "low_rank"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("kept")
    error = plga("adopt", base, "--out", tmp_path / "notes", "--overwrite").error()
    assert "is not a causal LM alone, so it is not overwritten" in error
    assert (tmp_path / "notes" / "mine.txt").read_text() == "kept"


def last(ending: Any) -> str:
    """The line that says why; progress may stand on stdout, and before it what Transformers has to say of a model."""
    assert ending.code == 1, ending
    assert "Traceback" not in ending.err, ending
    line = str(ending.err).splitlines()[-1]
    assert line.startswith("plga: error: "), ending
    return line


def test_what_is_not_adopted(base: Path, adopted: Path, tmp_path: Path) -> None:
    encoder = AutoConfig.for_model("bert", **adopted_models.SMALL)
    AutoModel.from_config(encoder).save_pretrained(tmp_path / "encoder")
    make(tmp_path / "mamba", "mamba")
    damaged = Path(shutil.copytree(base, tmp_path / "damaged"))
    os.truncate(damaged / "model.safetensors", 1000)
    (tmp_path / "empty").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    for source, message in {
        tmp_path / "missing": "missing: no such directory",
        tmp_path / "encoder": "encoder: ",
        tmp_path / "mamba": "MambaForCausalLM runs its attention past Transformers' attention interface",
        adopted: "AdoptedLlamaForCausalLM is adopted already",
        damaged: "damaged: ",
        tmp_path / "empty": "empty: ",
    }.items():
        assert message in last(plga("adopt", source, "--out", tmp_path / "out"))
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert "LlamaForCausalLM is not adopted" in last(plga("absorb", base, "--out", tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--operator", "nope"), "operator is 'nope', expected one of constant, learned, low_rank"),
        (("--operator", "low_rank", "--rank", "0"), "rank is 0, expected a whole number >= 1"),
        (("--operator", "low_rank", "--rank", "9"), "rank is 9, expected at most 4, the width of a head"),
        (("--rank", "2"), "--rank is 2, expected it with --operator low_rank only"),
        (("--operators", "x", "--operator", "constant"), "--operators brings its own kind"),
    ],
)
def test_impossible_options(base: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    assert message in plga("adopt", base, "--out", tmp_path / "out", *options).error()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["adopt", "absorb"])
def test_an_empty_name_is_no_model(command: str, tmp_path: Path) -> None:
    assert "the model is '', expected a directory" in plga(command, "", "--out", tmp_path / "out").error()


def test_not_inside_of_the_model(base: Path) -> None:
    assert "inside of it" in plga("adopt", base, "--out", base / "out").error()
    assert "exists" in plga("adopt", base, "--out", base).error()
    assert not (base / "out").exists()


def test_operators_of_another_model(base: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", num_hidden_layers=3)
    adopting.save_operators(adopting.adopt(load(other)), tmp_path / "operators.safetensors")
    options = ("--operators", tmp_path / "operators.safetensors")
    error = last(plga("adopt", base, "--out", tmp_path / "out", *options))
    assert "is for a model of 3 attention layers, but this one has 2" in error
    assert not (tmp_path / "out").exists()


def test_commands_for_pldr_llms_say_what_they_expected(adopted: Path) -> None:
    for arguments in (("info", adopted), ("generate", adopted, "--prompt", "x"), ("score", adopted, __file__)):
        assert "model_type is 'plga_adopted', expected one of pldr, pldrllm" in plga(*arguments).error()


def test_a_full_disk_and_an_interruption_leave_nothing(base: Path, tmp_path: Path) -> None:
    assert str(tmp_path / "out") in last(plga("adopt", base, "--out", tmp_path / "out", file_limit=20_000))
    assert list(tmp_path.iterdir()) == []
    process = fresh(
        *("adopt", base, "--out", tmp_path / "out"),
        code="""
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background ignores
from transformers import PreTrainedModel
save = PreTrainedModel.save_pretrained
def interrupted(self, *arguments, **settings):
    save(self, *arguments, **settings)
    os.kill(os.getpid(), signal.SIGINT)
PreTrainedModel.save_pretrained = interrupted
from plga.cli.main import main
main()
""",
    )
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "plga: interrupted\n")
    assert list(tmp_path.iterdir()) == []
