"""Training windows without end, which a run can leave at any window and go on from with the same bits."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from plga.training.data.documents import Place, Split, documents
from plga.training.data.encoding import Encoder, Ids
from plga.training.data.packing import Piece, Window, pieces, windows
from plga.training.data.rows import BadRows, RowSource
from plga.training.data.windows import Windows

logger = logging.getLogger(__name__)
IGNORED = -100  # the label of padding
_REMEMBERED = 1024  # windows, at least, that a loader may be ahead of training


@dataclass(frozen=True)
class Process:
    """One of the processes that share the corpus."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"process is {self.index} of {self.count}, expected 0 <= index < count")


class TrainingStream(IterableDataset[dict[str, Tensor]], ABC):
    """Endless windows of one process: ``input_ids`` and ``labels`` (the next tokens), int64 [S] each.

    It keeps its place in the process that iterates over it, so a DataLoader must have ``num_workers=0``.

    Args:
        data: digests of all that the windows depend on, by name.
        process: whose windows these are.

    Attributes:
        consumed: windows that were handed out before the first one of an iteration.
    """

    def __init__(self, data: dict[str, str], process: Process) -> None:
        self.data, self.process, self.consumed = data, process, 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if (worker := get_worker_info()) is not None:
            raise ValueError(f"num_workers is {worker.num_workers}, expected 0: the data's place is kept here")
        return self._windows()

    @abstractmethod
    def _windows(self) -> Iterator[dict[str, Tensor]]:
        """The windows after the first ``consumed`` ones."""

    def state(self, consumed: int) -> dict[str, Any]:
        """What JSON can hold and ``load_state`` takes, so as to go on after ``consumed`` windows since the run began.

        Raises:
            ValueError: windows so far from the last one handed out that their place is forgotten.
        """
        return {
            "data": self.data,
            "process_index": self.process.index,
            "process_count": self.process.count,
            "consumed": consumed,
            **self._place(consumed),
        }

    @abstractmethod
    def _place(self, consumed: int) -> dict[str, Any]:
        """What ``state`` has of the place."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Let iterations begin where a run was when it took ``state``, without a replay.

        The state may be that of any process if there were more or fewer of them then.

        Raises:
            ValueError: a state of other data, of other settings, or of another of as many processes.
        """
        changed = [name for name, value in self.data.items() if state["data"].get(name) != value]
        if changed:
            raise ValueError(
                f"the data have changed since the checkpoint: another {', '.join(changed)}; go on with the data it was "
                "made with, or begin a new run"
            )
        then = Process(state["process_index"], state["process_count"])
        if then.count == self.process.count and then.index != self.process.index:
            raise ValueError(f"a data state of process {then.index}, expected that of process {self.process.index}")
        self._load(state, then)

    @abstractmethod
    def _load(self, state: dict[str, Any], then: Process) -> None:
        """Take over a state that fits."""


class _Cursor(NamedTuple):
    """Where the next window begins: at which token of which document, or (None) with the document after it."""

    place: Place
    token: int | None = 0


