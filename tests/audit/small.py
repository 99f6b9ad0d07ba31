"""The demo in a few seconds: a text of our own, a tiny model, a few steps."""

from pathlib import Path

from plga.audit import demo
from plga.training.config import TrainSettings
from plga.training.settings import overridden
from tests.training import runs

# In the place of the constants of plga.audit.demo, whose sizes are those of minutes.
SIZES = {"_PROMPT_COUNT": 2, "_PROMPT_LENGTH": 6, "_NEW_TOKENS": 5}
# Sixteen steps, which is no multiple of the steps between two looks.
OVERRIDES = (
    "model.max_position_embeddings=16",
    "optimizer.learning_rate=1e-2",
    "optimizer.stop=16",
    "logging.probe_every=3",
    "logging.probe_windows=3",
    "logging.save_every=6",
    "logging.steadiest=true",
)


def install() -> None:
    """Make every demo of this process a small one."""
    runs.install()
    for name, value in SIZES.items():
        setattr(demo, name, value)
    demo.settings = settings


def settings(folder: Path, seed: int = 0, **optimizer: float | None) -> TrainSettings:
    """In the place of plga.audit.demo.settings."""
    changes = {"seed": seed, **{name: value for name, value in optimizer.items() if value is not None}}
    overrides = (*OVERRIDES, *(f"optimizer.{name}={value}" for name, value in changes.items()))
    return TrainSettings.checked(overridden(runs.BASE, [*overrides, f"logging.output={folder}"]), "small")
