"""Imports run downward only: a file knows its own floor and those below it."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import plga

ROOT = Path(plga.__file__).parent
FLOORS = {
    "ops": 1,
    "model": 2,
    "adopt": 2,
    "training": 3,
    "criticality": 3,
    "collapse": 3,
    "scoring": 3,
    "audit": 4,
    "serving": 4,
    "cli": 5,
}
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def imported(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Dotted names that a file of ``package`` imports: at the top, in a function, for a type checker."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def floor(name: str) -> int | None:
    """Floor of a dotted name of this package; None for the version and the package itself."""
    _, _, rest = name.partition(".")
    first = rest.partition(".")[0]
    if first in ("", "__version__"):
        return None
    if first in plga.__all__:
        return FLOORS["model"]
    return FLOORS[first]


def test_every_package_has_a_floor() -> None:
    assert {path.parts[0] for path in FILES if len(path.parts) > 1} <= FLOORS.keys()
    assert [path.name for path in FILES if len(path.parts) == 1] == ["__init__.py", "__main__.py"]


@pytest.mark.parametrize("path", [path for path in FILES if len(path.parts) > 1], ids=str)
def test_imports_run_downward(path: Path) -> None:
    for name in imported((ROOT / path).read_text(), ("plga", *path.parts[:-1])):
        if name.split(".")[0] == "plga":
            below = floor(name)
            assert below is None or below <= FLOORS[path.parts[0]], f"{path} imports {name} from above"


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] == "ops"], ids=str)
def test_operators_need_torch_only(path: Path) -> None:
    for name in imported((ROOT / path).read_text(), ("plga", "ops")):
        allowed = name.split(".")[0] in {"torch", *sys.stdlib_module_names} or name.startswith("plga.ops")
        assert allowed, f"{path} imports {name}"


def test_the_check_sees_every_kind_of_import() -> None:
    source = """
import plga.cli.main as main
from plga import audit
if TYPE_CHECKING:
    from plga.serving.engine import Engine
def late():
    from ..collapse import freeze
    from . import cache
"""
    assert list(imported(source, ("plga", "model"))) == [
        "plga.cli.main",
        "plga.audit",
        "plga.serving.engine.Engine",
        "plga.collapse.freeze",
        "plga.model.cache",
    ]
    assert [floor(name) for name in ("plga.cli.main", "plga.audit", "plga.PldrConfig", "plga.__version__", "plga")] == [
        5,
        4,
        2,
        None,
        None,
    ]