class DocumentStream(TrainingStream):
    """The training documents of one process in their order, epoch after epoch, packed or padded.

    Args:
        source, encode, split: the rows, their tokenizer, and whose they are.
        context: S.
        end, pad: ids of the end-of-sequence token and of padding; ``pad`` None: packed.
        bad: counts the bad rows, of all iterations.
        remembered: how many windows back a state may be asked for.
        data, process: as above.
    """

    def __init__(
        self,
        source: RowSource,
        encode: Encoder,
        split: Split,
        context: int,
        end: int,
        pad: int | None,
        bad: BadRows,
        remembered: int,
        data: dict[str, str],
    ) -> None:
        super().__init__(data, Process(split.process_index, split.process_count))
        self.source, self.encode, self.split, self.context = source, encode, split, context
        self.end, self.pad, self.bad, self.remembered = end, pad, bad, max(_REMEMBERED, remembered)
        self._begin(_Cursor(Place(0, 0, None, {})))

    def _begin(self, cursor: _Cursor) -> None:
        self._start = cursor
        self._cursors = {self.consumed: cursor}
        self.bad.counts = cursor.place.bad

    def _windows(self) -> Iterator[dict[str, Tensor]]:
        self._begin(self._start)
        found = windows(self._pieces(), self.context, self.pad is not None, self._start.token or 0)
        for consumed, window in enumerate(found, self.consumed + 1):
            self._cursors[consumed] = _Cursor(window.place, window.token)
            self._cursors.pop(consumed - self.remembered, None)
            yield example(window, self.context, self.pad)

    def _pieces(self) -> Iterator[Piece]:
        place, token = self._start
        after = place.document if token is None else -1
        while True:
            empty = place.position is None
            for piece in self._epoch(place, after):
                empty = False
                yield piece
            if empty:
                skipped = f" and bad rows: {self.bad}" if self.bad.counts else ""
                raise ValueError(
                    f"no training document for process {self.process.index} of {self.process.count}{skipped}; "
                    "expected a larger corpus"
                )
            place, after = Place(place.epoch + 1, 0, None, self.bad.counts), -1

    def _epoch(self, start: Place, after: int) -> Iterator[Piece]:
        """The rest of an epoch, without the documents up to ``after``."""
        ours = documents(self.source, lambda index: index > after and self.split.trains(index), start, self.bad)
        return pieces(ours, self.encode, self.end)

    def _place(self, consumed: int) -> dict[str, Any]:
        cursor = self._cursors.get(consumed)
        if cursor is None:
            raise ValueError(
                f"the place in the data after {consumed} windows is not remembered, but those of the last "
                f"{self.remembered} windows until {max(self._cursors)} are"
            )
        epoch, document, position, bad = cursor.place
        return {"epoch": epoch, "document": document, "position": position, "token": cursor.token, "bad_rows": bad}

    def _load(self, state: dict[str, Any], then: Process) -> None:
        place, token = Place(state["epoch"], state["document"], state["position"], state["bad_rows"]), state["token"]
        if then.count != self.process.count:
            logger.warning(
                "the data were dealt to %d processes and are now dealt to %d: going on after document %d of epoch %d, "
                "without the rest of its window",
                then.count,
                self.process.count,
                place.document,
                place.epoch,
            )
            token = 0 if place.position is None else None
        self.consumed = state["consumed"]
        self._begin(_Cursor(place, token))


def example(window: Window, context: int, pad: int | None) -> dict[str, Tensor]:
    """A window as a model takes it, filled up with ``pad`` to ``context`` tokens."""
    inputs, labels = window.ids[:-1], window.ids[1:]
    if pad is None:
        return {"input_ids": _int64(inputs), "labels": _int64(labels)}
    missing = (0, context - len(inputs))
    return {
        "input_ids": _int64(np.pad(inputs, missing, constant_values=pad)),
        "attention_mask": _int64(np.pad(np.ones_like(inputs), missing)),
        "labels": _int64(np.pad(labels, missing, constant_values=IGNORED)),
    }


def _int64(ids: Ids) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))


class RandomStream(TrainingStream):
    """Windows of a corpus in memory, drawn for each step by its number.

    The windows of a step, all processes together, depend on seed, step and their number alone, so two processes with
    half the batch see in each step what one process sees.

    Args:
        windows: the corpus.
        seed: of the draw.
        batch: windows a step of one process.
        data, process: as above.
    """

    def __init__(self, windows: Windows, seed: int, batch: int, data: dict[str, str], process: Process) -> None:
        super().__init__(data, process)
        self.windows, self.seed, self.batch = windows, seed, batch

    def _windows(self) -> Iterator[dict[str, Tensor]]:
        step, row = divmod(self.consumed, self.batch)
        begin = self.process.index * self.batch
        while True:
            drawn = self.windows.batch(self.seed, step, self.batch * self.process.count)
            for tokens in drawn[begin + row : begin + self.batch]:
                yield {"input_ids": tokens[:-1], "labels": tokens[1:]}
            step, row = step + 1, 0

    def _place(self, consumed: int) -> dict[str, Any]:
        return {"batch": self.batch}

    def _load(self, state: dict[str, Any], then: Process) -> None:
        if (then.count, state["batch"]) == (self.process.count, self.batch):
            self.consumed = state["consumed"]
        else:
            self.consumed = state["consumed"] // state["batch"] * self.batch  # the same step
