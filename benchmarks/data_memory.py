"""Memory and speed of reading a large corpus: python benchmarks/data_memory.py [--source jsonl] [--gigabytes 1].

Writes one file of that size (deterministic, deleted afterwards; parquet for the sources parquet and hub), streams all
of it in windows of 1024 tokens in a fresh process, and prints the table of docs/data.md, with the time that a
resumption at the beginning and one after nine tenths take.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import numpy as np
import psutil
import pyarrow
from pyarrow import parquet

CONTEXT, VOCABULARY = 1024, 32000
SAMPLES = 20
PICTURE = Path(__file__).parents[1] / "docs" / "data_memory.png"


def words(random: np.random.Generator) -> list[str]:
    """200,000 words of one to five syllables, none twice."""
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "ai", "er", "on", "is", "ul")]
    found: dict[str, None] = {}
    while len(found) < 200_000:
        found["".join(random.choice(syllables, random.integers(1, 6)))] = None
    return list(found)


def texts(random: np.random.Generator) -> Iterator[str]:
    """Documents without end, of 3 kB in the mean, with words as frequent as in a language (Zipf)."""
    lexicon = np.array(words(random), dtype=object)
    frequency = np.cumsum(1 / np.arange(1, len(lexicon) + 1))
    while True:
        counts = random.lognormal(5.7, 0.8, 1000).astype(int) + 5
        drawn = lexicon[np.searchsorted(frequency, random.random(counts.sum()) * frequency[-1])]
        for end, count in zip(accumulate(counts), counts, strict=True):
            yield " ".join(drawn[end - count : end]) + "."


def write(folder: Path, source: str, size: int) -> None:
    """A corpus of at least ``size`` bytes of text, and a tokenizer beside it that is trained on its beginning."""
    from plga.training.data.tokenizer import train_tokenizer

    beginning, batch, written, count = [], [], 0, 0
    with opened_for(folder, source) as add:
        for text in texts(np.random.default_rng(0)):
            written += len(text)
            count += 1
            batch.append(text)
            if written < 20_000_000:
                beginning.append(text)
            if len(batch) == 1000 or written >= size:
                add(batch)
                batch = []
            if written >= size:
                break
    train_tokenizer(beginning, VOCABULARY, CONTEXT).save_pretrained(folder / "tokenizer")
    (folder / "count").write_text(str(count))


@contextmanager
def opened_for(folder: Path, source: str) -> Iterator[Callable[[list[str]], object]]:
    """A function that appends texts to the corpus: lines of JSON, or a row group of parquet each time."""
    (folder / "corpus").mkdir()
    if source == "jsonl":
        with (folder / "corpus" / "corpus.jsonl").open("w", encoding="utf-8") as file:
            yield lambda batch: file.writelines(json.dumps({"text": text}) + "\n" for text in batch)
    else:
        schema = pyarrow.schema([("text", pyarrow.string())])
        with parquet.ParquetWriter(folder / "corpus" / "corpus.parquet", schema) as writer:
            yield lambda batch: writer.write_table(pyarrow.table({"text": batch}))


def measure(folder: Path, source: str) -> None:
    """Read the corpus once from beginning to end."""
    from plga.training.data.dataset import Data, open_data
    from plga.training.data.settings import DataSettings

    path = str(folder / "corpus" / ("" if source == "hub" else "*"))
    settings = DataSettings(source=source, path=path, tokenizer=str(folder / "tokenizer"))

    def opened() -> Data:
        return open_data(settings, VOCABULARY, CONTEXT, seed=0)

    process = psutil.Process()
    data = opened()
    documents = int((folder / "count").read_text())
    start = process.memory_info().rss
    curve, states, begin = [(0.0, 0.0)], [data.train.state(0)], time.perf_counter()
    for windows, _ in enumerate(data.train, 1):
        state = data.train.state(windows)
        share = 1.0 if state["epoch"] else state["document"] / documents
        if share >= len(curve) / SAMPLES:
            curve.append((share, process.memory_info().rss - start))
            if share >= 0.9 and len(states) == 1:
                states.append(state)
        if state["epoch"]:
            break
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
    resumptions = []
    for state in states:
        resumed = opened()
        begin = time.perf_counter()
        resumed.train.load_state(state)
        next(iter(resumed.train))
        resumptions.append((state["consumed"], time.perf_counter() - begin))
    size = sum(file.stat().st_size for file in (folder / "corpus").iterdir())
    found = {"size": size, "start": start, "curve": curve, "peak": peak - start, "windows": windows}
    (folder / "results").write_text(json.dumps(found | {"seconds": seconds, "resumptions": resumptions}))


def draw(curve: list[tuple[float, float]], size: int) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot([share * size / 1e9 for share, _ in curve], [rss / 1e6 for _, rss in curve], marker="o", markersize=3)
    axes.axhline(500, color="gray", linestyle="--", linewidth=1)
    axes.annotate("500 MB", (0, 500), xytext=(0, -12), textcoords="offset points", color="gray")
    axes.set(xlabel="GB read", ylabel="MB above the start", ylim=(0, 550))
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=("jsonl", "parquet", "hub"), default="jsonl")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--picture", action="store_true", help="draw docs/data_memory.png")
    arguments = parser.parse_args()
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for process in (
            fresh.Process(target=write, args=(folder, arguments.source, int(arguments.gigabytes * 1e9))),
            fresh.Process(target=measure, args=(folder, arguments.source)),
        ):
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)
        found = json.loads((folder / "results").read_text())
    curve, size, seconds, windows = (found[key] for key in ("curve", "size", "seconds", "windows"))
    print("| GB read | MB above the start |")
    print("|---|---|")
    for share, rss in curve:
        print(f"| {share * size / 1e9:.2f} | {rss / 1e6:.0f} |")
    print(f"\nstart (imports, tokenizer, opened data): {found['start'] / 1e6:.0f} MB")
    print(f"largest sample {max(rss for _, rss in curve) / 1e6:.0f} MB above it, ", end="")
    print(f"peak at any time {found['peak'] / 1e6:.0f} MB above it")
    print(f"{windows:,} windows of {CONTEXT} tokens in {seconds:.0f} s: ", end="")
    print(f"{windows / seconds:.1f} windows/s, {size / 1e6 / seconds:.1f} MB/s")
    for consumed, taken in found["resumptions"]:
        print(f"from the state after {consumed:,} windows to the next window: {taken:.2f} s")
    if arguments.picture:
        draw(curve, size)


if __name__ == "__main__":
    main()
