"""What every test shares: determinism, threads, and the folder of reference data."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

# Derandomized: the same examples on every machine and every run. No deadline: a shared machine may be slow.
settings.register_profile(
    "plga", derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("plga")

torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def reference() -> Path:
    """The reference data beside the repository; skips where it is absent, except under CI, where that is a failure."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "reference"
    if not folder.is_dir():
        reason = "no reference data: ../shared/reference (from the repository root) is absent"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
