"""A corpus that is on every machine with Python: the sources of its standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

_LEFT_OUT = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


def standard_library() -> Iterator[str]:
    """Texts of the standard library's modules, without its tests, in the same order on every machine.

    Raises:
        OSError: this Python has no readable sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [p for p in root.rglob("*.py") if p.is_file() and not _LEFT_OUT.intersection(p.relative_to(root).parts)]
    if not files:
        raise OSError(
            f"no Python sources below {root}: without data of your own, the standard library's are the corpus"
        )
    for file in sorted(files, key=lambda p: p.relative_to(root).as_posix()):
        yield file.read_text(encoding="utf-8", errors="replace")
