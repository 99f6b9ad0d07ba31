"""What the tests of this package share."""

from tests.threads import one_thread

__all__ = ["one_thread"]
