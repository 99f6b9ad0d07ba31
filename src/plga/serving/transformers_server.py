"""``transformers serve`` that knows PLDR-LLMs: ``python -m plga.serving.transformers_server serve DIR``."""

import transformers
from transformers.cli.transformers import app

import plga  # noqa: F401  (Transformers' Auto classes)
from plga.model.modeling import PldrForCausalLM
from plga.model.released_models import PldrllmForCausalLM

if __name__ == "__main__":
    # It asks no Auto class, but Transformers itself for the name that stands in the configuration.
    for architecture in (PldrForCausalLM, PldrllmForCausalLM):
        setattr(transformers, architecture.__name__, architecture)
    app()
