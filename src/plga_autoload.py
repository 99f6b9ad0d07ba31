"""Makes lm-evaluation-harness know the model ``plga``, in any process that imports torch.

lm-evaluation-harness 0.4.13 looks for no models outside itself. PyTorch calls what distributions declare as
``torch.backends``; the command ``lm_eval`` imports it before it looks up its model, and so finds this one there.

This is no part of the package plga: importing that makes Transformers know PLDR-LLMs, which is more than a process that
only imports torch has asked for.
"""

import logging
from importlib.util import find_spec

MODEL = "plga.scoring.harness:PlgaLM"  # imported when an evaluation asks for it


def register_with_harness() -> None:
    """Register the model as soon as lm-evaluation-harness has registered its own, or now if it has.

    Not before: it looks for its own only while none is registered. Where it is not installed nothing happens. Nothing
    is raised, as ``import torch`` would fail with it.
    """
    try:
        if find_spec("lm_eval") is not None:
            from wrapt import register_post_import_hook

            register_post_import_hook(_register, "lm_eval.models")
    except Exception as error:
        _say(error)


def _register(models: object) -> None:
    try:
        from lm_eval.api.registry import model_registry

        if "plga" not in model_registry:
            model_registry.register("plga", target=MODEL)
    except Exception as error:  # a release with another registry; what else it can do goes on
        _say(error)


def _say(error: Exception) -> None:
    logging.getLogger(__name__).warning("lm-evaluation-harness does not know the model plga: %s", error)
