"""Leases that were dropped without a release: a hook for tests, which finds forgotten releases."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, NamedTuple


class DroppedLease(NamedTuple):
    """A lease that was garbage-collected without a release."""

    client: str
    """The id of its client, as in `Status`."""
    kind: str
    """The kind of its lock: ``"lock"``, ``"semaphore"``…"""
    name: str
    """The name of its lock."""
    fence: int
    """Its fencing token."""


on_dropped: Final = list[Callable[[DroppedLease], object]]()
"""Called with each such lease, by the garbage collector, in any thread."""


@contextmanager
def dropped_leases() -> Generator[list[DroppedLease], None, None]:
    """Collect the leases that are dropped without a release while the ``with`` lasts.

    aiolock releases such a lock, and warns (`ResourceWarning`). But no test fails by that: Python
    only prints a warning that is raised in its garbage collector. So let a test assert that the
    list is empty; the fixtures of the pytest plugin do. The list has the leases of all clients of
    this process.
    """
    dropped = list[DroppedLease]()
    on_dropped.append(dropped.append)
    try:
        yield dropped
    finally:
        on_dropped.remove(dropped.append)
