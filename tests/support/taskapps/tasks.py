"""The same few tasks in each task framework, with a real worker of it in the test's loop.

=====================  ====================================================================
``welcome(user)``      locked by ``user:{user}``, for which it waits no longer than `PATIENCE`
``patient(user)``      the same, for which it waits as long as it takes; where an `App` interrupts
``pay(order)``         once for ``payment:{order}``
``call(number)``       two at a time
``pack(order)``        under a lease that is handed on to it
=====================  ====================================================================

Their framework may try none of them twice.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import aiolock
from aiolock.integrations._tasks import TaskLocks

PATIENCE = 0.05
"""Seconds: most of the tests are about those who go."""
SOON = 0.05
"""Seconds after which they are tried again, where a framework may be told."""


@dataclass
class Tasks:
    """What the tasks do under their lock."""

    client: aiolock.LockClient
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """They wait for it."""
    begun: list[tuple[str, int]] = field(default_factory=list)
    """Each of their runs, with the fence of its lock."""
    cancelled: int = 0
    inside: int = 0
    most: int = 0
    """How many there were at a time."""
    fails: BaseException | None = None
    """What the next run raises."""

    async def run(self, locks: TaskLocks, what: str) -> str:
        """Do it; says which run it was."""
        self.begun.append((what, locks.current_lease().fence))
        number = len(self.begun)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.go.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        error, self.fails = self.fails, None
        if error is not None:
            raise error
        return f"{what} in run {number}"


class App(ABC):
    """An application: its tasks, who sends them, and who carries them out."""

    keeps_results = True
    interrupts = False
    """Whether a worker that ends cancels its tasks; else it waits for them."""

    @abstractmethod
    async def send(self, task: str, value: int) -> Any:
        """Send a task; what `done` takes."""

    @abstractmethod
    async def hand(self, lease: aiolock.Lease, task: str, value: int) -> Any:
        """Send a task with a lease, by the framework's own `hand`; what `done` takes."""

    @abstractmethod
    async def done(self, sent: Any) -> Any:
        """Wait until it is done for good; its result, where those are kept, or None.

        `Failed` where it has failed for good.
        """

    @abstractmethod
    def working(self) -> AbstractAsyncContextManager[None]:
        """A worker, which is told to end at the end."""


class Failed(Exception):
    """A task has failed for good."""
