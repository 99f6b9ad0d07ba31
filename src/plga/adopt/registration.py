"""Makes Transformers' Auto classes know adopted models, without importing Transformers before its user does."""

from typing import Any

from wrapt import register_post_import_hook


def _register_config(auto: Any) -> None:
    from plga.adopt.configuration import AdoptedConfig

    auto.CONFIG_MAPPING.register(AdoptedConfig.model_type, AdoptedConfig, exist_ok=True)


def register_when_imported() -> None:
    """Register the configuration as soon as Transformers' Auto classes are imported, or now if they are already."""
    register_post_import_hook(_register_config, "transformers.models.auto.configuration_auto")
