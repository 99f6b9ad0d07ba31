"""One training run from its settings: made anew, or gone on with where its newest checkpoint stands."""

import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from accelerate import PartialState
from transformers import TrainerCallback

from plga.training import checkpoints
from plga.training.adopted import AdoptedSubject
from plga.training.config import AdoptedTrainSettings, RunSettings, TrainSettings
from plga.training.data.dataset import Data, open_data
from plga.training.subject import PldrSubject, Subject, learned_operators
from plga.training.trainer import Trainer, require_equal_parts

# What may differ between a run and its continuation: the same model is trained on the same data to the same end.
_FREE = {"logging", "guards", "distributed"}
_FREE_OF_OPTIMIZER = {"stop", "accumulate", "precision", "checkpointing", "compile"}

# What torch says where it has no exception of its own.
_NO_ROOM = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")


class Stopped(KeyboardInterrupt):
    """The run was asked to stop, and has saved where it stood: an interruption with a message."""


class Trained(NamedTuple):
    """A finished run.

    Attributes:
        output: its folder; ``final`` in it is the trained model, ``steadiest`` another where the settings ask for it.
        history: the log lines, looks and events of the whole run, each with its ``step``.
        data: what it was trained on.
    """

    output: Path
    history: list[dict[str, Any]]
    data: Data


def train(settings: RunSettings, callbacks: Sequence[TrainerCallback] = ()) -> Trained:
    """Train, or go on: the bits at the end are those of a run that was never stopped.

    Called by every process of a distributed run alike. SIGTERM and SIGINT end the run after the running step, with
    a checkpoint.

    Args:
        settings: of the run; its folder must be new, empty or of a run with these settings.
        callbacks: of Transformers' Trainer, for progress.

    Raises:
        ValueError: settings that do not fit the data or the folder.
        MemoryError: no room for the model or a step.
        FloatingPointError: a non-finite number, with layer, heads, step and the last good checkpoint.
        Stopped: SIGTERM or SIGINT came; the message names the checkpoint.
        OSError: data that cannot be read, a full disk.
    """
    processes = PartialState(cpu=not torch.cuda.is_available())
    require_equal_parts(settings, processes.num_processes)
    output = settings.logging.output
    with checkpoints.locked(output) if processes.is_main_process else nullcontext(), _memory_errors():
        processes.wait_for_everyone()
        start = checkpoints.newest(output)
        if start is not None:
            _check_same_run(settings, checkpoints.read_run(start), start)
        subject = _subject(settings)
        data = open_data(
            settings.data,
            vocab_size=subject.vocab_size,
            context=settings.context,
            seed=settings.optimizer.seed,
            batch=settings.optimizer.batch // processes.num_processes,
            process_index=processes.process_index,
            process_count=processes.num_processes,
        )
        if start is not None and (was := checkpoints.read_run(start)["data"]) != data.identity:
            raise ValueError(
                f"{start}: trained on other data ({was}, now {data.identity}); choose another logging.output"
            )
        step = 0 if start is None else checkpoints.step_of(start)
        if step > settings.optimizer.last:
            raise ValueError(f"{start}: past optimizer.stop = {settings.optimizer.last}; choose another logging.output")
        if start is not None and step == settings.optimizer.last:
            return _finished(subject, output, start, data, processes)
        torch.manual_seed(settings.optimizer.seed)
        model = subject.build(data.tokenizer)
        if settings.optimizer.checkpointing == "learner":
            for operator in learned_operators(model):
                operator.checkpoint_learner = True
        stop = _StopOnSignal()
        trainer = Trainer(subject, data, settings, [stop, *callbacks])
        with stop.listening():
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
        if stop.signal is not None and trainer.state.global_step < settings.optimizer.last:
            raise Stopped(
                f"stopped by {signal.Signals(stop.signal).name} at step {trainer.state.global_step}; "
                f"{trainer.last_checkpoint} is where the same command goes on"
            )
        assert trainer.last_checkpoint is not None  # there is one after the last step
        return _finished(subject, output, trainer.last_checkpoint, data, processes)


def _subject(settings: RunSettings) -> Subject:
    if isinstance(settings, AdoptedTrainSettings):
        return AdoptedSubject(settings)
    assert isinstance(settings, TrainSettings)
    return PldrSubject(settings)


def _finished(subject: Subject, output: Path, last: Path, data: Data, processes: PartialState) -> Trained:
    """Put the model of the last checkpoint into ``final``, and give what the run left."""
    if processes.is_main_process:
        subject.finish(last, output, data.tokenizer)
    processes.wait_for_everyone()
    return Trained(output, checkpoints.history(last), data)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn what torch makes of an allocation that failed into the MemoryError that it is."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if not isinstance(error, torch.OutOfMemoryError) and not any(words in message for words in _NO_ROOM):
            raise
        reason = re.sub(r"^\[.*?\]\s*", "", message.splitlines()[0])
        raise MemoryError(f"out of memory: {reason}; `plga plan` tells what a run needs") from error


class _StopOnSignal(TrainerCallback):
    """Ends the run after the step in which SIGTERM or SIGINT comes to any of its processes."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread only
            return
        before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)  # who asks twice does not want to wait

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The processes must agree, or one of them would wait for the others for ever.
        signals = torch.tensor(self.signal or 0, device=args.device)
        if dist.is_initialized():
            dist.all_reduce(signals, op=dist.ReduceOp.MAX)
        if int(signals):
            self.signal = int(signals)
            control.should_save = control.should_training_stop = True


def _check_same_run(settings: RunSettings, run: dict[str, Any], checkpoint: Path) -> None:
    now, then = settings.model_dump(mode="json"), run["settings"]
    differing = [
        f"{section}.{key} was {then[section].get(key)!r} and is {value!r}"
        for section, values in now.items()
        if section not in _FREE
        for key, value in values.items()
        if then[section].get(key) != value and not (section == "optimizer" and key in _FREE_OF_OPTIMIZER)
    ]
    if settings.logging.steadiest and not then["logging"]["steadiest"]:
        differing.append("logging.steadiest was False and is True")  # the looks that are over have kept no model
    if differing:
        raise ValueError(f"{checkpoint}: of another run: {'; '.join(differing)}; choose another logging.output")
