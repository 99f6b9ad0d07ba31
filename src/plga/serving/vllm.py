"""The plugin by which vLLM knows PLDR-LLMs (entry point ``vllm.general_plugins``).

vLLM calls :func:`register` in every process it starts. After it, ``vllm serve DIR`` and ``vllm.LLM(DIR)`` run a
collapsed checkpoint, ours or published, with no remote code.
"""

from pathlib import Path
from typing import Any

from plga.model.files import read_json
from plga.model.guard_settings import guarded
from plga.model.seal import check_seal
from plga.serving.refusal import require_collapsed

ARCHITECTURES = ("PldrForCausalLM", "PldrllmForCausalLM")
# By name: vLLM imports it in a process of its own to look at it.
_MODEL = "plga.serving.vllm_model:ServedPldrForCausalLM"


class _OnlyCollapsed:
    """What vLLM asks about a model as soon as it has read the configuration."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Refuse a learned operator, and what differs from its seal, before any weight is read."""
        require_collapsed(model_config.hf_config, model_config.model)
        check_seal(model_config.model)
        _warn_of_guard(Path(model_config.model))

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Nothing depends on the rest of vLLM's settings."""


def _warn_of_guard(checkpoint: Path) -> None:
    """Say in the log that a guard is set and not run: whoever set it counts on it."""
    from vllm.logger import init_logger

    file = checkpoint / "generation_config.json"
    if file.is_file() and guarded(read_json(file, "it is there").get("guard")):
        init_logger("vllm.plga").warning(
            "%s: guard is set, but vLLM does not run it: nothing watches the constant here; plga generate does", file
        )


def register() -> None:
    """Make vLLM know the architectures of PLDR-LLMs; calling it again changes nothing."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import plga  # noqa: F401  (Transformers' Auto classes)

    for architecture in ARCHITECTURES:
        ModelRegistry.register_model(architecture, _MODEL)
        MODELS_CONFIG_MAP[architecture] = _OnlyCollapsed
