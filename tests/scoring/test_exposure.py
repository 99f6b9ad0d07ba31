"""Target exposure: token by token, by text, by position, and in a picture."""

import math
from pathlib import Path

import pytest
import torch

from plga.scoring.exposure import Bin, Exposure, Text, expose, growth, record, summary
from plga.scoring.plots import exposure_plot
from plga.scoring.windows import windows
from tests.scoring.checkpoints import CONTEXT, by_definition, constant, item, learned


def text(length: int, seed: int = 0) -> Text:
    return Text(f"text {seed}", item(length, 1, shared=seed).context, 3 * (length - 1))


BY_HAND = Exposure(
    "by hand",
    4,
    torch.tensor([1, 2, 3, 6]),
    torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64),
    torch.tensor([-1.0, -2.5, -2.0, -4.25], dtype=torch.float64),
)


def test_by_hand() -> None:
    assert BY_HAND.gap.tolist() == [0.0, 0.5, -1.0, 0.25]
    assert growth([BY_HAND]) == [
        Bin(1, 1, 1, 0.0, 0.0, 0.0),
        Bin(2, 3, 2, -0.25, 0.75, 1.0),
        Bin(4, 7, 1, 0.25, 0.25, 0.25),
    ]
    found = summary([BY_HAND, BY_HAND])
    assert (found["tokens"], found["bytes"]) == (8, 8)
    assert found["block"] == {"nats_per_token": 2.5, "bits_per_byte": pytest.approx(2.5 / math.log(2))}
    assert found["sequential"] == {"nats_per_token": 2.4375, "bits_per_byte": pytest.approx(2.4375 / math.log(2))}
    assert found["gap"] == {"mean": -0.0625, "mean_magnitude": 0.4375, "largest_magnitude": 1.0}


def test_bits_need_bytes() -> None:
    assert (
        summary([Exposure("a", 0, BY_HAND.position, BY_HAND.block, BY_HAND.sequential)])["block"]["bits_per_byte"]
        is None
    )


@pytest.mark.parametrize("make", [learned, constant])
def test_texts_shorter_and_longer_than_the_context(make: object) -> None:
    model = make()  # type: ignore[operator]
    texts = [text(7), text(53, seed=1)]
    for exposure, given in zip(expose(model, texts, stride=6, batch=5), texts, strict=True):
        pieces = windows(given.ids, CONTEXT, 6, given.name)
        for scores, sequential in ((exposure.block, False), (exposure.sequential, True)):
            wanted = torch.cat([by_definition(model, piece, sequential)[0] for piece in pieces])
            torch.testing.assert_close(scores, wanted, rtol=0, atol=1e-9)
        assert len(exposure.position) == len(given.ids) - 1
        assert int(exposure.position.max()) <= CONTEXT
        assert exposure.bytes == given.bytes
    assert exposure.position.tolist()[: CONTEXT + 2] == [*range(1, CONTEXT + 1), 15, 16]


def test_a_constant_operator_exposes_nothing() -> None:
    assert float(expose(constant(), [text(15)])[0].gap.abs().max()) == 0.0
    assert float(expose(learned(), [text(15)])[0].gap.abs().max()) > 1e-4


def test_the_record_holds_every_token() -> None:
    exposures = expose(learned(), [text(9), text(40, seed=1)])
    found = record(exposures)
    assert [each["name"] for each in found["texts"]] == ["text 0", "text 1"]
    assert found["texts"][1]["tokenwise"]["block"] == exposures[1].block.tolist()
    assert found["texts"][1]["tokenwise"]["tokens_before"] == exposures[1].position.tolist()
    assert found["all"]["tokens"] == sum(bin["tokens"] for bin in found["growth"]) == 8 + 39
    total = sum(float(exposure.gap.sum()) for exposure in exposures)
    assert found["all"]["gap"]["mean"] == pytest.approx(total / 47, rel=1e-9)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    for name, model in (("learned", learned()), ("constant", constant())):
        exposure_plot(expose(model, [text(9)]), tmp_path / f"{name}.tmp")
        assert (tmp_path / f"{name}.tmp").read_bytes().startswith(b"\x89PNG")
