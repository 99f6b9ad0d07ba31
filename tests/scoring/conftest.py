"""What the tests of this package share."""

from tests.training.examples import one_thread

__all__ = ["one_thread"]
