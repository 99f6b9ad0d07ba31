"""An SDPA model of Transformers continued as a PLGA model from the exact point G = I (arXiv:2608.10288).

``plga.adopt(model)`` is :func:`plga.adopt.adoption.adopt`; what else is public here is loaded when it is first used.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plga.adopt.absorption import absorb
    from plga.adopt.adoption import adopt, train_operators_only
    from plga.adopt.files import load_operators, save_operators

_HOMES = {
    "absorb": "plga.adopt.absorption",
    "adopt": "plga.adopt.adoption",
    "load_operators": "plga.adopt.files",
    "save_operators": "plga.adopt.files",
    "train_operators_only": "plga.adopt.adoption",
}
__all__ = ["absorb", "adopt", "load_operators", "save_operators", "train_operators_only"]


class _Adopt(ModuleType):
    """This package, which can be called: a name that is a package and a function at once has to be both."""

    def __getattr__(self, name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.adopt(*args, **kwargs)


sys.modules[__name__].__class__ = _Adopt
