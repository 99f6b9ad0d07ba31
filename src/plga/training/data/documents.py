"""Documents of a corpus: split into training and validation, and dealt to processes."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from plga.training.data.rows import BadRowError, BadRows, Position, RowSource


class Place(NamedTuple):
    """Where a document begins.

    Attributes:
        epoch: passes over the corpus before this one.
        document: index of the document's row among all of the corpus.
        position: of the row, for the source; None: the beginning of the corpus.
        bad: counts of bad rows before it.
    """

    epoch: int
    document: int
    position: Position | None
    bad: dict[str, int]


class Document(NamedTuple):
    """A text and its place."""

    text: str
    place: Place


class Split(NamedTuple):
    """Which rows are whose, by their index alone: it is the same for every process and at every time.

    Attributes:
        period: every ``period``-th row, from the first, is validation.
        process_index, process_count: the other rows are dealt one by one.
    """

    period: int
    process_index: int
    process_count: int

    def validates(self, index: int) -> bool:
        return index % self.period == 0

    def trains(self, index: int) -> bool:
        """Whether the row is training of this process."""
        rank = index - index // self.period - 1  # among the rows of training
        return not self.validates(index) and rank % self.process_count == self.process_index


def documents(source: RowSource, wanted: Callable[[int], bool], start: Place, bad: BadRows) -> Iterator[Document]:
    """The wanted documents from ``start`` to the end of the corpus; of other rows the text is not read.

    An empty text is no document, and no bad row either.

    Raises:
        ValueError: more bad rows than ``bad`` takes. Those of later epochs are the same again, and not counted.
    """
    for index, row in enumerate(source.rows(start.position), start.document):
        if wanted(index):
            place = Place(start.epoch, index, row.position, bad.counts)
            try:
                text = source.text(row.raw)
            except BadRowError as error:
                if start.epoch == 0:
                    bad.add(row, error)
                continue
            if text:
                yield Document(text, place)
