"""The plugin by which vLLM knows PLDR-LLMs (entry point ``vllm.general_plugins``).

vLLM calls :func:`register` in every process it starts. After it, ``vllm serve DIR`` and ``vllm.LLM(DIR)`` run a
collapsed checkpoint, ours or published, with no remote code.
"""

from typing import Any

from plga.serving.refusal import require_collapsed

ARCHITECTURES = ("PldrForCausalLM", "PldrllmForCausalLM")
# By name: vLLM imports it in a process of its own to look at it.
_MODEL = "plga.serving.vllm_model:ServedPldrForCausalLM"


class _OnlyCollapsed:
    """What vLLM asks about a model as soon as it has read the configuration."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Refuse a learned operator before any weight is read."""
        require_collapsed(model_config.hf_config, model_config.model)

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Nothing depends on the rest of vLLM's settings."""


def register() -> None:
    """Make vLLM know the architectures of PLDR-LLMs; calling it again changes nothing."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import plga  # noqa: F401  (Transformers' Auto classes)

    for architecture in ARCHITECTURES:
        ModelRegistry.register_model(architecture, _MODEL)
        MODELS_CONFIG_MAP[architecture] = _OnlyCollapsed
