"""``plga export``; what the graph computes is in tests/serving/test_onnx.py."""

from pathlib import Path

import onnx

from tests.cli.runner import plga


def test_export(frozen: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    ending = plga("export", frozen, "--format", "onnx", "--out", out)
    assert ending.code == 0, ending
    assert ending.out.startswith(f"wrote {out}: ")
    assert ending.err == ""
    onnx.checker.check_model(out, full_check=True)
    assert f"{out} exists" in plga("export", frozen, "--out", out).error()


def test_refusals(checkpoint: Path, frozen: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    error = plga("export", checkpoint, "--out", out).error()
    assert error.startswith(f"{checkpoint}: the operator is learned, expected constant; plga collapse {checkpoint} ")
    error = plga("export", frozen, "--format", "gguf", "--out", out).error()
    assert error == "--format is 'gguf', expected one of onnx"
    assert "no such file" in plga("export", tmp_path / "absent", "--out", out).error()
    assert list(tmp_path.iterdir()) == []
