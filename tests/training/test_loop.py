"""The training loop: one step by hand, the same bits again, and what stops it."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plga.training.loop import Trainer
from plga.training.objective import next_token_loss
from tests.training import examples


def trainer(state_file: Path | None = None, seed: int = 0, **changes: Any) -> Trainer:
    return Trainer(examples.model(), examples.windows(), examples.recipe(**changes), seed, state_file)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("clip", [1.0, 1e-3])
def test_one_step_by_hand(clip: float) -> None:
    run = trainer(clip=clip)
    before = weights(run)
    gradients = torch.autograd.grad(
        next_token_loss(run.model.train(), run.windows.batch(0, 0, 4)), run.model.parameters()
    )
    run.run(until=1)
    rate, decay, eps = 5e-3 / 4, 0.1, 1e-5  # the first of four warmup steps
    for (name, parameter), gradient in zip(run.model.named_parameters(), gradients, strict=True):
        g = gradient.clamp(-clip, clip)
        # At the first step the bias corrections leave the gradient and its square.
        expected = before[name] * (1 - rate * decay) - rate * g / (g.abs() + eps)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-7, msg=name)


def test_gradients_are_clipped_by_value() -> None:
    run = trainer(clip=1e-3)
    run.run(until=1)
    largest = max(float(p.grad.abs().max()) for p in run.model.parameters() if p.grad is not None)
    assert largest == pytest.approx(1e-3, rel=1e-6)


def test_training_learns() -> None:
    run = trainer(learning_rate=2e-2, steps=60, stop=60)
    run.run(until=60)
    assert sum(run.losses[-5:]) / 5 < sum(run.losses[:5]) / 5 - 0.3


def test_training_repeats_its_bits() -> None:
    first, second, other = trainer(), trainer(), trainer(seed=1)
    for run in (first, second, other):
        run.run(until=100)
    assert first.step == first.recipe.stop == 12  # the recipe's stop, not `until`
    assert first.losses == second.losses
    assert equal(weights(first), weights(second))
    assert not equal(weights(first), weights(other))


def test_on_step_is_called_after_each_step() -> None:
    seen: list[tuple[int, int]] = []
    trainer().run(5, lambda run: seen.append((run.step, len(run.losses))))
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path: Path, dropout: float) -> None:
    def start() -> Trainer:
        model = examples.model(attention_dropout=dropout)
        return Trainer(model, examples.windows(), examples.recipe(), 0, tmp_path / "state.pt")

    whole = start()
    whole.run(12)
    part = start()
    part.run(7)
    part.save(note="kept", numbers=[1.5, 2], tensor=torch.ones(2))
    resumed = start()
    assert (resumed.step, resumed.losses) == (7, whole.losses[:7])
    assert resumed.extra["note"] == "kept"
    resumed.run(12)
    assert resumed.losses == whole.losses
    assert equal(weights(resumed), weights(whole))


def test_a_new_run_has_nothing_extra(tmp_path: Path) -> None:
    assert trainer(tmp_path / "state.pt").extra == {}


def foreign_pickle(file: Path) -> None:
    torch.save({"run": print, "extra": {}}, file)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: os.truncate(file, file.stat().st_size // 2),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_text("not a state"),
        lambda file: torch.save([1, 2], file),
        lambda file: torch.save({"model_state_dict": {}}, file),
        foreign_pickle,
    ],
)
def test_a_state_file_that_is_none_is_refused(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    file = tmp_path / "state.pt"
    trainer(file).save()
    spoil(file)
    content = file.read_bytes()
    with pytest.raises(ValueError, match=r"state\.pt.*remove it"):
        trainer(file)
    assert file.read_bytes() == content  # the user's file is not ours to remove


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    trainer(file).save()
    arguments = {
        "model": examples.model(),
        "windows": examples.windows(),
        "recipe": examples.recipe(),
        "seed": 0,
        "state_file": file,
    }
    Trainer(**arguments)
    for change in (
        {"seed": 1},
        {"recipe": examples.recipe(learning_rate=1e-3)},
        {"windows": examples.windows(seed=1)},
        {"model": examples.model(num_metric_units=3)},
    ):
        with pytest.raises(ValueError, match=r"state\.pt: not the state of a run with these settings and data"):
            Trainer(**{**arguments, **change})


def test_a_non_finite_loss_stops_with_its_step() -> None:
    run = trainer()

    def poison(run: Trainer) -> None:
        if run.step == 3:
            with torch.no_grad():
                run.model.lm_head.bias[5] = torch.nan

    with pytest.raises(FloatingPointError, match=r"^step 3: the loss is nan$"):
        run.run(10, poison)
    assert (run.step, len(run.losses)) == (3, 3)


def test_a_non_finite_operator_stops_with_step_layer_and_head() -> None:
    run = trainer()
    with torch.no_grad():
        run.model.model.layers[1].self_attn.operator.coupling_bias[1, 0, 0] = torch.inf
    with pytest.raises(FloatingPointError, match=r"^step 0: G_LM of layer 1 is not finite in heads \[1\]$"):
        run.run(1)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the kernel refuse to write more, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [1, 1000, 20_000])
def test_a_failed_save_leaves_the_state_before(tmp_path: Path, size: int) -> None:
    file = tmp_path / "state.pt"
    run = trainer(file)
    run.run(2)
    run.save()
    content = file.read_bytes()
    assert len(content) > 20_000
    run.run(4)
    with files_of_at_most(size), pytest.raises(OSError, match="File too large"):
        run.save()
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]
    assert trainer(file).step == 2


def test_a_full_disk_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(state: object, file: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left on device"):
        trainer(tmp_path / "state.pt").save()
    assert list(tmp_path.iterdir()) == []


def test_save_makes_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "state.pt"
    trainer(file).save()
    assert trainer(file).step == 0
