"""``plga plan``: what it takes from where, what it prints, and its errors."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plga.model.configuration import PldrConfig
from plga.model.modeling import PldrForCausalLM
from plga.training.plan import plan
from tests.cli.runner import plga
from tests.cli.test_info import rows


def planned(*arguments: object) -> dict[str, Any]:
    ending = plga("plan", *arguments, "--json")
    assert (ending.code, ending.err) == (0, ""), ending
    values: dict[str, Any] = json.loads(ending.out)
    return values


def expected(config: PldrConfig, **how: Any) -> dict[str, Any]:
    found = plan(config, **how)
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(found)))
    values["peak"]["total"] = found.peak.total
    return values


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A training YAML in which nothing that matters to a plan is as by default."""
    values = {
        "model": {"vocab_size": 300, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 24},
        "optimizer": {"batch": 12, "accumulate": 3, "precision": "bf16", "checkpointing": "layers", "warmup": 1},
        "distributed": {"strategy": "fsdp2"},
    }
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_a_checkpoint_or_its_config(checkpoint: Path, model: PldrForCausalLM) -> None:
    values = planned(checkpoint)
    assert values == planned(checkpoint / "config.json")
    assert values["settings"] == {
        "batch": 1,
        "context": 24,
        "precision": "float32",
        "checkpointing": "none",
        "processes": 1,
        "strategy": "ddp",
        "accumulate": 1,
    }
    assert expected(model.config, batch=1, context=24).items() <= values.items()
    chosen = planned(checkpoint, "--batch", 3, "--context", 7, "--dtype", "bf16", "--checkpointing", "learner")
    want = expected(model.config, batch=3, context=7, precision="bf16", checkpointing="learner")
    assert want.items() <= chosen.items()
    shared = planned(checkpoint, "--processes", 2, "--strategy", "fsdp2")
    assert expected(model.config, batch=1, context=24, processes=2, strategy="fsdp2").items() <= shared.items()


def test_a_published_folder(reference: Path, tmp_path: Path) -> None:
    plga("convert", reference / "critical.pth", tmp_path / "published", "--to", "released")
    values = planned(tmp_path / "published")
    assert sum(values["numbers"].values()) == 1_232_916


def test_training_settings_are_the_defaults(settings: Path) -> None:
    config = PldrConfig(vocab_size=300, hidden_size=8, num_attention_heads=2, max_position_embeddings=24)
    how = {"precision": "bf16", "checkpointing": "layers", "strategy": "fsdp2", "accumulate": 3}
    assert expected(config, batch=4, context=24, **how).items() <= planned(settings).items()
    two = planned(settings, "--processes", 2)
    assert expected(config, batch=2, context=24, processes=2, **how).items() <= two.items()
    options = ("--batch", 5, "--dtype", "float32", "--checkpointing", "none", "--strategy", "ddp")
    assert expected(config, batch=5, context=24, accumulate=3).items() <= planned(settings, *options).items()


def test_a_ready_configuration_and_what_is_not_planned() -> None:
    values = planned("DAG-110M")
    assert (values["settings"]["batch"], values["settings"]["context"]) == (32, 1024)
    assert [line.split(":")[0] for line in values["not planned"]] == ["objective.dag"]
    assert planned("SDPA-110M")["not planned"] == []


def test_the_tables(checkpoint: Path, model: PldrForCausalLM) -> None:
    ending = plga("plan", checkpoint, "--batch", 3)
    assert (ending.code, ending.err) == (0, "")
    want = plan(model.config, 3, 24)
    table = rows(ending.out)
    assert table["feed-forward"][:2] == [f"{want.numbers['feed-forward']:,}", "53 kB"]  # 2·3·24·(4·21 + 8)·4 B
    assert table["AdamW state"] == [f"{want.optimizer / 1000:.0f} kB"] * 2
    assert table["gradients"][0] == f"{want.gradients / 1000:.0f} kB"
    assert "exchanged with other processes" not in table
    assert f"peak: {want.peak.moment}" in ending.out
    assert "G_LM is [H, d, d] a layer and sequence, not [S, S]: 2 x 4 x 4 x 4 B = 128 B" in ending.out
    assert "seconds are not planned" in " ".join(ending.out.split())
    two = rows(plga("plan", checkpoint, "--processes", 2).out)
    assert two["exchanged with other processes"][-1] == f"{want.gradients / 1000:.0f} kB"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", 0), "batch is 0, expected >= 1"),
        (("--batch", -3), "batch is -3, expected >= 1"),
        (("--context", 0), "context is 0, expected >= 1"),
        (("--context", 25), "context is 25, expected <= 24, the model's positions"),
        (("--dtype", "float16"), "--dtype is 'float16', expected one of float32, bf16"),
        (("--processes", 0), "processes is 0, expected >= 1"),
        (("--strategy", "zero"), "strategy is 'zero', expected one of ddp, fsdp2"),
        (("--checkpointing", "all"), "checkpointing is 'all', expected one of none, learner, layers"),
    ],
)
def test_impossible_options(checkpoint: Path, options: tuple[object, ...], message: str) -> None:
    ending = plga("plan", checkpoint, *options)
    assert message in ending.error()
    assert ending.out == ""


def test_what_is_no_configuration(tmp_path: Path, settings: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "empty").mkdir()
    for source, message in (
        ("120M", "120M: no such file, and no ready configuration (110M, DAG-110M, SDPA-110M, tiny)"),
        (tmp_path / "missing.json", "missing.json: no such file"),
        (tmp_path / "empty", "config.json: no such file"),
        (tmp_path, "model_type is 'llama'"),
    ):
        assert message in plga("plan", source).error()
    error = plga("plan", settings, "--processes", 3).error()
    assert "optimizer.batch is 12, expected a multiple of 3 processes x optimizer.accumulate = 3" in error


def test_an_adopted_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "adopted.yaml"
    file.write_text("model: {adopted: there}\n")
    ending = plga("plan", file)
    assert ending.code != 0
    assert ending.err == f"plga: error: {file}: model.adopted is 'there', but only PLDR-LLMs can be planned\n"
