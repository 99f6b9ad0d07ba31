"""PLDR-LLM as a Transformers model: configuration, operators, modeling, cache, published checkpoint formats."""
