"""Transformers' Auto classes know PLDR-LLMs after ``import plga``, in any order of imports, in a fresh interpreter."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.model.conftest import tiny, tiny_config

ORDERS = {
    "plga, and then AutoConfig only": "import plga",
    "plga last": "import transformers; from transformers import AutoModelForCausalLM; import plga",
    "after another model": "from transformers.models.llama import modeling_llama; import plga",
    "between": "import transformers; import plga; from transformers import AutoConfig",
    "models before plga": "from transformers import AutoModel, LlamaForCausalLM; import plga",
}

# What a user does with a checkpoint directory (argument 1) and a pickled configuration (argument 2).
USE = """
import sys, torch
from transformers import AutoConfig
config = AutoConfig.from_pretrained(sys.argv[1])
assert type(config).__name__ == "PldrConfig" and type(AutoConfig.for_model("pldr")) is type(config)
import transformers
names = {
    "AutoModel": "PldrModel",
    "AutoModelForCausalLM": "PldrForCausalLM",
    "AutoModelForSequenceClassification": "PldrForSequenceClassification",
    "AutoModelForTokenClassification": "PldrForTokenClassification",
    "AutoModelForQuestionAnswering": "PldrForQuestionAnswering",
}
for auto, name in names.items():
    auto = getattr(transformers, auto)
    for model in (auto.from_config(config), auto.from_pretrained(sys.argv[1])):
        assert type(model).__name__ == name, (auto, type(model))
        assert type(model).__module__ == "plga.model.modeling"
    model(torch.tensor([[1, 2, 3]]))
"""

UNPICKLED = """
import pickle, sys
import plga
config = pickle.load(open(sys.argv[2], "rb"))
from transformers import AutoModelForCausalLM
assert type(AutoModelForCausalLM.from_config(config)).__name__ == "PldrForCausalLM"
"""

# Forks an interpreter that knows torch, which takes seconds to load, and neither Transformers nor plga.
FORKED = """
import os, sys, torch
for name, code in {programs!r}.items():
    if os.fork() == 0:
        exec(code, {{"__name__": "__main__"}})
        os._exit(0)
    if os.wait()[1] == 0:
        print(name, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("auto")
    tiny(torch.float32).save_pretrained(folder)
    (folder / "config.pkl").write_bytes(pickle.dumps(tiny_config()))
    return folder


def fresh(code: str, *arguments: object) -> str:
    """Run ``code`` in a new interpreter and return what it printed."""
    run = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    sys.stderr.write(run.stderr)  # shown with a failure
    return run.stdout


def test_auto_classes_in_a_fresh_interpreter(folder: Path) -> None:
    programs = {name: imports + USE for name, imports in ORDERS.items()} | {"unpickled": UNPICKLED}
    passed = fresh(FORKED.format(programs=programs), folder, folder / "config.pkl").splitlines()
    assert passed == list(programs)


def test_importing_the_package_loads_neither_torch_nor_transformers() -> None:
    printed = fresh("import sys, plga; print(plga.__version__, *sorted({'torch', 'transformers'} & set(sys.modules)))")
    assert len(printed.split()) == 1, printed


def test_public_names_are_what_they_say() -> None:
    import plga

    for name in plga.__all__:
        assert getattr(plga, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = plga.Nothing
