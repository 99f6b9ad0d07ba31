"""plga: Power Law Graph Attention and PLDR-LLM (arXiv:2608.10288).

Importing the package is cheap: nothing below is loaded before it is used. Transformers' Auto classes learn about
PLDR-LLMs and adopted models when Transformers itself is imported, and lm-evaluation-harness about the model ``plga``
likewise. ``plga.adopt`` is a package that can be called.
"""

import importlib
from typing import TYPE_CHECKING, Any

from plga.adopt import registration as adopted
from plga.model import registration
from plga_autoload import register_with_harness

if TYPE_CHECKING:
    from plga.model.cache import PldrCache
    from plga.model.configuration import PldrConfig
    from plga.model.modeling import (
        PldrForCausalLM,
        PldrForQuestionAnswering,
        PldrForSequenceClassification,
        PldrForTokenClassification,
        PldrModel,
    )
    from plga.model.operator import DeductiveOutputs

__version__ = "0.1.0"

_HOMES = {
    "PldrCache": "plga.model.cache",
    "PldrConfig": "plga.model.configuration",
    "PldrForCausalLM": "plga.model.modeling",
    "PldrForQuestionAnswering": "plga.model.modeling",
    "PldrForSequenceClassification": "plga.model.modeling",
    "PldrForTokenClassification": "plga.model.modeling",
    "PldrModel": "plga.model.modeling",
    "DeductiveOutputs": "plga.model.operator",
}
__all__ = [
    "DeductiveOutputs",
    "PldrCache",
    "PldrConfig",
    "PldrForCausalLM",
    "PldrForQuestionAnswering",
    "PldrForSequenceClassification",
    "PldrForTokenClassification",
    "PldrModel",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'plga' has no attribute {name!r}")


registration.register_when_imported()
adopted.register_when_imported()
register_with_harness()
