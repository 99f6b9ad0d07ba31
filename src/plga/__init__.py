"""plga: Power Law Graph Attention and PLDR-LLM (arXiv:2608.10288)."""

__version__ = "0.1.0"
