"""Makes Transformers' Auto classes know PLDR-LLMs, without importing Transformers before its user does."""

import functools
from typing import Any

from wrapt import register_post_import_hook


def _register_configs(auto: Any) -> None:
    from plga.model.configuration import PldrConfig
    from plga.model.released import PldrllmConfig

    for config in (PldrConfig, PldrllmConfig):
        auto.CONFIG_MAPPING.register(config.model_type, config, exist_ok=True)


def register_when_imported() -> None:
    """Register the configurations as soon as Transformers' Auto classes are imported, or now if they are already."""
    register_post_import_hook(_register_configs, "transformers.models.auto.configuration_auto")


@functools.cache
def register_models() -> None:
    """Register the models; the first instance of a configuration calls it."""
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    from plga.model import modeling, released_models
    from plga.model.configuration import PldrConfig
    from plga.model.released import PldrllmConfig

    for auto, model, released in (
        (AutoModel, modeling.PldrModel, released_models.PldrllmModel),
        (AutoModelForCausalLM, modeling.PldrForCausalLM, released_models.PldrllmForCausalLM),
        (
            AutoModelForSequenceClassification,
            modeling.PldrForSequenceClassification,
            released_models.PldrllmForSequenceClassification,
        ),
        (
            AutoModelForTokenClassification,
            modeling.PldrForTokenClassification,
            released_models.PldrllmForTokenClassification,
        ),
        (
            AutoModelForQuestionAnswering,
            modeling.PldrForQuestionAnswering,
            released_models.PldrllmForQuestionAnswering,
        ),
    ):
        auto.register(PldrConfig, model, exist_ok=True)
        auto.register(PldrllmConfig, released, exist_ok=True)
    released_models.register_names()
