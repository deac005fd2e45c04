"""The locks that are compared: each an adapter of a few lines, run in its own environment.

An adapter is a module with a class `Peer`; its keyword arguments are the peer's settings. What it
has beside locks is a setting, too: with ``permits=5`` the "locks" are semaphores of 5, with
``reads=True`` they are what the readers of a readers-writer lock share. Adapters import nothing of
each other's, and nothing here but what Python 3.11 brings along.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Peer(Protocol):
    """A lock library, as the workloads use it. Every lease is 30 seconds long."""

    async def open(self, url: str, tasks: int) -> None:
        """Connect, so that ``tasks`` tasks of this process can ask at once."""
        ...

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        """What one task enters again and again, made before the clock starts."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
