"""Makes Transformers' Auto classes know PLDR-LLMs, without importing Transformers before its user does."""

import functools

from wrapt import register_post_import_hook


def _register_configs(auto: object) -> None:
    from plga.model.configuration import PldrConfig

    auto.CONFIG_MAPPING.register(PldrConfig.model_type, PldrConfig, exist_ok=True)  # type: ignore[attr-defined]


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

    from plga.model import modeling
    from plga.model.configuration import PldrConfig

    for auto, model in (
        (AutoModel, modeling.PldrModel),
        (AutoModelForCausalLM, modeling.PldrForCausalLM),
        (AutoModelForSequenceClassification, modeling.PldrForSequenceClassification),
        (AutoModelForTokenClassification, modeling.PldrForTokenClassification),
        (AutoModelForQuestionAnswering, modeling.PldrForQuestionAnswering),
    ):
        auto.register(PldrConfig, model, exist_ok=True)
