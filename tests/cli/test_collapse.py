"""``plga collapse``: verdicts on trained checkpoints, what it writes, and what it says of bad input."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plga.collapse.absorb import constants
from plga.model.checkpoint import load_model, save_model
from plga.model.modeling import PldrForCausalLM
from plga.model.tokenizer import load_tokenizer
from tests.cli.runner import Ending, plga
from tests.cli.test_errors import change_tensor
from tests.training import examples

ANYTHING = "nearly_invariant: {distance: 1.0e+9, divergence: 1.0e+9, moved: 1.0e+9, agreement: 0}\n"
LINES = "import os\ndef f(x):\nreturn x + 1\nfor i in range(10):\nclass A:\nprint(i)\n"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text(LINES)
    return file


@pytest.fixture
def anything(tmp_path: Path) -> Path:
    """Thresholds under which every operator is nearly invariant."""
    file = tmp_path / "limits.yaml"
    file.write_text(ANYTHING)
    return file


def collapse(checkpoint: Path, out: Path, *options: object) -> Ending:
    return plga("collapse", checkpoint, "--out", out, "--new-tokens", 3, *options)


def report(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "collapse_report.json").read_text())
    return found


def test_a_critical_checkpoint_is_collapsed(reference: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ending = collapse(reference / "critical.pth", out, "--prompts", lines)
    assert (ending.code, ending.err) == (0, ""), ending
    for line in ("verdict: collapsed", "quantifies, does not certify", "9 of 9", f"wrote {out}: constant operator"):
        assert line in ending.out
    assert report(out)["verdict"] == "collapsed"
    model, tokenizer = load_model(out, dtype=None), load_tokenizer(out, 2048)
    assert (model.config.operator, model.dtype, model.config.eos_token_id) == (
        "constant",
        torch.float32,
        tokenizer.eos_token_id,
    )
    written = plga("generate", out, "--prompt", "def f(x):", "--max-new-tokens", 12)
    rebuilt = plga("generate", reference / "critical.pth", "--prompt", "def f(x):", "--max-new-tokens", 12)
    assert written == rebuilt
    assert written.code == 0


def test_a_subcritical_checkpoint_is_refused(reference: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ending = collapse(reference / "subcritical.pth", out, "--prompts", lines)
    error = ending.error()
    assert error.startswith("input-dependent (distance 0.1")
    assert "nats a token (block) and" in error and error.endswith("nothing is written without --force")
    assert "verdict: input-dependent; distance 0.1" in ending.out
    assert list(tmp_path.iterdir()) == [lines]


def test_force_writes_and_overwrite_replaces(checkpoint: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # Not trained, so its operator depends on the input.
    assert "input-dependent" in collapse(checkpoint, out, "--prompts", lines).error()
    assert not out.exists()
    assert collapse(checkpoint, out, "--prompts", lines, "--force").code == 0
    first = report(out)
    assert "written by force" in (out / "COLLAPSE.md").read_text()
    assert "exists, expected a new or empty directory, or --overwrite" in collapse(checkpoint, out).error()
    ending = collapse(checkpoint, out, "--prompts", lines, "--force", "--overwrite")
    assert ending.code == 0
    assert report(out) == first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_weights_keep_their_dtype(
    model: PldrForCausalLM, checkpoint: Path, anything: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    cast, _ = load_model(checkpoint, dtype), tmp_path
    save_model(cast, tmp_path / "cast", tokenizer=load_tokenizer(checkpoint))
    assert collapse(tmp_path / "cast", tmp_path / "out", "--thresholds", anything, "--dtype", "float16").code == 0
    assert load_model(tmp_path / "out", dtype=None).dtype == dtype
    wide = "float64" if dtype == torch.float64 else "float32"
    assert list(report(tmp_path / "out")["written"]["fidelity"]) == [wide, "float16"]  # type: ignore[index]


def test_data_a_file_and_another_checkpoint(checkpoint: Path, frozen: Path, anything: Path, tmp_path: Path) -> None:
    documents = tmp_path / "documents.txt"
    documents.write_text(LINES)
    curvature = torch.randn(2, 2, 4, 4)
    save_file({"curvature": curvature}, tmp_path / "g.safetensors")
    options = ("--thresholds", anything, "--data", documents)
    assert collapse(checkpoint, tmp_path / "file", *options, "--freeze", tmp_path / "g.safetensors").code == 0
    assert torch.equal(constants(load_model(tmp_path / "file")), curvature)
    assert report(tmp_path / "file")["operator"] == "that of g.safetensors"
    assert report(tmp_path / "file")["prompts"]["origin"] == str(documents)  # type: ignore[index]

    assert collapse(checkpoint, tmp_path / "transfer", *options, "--operator", frozen).code == 0
    assert torch.equal(constants(load_model(tmp_path / "transfer")), constants(load_model(frozen)))
    assert report(tmp_path / "transfer")["operator"] == "that of frozen (mean)"

    for which in ("first", "mean"):
        assert collapse(checkpoint, tmp_path / which, *options, "--freeze", which).code == 0
        assert collapse(checkpoint, tmp_path / f"own {which}", *options, "--operator", checkpoint, "--freeze", which)
        own = constants(load_model(tmp_path / f"own {which}"))
        assert torch.equal(own, constants(load_model(tmp_path / which)))


def test_a_guard_is_written_with_it(checkpoint: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ending = collapse(checkpoint, out, "--prompts", lines, "--force", "--guard", 5)
    assert f"wrote {out}: constant operator, COLLAPSE.md, collapse_report.json, guard.safetensors" in ending.out, ending
    guarded, learned = load_model(out), load_model(checkpoint)
    assert guarded.generation_config.guard == {
        "every": 5,
        "margin_factor": 2.0,
        "deviation": report(out)["written"]["fidelity"]["float32"]["all"]["largest_deviation"],  # type: ignore[index]
        "tolerance": 1e-3,
    }
    # This operator depends on the input, so from the first check on the guard has fallen back.
    ids = load_tokenizer(out)("def f(x):", return_tensors="pt").input_ids
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True}
    written = guarded.generate(ids, **options)
    assert written.guard[0].fallbacks == 1
    text = written.sequences[:, : ids.shape[1] + 4]
    assert torch.equal(learned.generate(text, max_new_tokens=4, do_sample=False), written.sequences)
    # With weights in bfloat16 the deviation is that in bfloat16.
    save_model(load_model(checkpoint, torch.bfloat16), tmp_path / "cast", tokenizer=load_tokenizer(checkpoint))
    assert collapse(tmp_path / "cast", tmp_path / "16", "--prompts", lines, "--force", "--guard", 5).code == 0
    deviation = report(tmp_path / "16")["written"]["fidelity"]["bfloat16"]["all"]["largest_deviation"]  # type: ignore[index]
    assert load_model(tmp_path / "16", dtype=None).generation_config.guard["deviation"] == deviation


def test_what_cannot_be_guarded(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert collapse(checkpoint, out, "--guard", 0).error() == "--guard is 0, expected a whole number of tokens >= 1"
    both = collapse(checkpoint, out, "--guard", 1, "--project-commutant").error()
    assert both == "--guard and --project-commutant are both given, but what is absorbed cannot be watched"
    save_file({"curvature": torch.eye(4).expand(2, 2, 4, 4).clone()}, tmp_path / "g.safetensors")
    absorbed = collapse(checkpoint, out, "--freeze", tmp_path / "g.safetensors", "--force", "--guard", 1)
    assert "was absorbed into the queries, so no guard can watch it; leave out --guard" in absorbed.err
    chunked = load_model(checkpoint)
    chunked.config.gram, chunked.config.gram_chunk, chunked.config.operator_mode = "chunked", 4, "chunked"
    save_model(chunked, tmp_path / "chunked", tokenizer=load_tokenizer(checkpoint))
    message = "is learned with a chunked Gram, expected learned with a global one"
    assert message in collapse(tmp_path / "chunked", out, "--guard", 1).error()
    assert not out.exists()


def test_what_is_read_is_not_written_into(checkpoint: Path, frozen: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(checkpoint, tmp_path / "own"))
    (tmp_path / "link").symlink_to(own)
    for out in (own, own / "out", tmp_path / "link", tmp_path / "link" / "out"):
        message = f"--out is {out}, expected a folder outside of {own}, which is read and stays as it is"
        assert collapse(own, out, "--overwrite").error() == message
    assert "expected a folder outside of" in collapse(frozen, own, "--operator", own, "--overwrite").error()
    assert {path.name for path in own.iterdir()} == {path.name for path in checkpoint.iterdir()}


def test_a_projected_operator_is_absorbed(checkpoint: Path, anything: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ending = collapse(checkpoint, out, "--thresholds", anything, "--project-commutant")
    assert "no operator left" in ending.out
    assert "projected float32" in ending.out and "constant float32" in ending.out
    found = load_model(out)
    assert found.config.constant == "identity"
    assert torch.equal(constants(found), torch.eye(4).expand(2, 2, 4, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompts", "/missing"), "/missing: No such file or directory"),
        (("--prompts", "EMPTY"), "0 prompts, expected at least 4, one a line"),
        (("--prompts", "LONG"), "LONG: prompt 4 has"),
        (("--data", "/missing"), "/missing: no such file"),
        (("--data", "LONG"), "the name says no kind"),
        (("--prompts", "LONG", "--data", "LONG"), "--prompts and --data are both given"),
        (("--freeze", "last"), "--freeze is 'last', and there is no such file; expected mean, first or a file"),
        (("--freeze", "mean", "--operator", "/missing"), "/missing: no such file or directory"),
        (("--freeze", "file", "--operator", "/missing"), "--freeze is 'file', expected mean or first with --operator"),
        (("--thresholds", "/missing"), "/missing: no such file"),
        (("--thresholds", "UNKNOWN"), "UNKNOWN: colapsed is not a setting, expected one of collapsed"),
        (("--dtype", "int8"), "--dtype is 'int8', expected one of float32, bfloat16"),
        (("--new-tokens", "23"), "--new-tokens is 23, expected at most 22, the context less two"),
        (("--tokenizer", "/missing"), "/missing: no such file"),
    ],
)
def test_bad_options_are_one_line(checkpoint: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "EMPTY").write_text("\n \n")
    (tmp_path / "LONG").write_text("a = 1\nb = 2\nc = 3\n" + "import os " * 30)
    (tmp_path / "UNKNOWN").write_text("colapsed: {distance: 1}\n")
    values = [tmp_path / value if value.isupper() else value for value in options]
    assert message in collapse(checkpoint, tmp_path / "out", *values).error()
    assert not (tmp_path / "out").exists()


def test_checkpoints_that_cannot_be_collapsed(checkpoint: Path, frozen: Path, lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "no such file or directory" in collapse(tmp_path / "missing", out).error()
    assert "constant already, expected learned" in collapse(frozen, out).error()
    spoiled = Path(shutil.copytree(checkpoint, tmp_path / "spoiled"))
    change_tensor(spoiled, "model.layers.1.self_attn.operator.coupling_bias", lambda t: t * torch.nan)
    assert "G_LM of layer 1 is not finite" in collapse(spoiled, out, "--prompts", lines).error()
    save_file({"curvature": torch.ones(3, 2, 4, 4)}, tmp_path / "g.safetensors")
    shape = "curvature is (3, 2, 4, 4), expected (2, 2, 4, 4)"
    assert shape in collapse(checkpoint, out, "--freeze", tmp_path / "g.safetensors").error()
    save_model(examples.model(num_attention_heads=4, hidden_size=8, vocab_size=300), tmp_path / "other")
    shutil.copy(checkpoint / "tokenizer.json", tmp_path / "other")
    assert "curvature is (2, 4, 2, 2)" in collapse(checkpoint, out, "--operator", tmp_path / "other").error()
    assert not out.exists()


def test_a_full_disk_leaves_nothing(checkpoint: Path, lines: Path, tmp_path: Path) -> None:
    arguments = ("collapse", checkpoint, "--out", tmp_path / "out", "--prompts", lines, "--new-tokens", 3, "--force")
    assert "File too large" in plga(*arguments, file_limit=20_000).error()
    assert list(tmp_path.iterdir()) == [lines]
