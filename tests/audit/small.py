"""The demo in a few seconds: a text of our own, a tiny model, a few steps."""

from collections.abc import Iterator

from plga.audit import demo
from plga.training.data import standard_library
from plga.training.recipe import Recipe

_SETTINGS = demo.Settings
# In the place of the constants of plga.audit.demo, whose sizes are those of minutes.
SIZES = {
    "_EVALUATE_EVERY": 3,
    "_SAVE_EVERY": 6,
    "_WINDOWS": 3,
    "_PROMPT_COUNT": 2,
    "_PROMPT_LENGTH": 6,
    "_NEW_TOKENS": 5,
}


def texts() -> Iterator[str]:
    """In the place of the standard library."""
    for i in range(60):
        yield f"def function_{i}(x, y={i}):\n" + "".join(f"    x += {j * i} * y\n" for j in range(8)) + "    return x\n"


def install() -> None:
    """Make every demo of this process, and the standard library, a small one."""
    for name, value in SIZES.items():
        setattr(demo, name, value)
    demo.standard_library = standard_library.standard_library = texts
    demo.Settings = settings  # type: ignore[misc]


def settings(seed: int = 0, **changes: object) -> demo.Settings:
    """Two layers, two heads of width 4; sixteen steps, which is no multiple of the steps between two looks."""
    recipe = Recipe(**{"learning_rate": 1e-2, "warmup": 4, "steps": 20, "stop": 16, "batch": 4, **changes})
    return _SETTINGS(
        seed=seed,
        recipe=recipe,
        vocab_size=300,
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=2,
        metric_intermediate_size=5,
        num_metric_units=2,
        context=16,
    )
