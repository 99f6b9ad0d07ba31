"""The picture of a training."""

from pathlib import Path

import pytest
from matplotlib import pyplot

from plga.audit.plots import training_curve

HISTORY = [{"step": 25 * i, "loss": 7.0 - i, "order_parameter": 10.0**-i} for i in range(1, 6)]


@pytest.mark.parametrize("name", ["curve.png", "curve.tmp"])  # a temporary name does not choose the format
def test_the_picture_is_a_png_that_shows_something(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    training_curve(HISTORY, 125, 1e-4, file)
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    height, width, _ = pyplot.imread(file, format="png").shape
    assert (height, width) == (600, 840)
    # The two curves, in their colours.
    pixels = pyplot.imread(file, format="png")[..., :3]
    for colour in ((0.122, 0.467, 0.706), (0.839, 0.153, 0.157)):
        assert (abs(pixels - colour).max(axis=-1) < 0.02).sum() > 200
    assert not pyplot.get_fignums()  # nothing is left open


def test_one_look_is_a_picture_too(tmp_path: Path) -> None:
    training_curve(HISTORY[:1], 25, 1e-4, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_nothing_is_left_open_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file or directory"):
        training_curve(HISTORY, 125, 1e-4, tmp_path / "missing" / "curve.png")
    assert not pyplot.get_fignums()
