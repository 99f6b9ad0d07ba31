"""``plga tokenizer``: train the tokenizer of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

KINDS = ("bpe", "unigram")

app = typer.Typer(help="Tokenizers: train one.", no_args_is_help=True)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="The new folder.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files or quoted globs: .txt (a document a line), .jsonl, .parquet. "
            "By default Python's standard library."
        ),
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Pieces at most, at least 260.")] = 32000,
    kind: Annotated[str, typer.Option(help="bpe: byte pairs; unigram: as the published tokenizers.")] = "bpe",
    column: Annotated[str, typer.Option(help="Column of the documents in .jsonl and .parquet.")] = "text",
    context: Annotated[int, typer.Option(min=1, help="Tokens that the model will take.")] = 1024,
    bad_rows: Annotated[int, typer.Option(min=0, help="Rows without text to skip.")] = 100,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a tokenizer that is there already.")] = False,
) -> None:
    """Train a byte-level tokenizer: any text comes back from its tokens.

    Its first pieces are <pad> 0, <unk> 1, <bos> 2 and <eos> 3. The files are
    read once, a document at a time; their distinct words are held in memory.
    """
    if kind not in KINDS:
        raise ValueError(f"--kind is {kind!r}, expected one of {', '.join(KINDS)}")

    from plga.model.atomic import check_new_directory, new_directory
    from plga.training.data.sources import read_texts
    from plga.training.data.standard_library import standard_library
    from plga.training.data.tokenizer import train_tokenizer

    check_new_directory(out, overwrite, "a tokenizer")  # before, and not only after, the training
    read = _Counted(read_texts(files, column, bad_rows) if files else standard_library())
    tokenizer = train_tokenizer(read, vocab_size, context, "bpe" if kind == "bpe" else "unigram")
    with new_directory(out, overwrite, "a tokenizer") as temporary:
        tokenizer.save_pretrained(temporary)
    typer.echo(
        f"wrote {out}: {kind}, {len(tokenizer):,} pieces, from {read.documents:,} documents of "
        f"{read.characters:,} characters"
    )
    if len(tokenizer) < vocab_size:
        typer.echo(f"the documents give no more pieces than that; --vocab-size was {vocab_size:,}")


class _Counted:
    """Texts, counted as they are read."""

    def __init__(self, texts: "Iterable[str]") -> None:
        self.texts, self.documents, self.characters = texts, 0, 0

    def __iter__(self) -> "Iterator[str]":
        for text in self.texts:
            self.documents += 1
            self.characters += len(text)
            yield text
