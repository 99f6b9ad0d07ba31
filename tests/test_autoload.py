"""How lm-evaluation-harness comes to know the model: in real processes, with the entry points that are declared."""

import logging
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from plga.model.checkpoint import save_model
from plga.training.data.tokenizer import train_tokenizer
from plga_autoload import MODEL, _register, register_with_harness
from tests.cli.runner import environment
from tests.training import examples, runs

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
TASKS = Path(__file__).parent / "scoring" / "tasks"
DECLARED = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["torch.backends"]
LOADED = "{name for name in map(lambda name: name.partition('.')[0], sys.modules) if name in NAMES}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = examples.model(vocab_size=300, max_position_embeddings=64, operator="constant", constant="random")
    save_model(model, tmp_path / "constant", tokenizer=train_tokenizer(runs.texts(), 300, 64))
    return tmp_path / "constant"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds this package as pip leaves it, installed or not."""
    folder = tmp_path / "plga-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plga\nVersion: 0\n")
    lines = ["[torch.backends]", *(f"{name} = {target}" for name, target in DECLARED.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    found = environment()
    return found | {"PYTHONPATH": os.pathsep.join([str(tmp_path), found["PYTHONPATH"]]), "HF_HUB_OFFLINE": "1"}


def run(*command: str, environment: dict[str, str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


def printed(code: str, environment: dict[str, str]) -> list[str]:
    names = "NAMES = {'lm_eval', 'plga', 'plga_autoload', 'transformers', 'wrapt'}"
    ending = run(sys.executable, "-c", f"import sys\n{names}\n{code}", environment=environment)
    assert (ending.returncode, ending.stderr) == (0, ""), ending.stderr
    return ending.stdout.splitlines()


def test_what_is_installed_is_what_is_declared() -> None:
    try:
        found = metadata.distribution("plga").entry_points.select(group="torch.backends")
    except metadata.PackageNotFoundError:
        pytest.skip("plga is on the path and not installed")
    assert {point.name: point.value for point in found} == DECLARED


@pytest.mark.parametrize("command", ["lm_eval", "python -m lm_eval"])
def test_the_command_evaluates_the_model(
    command: str, installed: dict[str, str], checkpoint: Path, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    script = Path(sys.executable).with_name("lm_eval")
    if command == "lm_eval" and not script.exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{script} is missing")
    program = (str(script),) if command == "lm_eval" else (sys.executable, "-m", "lm_eval")
    options = ("--include_path", str(TASKS), "--tasks", "library_choices", "--batch_size", "4", "--limit", "2")
    asked = ("--model", "plga", "--model_args", f"pretrained={checkpoint},protocol=auto", *options)
    ending = run(*program, *asked, environment=installed, folder=TASKS)
    assert ending.returncode == 0, ending.stderr
    assert "|library_choices|" in ending.stdout and "acc_norm" in ending.stdout
    unknown = run(*program, *asked, environment=installed | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, folder=TASKS)
    assert "Unknown model 'plga'" in unknown.stderr


def test_torch_alone_stays_alone(installed: dict[str, str]) -> None:
    # As where lm-evaluation-harness is not installed.
    code = f"""
sys.modules["lm_eval"] = None
finders = list(sys.meta_path)
import torch
del sys.modules["lm_eval"]
print(sorted({LOADED}), sys.meta_path == finders)
"""
    assert printed(code, installed) == ["['plga_autoload'] True"]


@pytest.mark.parametrize("order", ["import torch, lm_eval.models", "import lm_eval.models, torch"])
def test_the_name_is_there_before_the_model_is(order: str, installed: dict[str, str]) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    code = f"""
{order}
from lm_eval.api.registry import model_registry
print(dict(model_registry.items())["plga"], sorted({LOADED}))
"""
    assert printed(code, installed) == [f"{MODEL} ['lm_eval', 'plga_autoload', 'wrapt']"]


def test_all_other_models_are_still_found(installed: dict[str, str]) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    code = """
import torch
from lm_eval.api.registry import get_model, model_registry
print(len(model_registry), get_model("dummy").__name__, {"hf", "vllm", "plga"} <= set(model_registry))
"""
    assert printed(code, installed) == ["0 DummyLM True"]


def test_torch_alone_imports_nothing_of_the_harness(installed: dict[str, str]) -> None:
    assert printed(f"import torch\nprint({LOADED} - {{'wrapt'}})", installed) == ["{'plga_autoload'}"]


def test_import_plga_does_the_same(installed: dict[str, str]) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    code = """
import plga, lm_eval.models
from lm_eval.api.registry import model_registry
print("plga" in model_registry, "torch" in sys.modules)
"""
    assert printed(code, installed) == ["True False"]


def test_nothing_breaks_the_import_of_torch(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.WARNING)
    said = "lm-evaluation-harness does not know the model plga"
    monkeypatch.setitem(sys.modules, "lm_eval", ModuleType("lm_eval"))
    monkeypatch.setitem(sys.modules, "lm_eval.api", ModuleType("lm_eval.api"))
    monkeypatch.setitem(sys.modules, "lm_eval.api.registry", ModuleType("a registry of another release"))
    _register(None)
    assert said in caplog.text
    caplog.clear()
    register_with_harness()  # a module without a specification cannot be found
    assert said in caplog.text


def test_a_name_that_is_taken_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("lm_eval.api.registry", reason="needs the extra eval")
    taken = {"plga": object()}
    monkeypatch.setattr(registry, "model_registry", taken)
    before = dict(taken)
    _register(None)
    assert taken == before
