"""Pickles of objects whose class is made when it is first needed, so that no pickle can look it up by its name."""

from collections.abc import Callable
from typing import Any


def by_base(made: tuple[Any, ...], make: Callable[[Any], Any], base: type) -> tuple[Any, ...]:
    """What ``__reduce_ex__`` of such an object returns.

    Args:
        made: what that of its base returned.
        make: base → the class of the object; a function that a pickle finds by its name.
        base: the class that it extends.
    """
    return (_blank, (make, base), *made[2:])


def _blank(make: Callable[[Any], Any], base: type) -> Any:
    """An object in which nothing is set yet, for a pickle to fill."""
    cls = make(base)
    return cls.__new__(cls)
