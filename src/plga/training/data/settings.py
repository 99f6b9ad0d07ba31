"""What a model trains on, as plain data."""

from typing import Literal, Self

from pydantic import Field, model_validator

from plga.training.settings import Settings


class DataSettings(Settings):
    """A corpus, how it is tokenized and packed, and what is held out of it.

    Args:
        source: ``standard-library`` (Python's own sources; nothing else is needed), ``text`` (a document a line),
            ``jsonl`` (a document an object), ``parquet`` (a document a row), or ``hub`` (whatever Datasets can stream).
        path: files or globs, in the order to be read; for ``hub`` the name of a dataset, or a folder of one.
        name, split: for ``hub``: configuration and split of the dataset.
        column: of the documents, in ``jsonl``, ``parquet`` and ``hub``.
        tokenizer: a folder, a file, or a name on the hub. For the standard library it may be absent: then one is
            trained on it, with as many pieces as the model has.
        packing: ``packed``: every window full, across documents, with the end-of-sequence token between (as
            published, arXiv:2410.16703); ``padded``: each document in windows of its own.
        validation: share held out: one document in ``round(1 / validation)``.
        bad_rows: rows without text that a process skips; one more stops the run.
    """

    source: Literal["standard-library", "text", "jsonl", "parquet", "hub"] = "standard-library"
    path: str | list[str] | None = None
    name: str | None = None
    split: str = "train"
    column: str = Field("text", min_length=1)
    tokenizer: str | None = None
    packing: Literal["packed", "padded"] = "packed"
    validation: float = Field(0.05, gt=0, le=0.5)
    bad_rows: int = Field(100, ge=0)

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if self.source == "standard-library":
            if self.path is not None:
                raise ValueError(f"path is {self.path!r}, but source 'standard-library' has none; set source")
            if self.packing == "padded":
                raise ValueError("packing is 'padded', expected 'packed' with source 'standard-library'")
        elif not self.path:
            wanted = "a dataset's name or folder" if self.source == "hub" else "files or globs"
            raise ValueError(f"path is missing: source {self.source!r} needs {wanted}")
        elif self.tokenizer is None:
            raise ValueError(
                f"tokenizer is missing: source {self.source!r} needs one (a folder, a file or a name on the hub; "
                "`plga tokenizer train` makes one)"
            )
        if self.source == "hub" and not isinstance(self.path, str):
            raise ValueError(f"path is {self.path!r}, expected one name or folder with source 'hub'")
        if self.source != "hub" and self.name is not None:
            raise ValueError(f"name is {self.name!r}, but only source 'hub' has one")
        return self
