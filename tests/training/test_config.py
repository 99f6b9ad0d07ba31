"""The configuration of a run: published defaults, ready files, and what does not go together."""

from pathlib import Path

import pytest

from plga.model.configuration import PldrConfig
from plga.training import config

READY = ["110M", "DAG-110M", "SDPA-110M", "tiny"]


def test_the_defaults_are_the_published_recipe() -> None:
    settings = config.TrainSettings()
    model = settings.model.config()
    for name in config.ModelSettings.model_fields:
        assert getattr(model, name) == getattr(PldrConfig(), name), name
    recipe = settings.optimizer
    assert (recipe.betas, recipe.eps, recipe.weight_decay) == ((0.9, 0.95), 1e-5, 0.1)
    assert (recipe.clip, recipe.clip_at) == ("value", 1.0)
    assert not any(vars(settings.objective.dag)[name] for name in ("metric", "potential", "curvature"))
    assert settings.objective.alignment.coefficient == 0
    assert settings.data.packing == "packed"
    assert settings.logging.report_to == ["tensorboard"]


def test_ready_configurations_load() -> None:
    assert config.ready() == READY
    ready = {name: config.load(name) for name in READY}
    assert len({settings.logging.output for settings in ready.values()}) == len(READY)
    published = config.TrainSettings()
    for name in READY[:3]:
        assert ready[name].optimizer == published.optimizer
        assert (ready[name].data.path, ready[name].data.column) == ("tiiuae/falcon-refinedweb", "content")
    assert ready["110M"].model == ready["DAG-110M"].model == published.model
    assert (ready["SDPA-110M"].model.operator, ready["SDPA-110M"].model.constant) == ("constant", "identity")
    dag = ready["DAG-110M"].objective.dag
    assert (dag.metric, dag.potential, dag.curvature) == (0.05, 0.05, 0.05)


def test_a_file_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("optimizer: {steps: 50, warmup: 0.1}\n")
    settings = config.load(file, ["optimizer.batch=4", "model.hidden_size=28"])
    assert (settings.optimizer.steps, settings.optimizer.warmup_steps, settings.optimizer.batch) == (50, 5, 4)
    assert settings.model.hidden_size == 28


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.hidden_size=102"], "hidden_size is 102, expected a multiple of num_attention_heads = 4"),
        (["model.hidden=100"], "model.hidden is not a setting, expected one of vocab_size, hidden_size"),
        (["model.operator=sdpa"], "operator is 'sdpa', expected one of learned, constant"),
        (["model.operator=constant", "logging.steadiest=false"], "constant is 'external', expected identity or random"),
        (["optimizer.warmup=300"], "warmup is 300, expected fewer than steps = 300"),
        (["optimizer.warmup=1.5"], "warmup is 1.5, expected whole steps"),
        (["optimizer.stop=301"], "stop is 301, expected <= steps = 300"),
        (["optimizer.clip=none"], "optimizer.clip is 'none', expected 'value' or 'norm'"),
        (["optimizer.precision=fp8"], "optimizer.precision is 'fp8', expected 'float32' or 'bf16'"),
        (
            ["objective.dag.schedule=step"],
            "objective.dag.schedule is 'step', expected 'constant', 'linear' or 'cosine'",
        ),
        (["objective.dag.metric=-1"], "objective.dag.metric is -1, expected greater than or equal to 0"),
        (["objective.alignment.coefficient=1", "model.gram=chunked"], "objective.alignment.coefficient needs one"),
        (
            ["objective.alignment.coefficient=1", "objective.alignment.blocks=1025"],
            "objective.alignment.blocks is 1025, expected at most the 256 tokens",
        ),
        (
            ["model.gram=chunked", "model.gram_chunk=1024"],
            "model.gram_chunk is 1024, expected less than model.max_position_embeddings = 256",
        ),
        (["model.operator=constant", "model.constant=identity"], "logging.steadiest is true, but a constant operator"),
        (["distributed.strategy=zero"], "distributed.strategy is 'zero', expected 'ddp' or 'fsdp2'"),
        (["logging.keep=0"], "logging.keep is 0, expected greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        config.load("tiny", overrides)
    assert message in str(raised.value)
    assert str(raised.value).startswith("tiny: ")
    assert "\n" not in str(raised.value)


def test_what_is_no_configuration_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"huge: no such file, and no ready configuration \(110M, .*tiny\)"):
        config.load("huge")
