"""`Barrier`: tasks wait for each other and then continue together.

At the store, the parties are waiters that enter by `Rule.GROUP`, in one step for a whole group. A
waiter that enters holds nothing, so its lease is given back at once.
"""

from __future__ import annotations

from aiolock._locks.lock import Lock
from aiolock._locks.passing import Passing
from aiolock.copying import CopiedAsItself
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Rule, Status
from aiolock.validation import checked_number


class Barrier(CopiedAsItself):
    """Lets a number of parties continue together, repeatedly; made by `LockClient.barrier`.

    ::

        round_over = client.barrier("round over", parties=3)
        while True:
            await play()
            await round_over.wait()  # until all three are here

    The parties wait in one queue. As soon as it is long enough, the first ``parties`` of it
    continue together, in one step of the store, which notifies each by a push. A later party waits
    for the next group. A party that is gone (cancelled, timed out, its process dead) does not
    count, and the others wait for another one. A barrier never breaks; a ``timeout`` limits the
    waiting.
    """

    __slots__ = ("_lock", "_parties")

    def __init__(self, lock: Lock, parties: int) -> None:
        self._lock = lock
        self._parties = parties

    def __repr__(self) -> str:
        return f"<Barrier {self.name!r} parties={self._parties}>"

    @property
    def name(self) -> str:
        """The barrier's name."""
        return self._lock.name

    @property
    def parties(self) -> int:
        """The number of parties that continue together."""
        return self._parties

    async def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Wait for the others; `AcquireTimeout` when they did not come in ``timeout`` seconds.

        `LimitMismatch` when others declare another number of parties. Other errors and cancellation
        are those of `Lock.acquire`. After each of them this party has left, but the others may have
        continued with it at that very moment.
        """
        (await self._lock._acquisition(timeout)).release_nowait()

    async def status(self) -> Status:
        """The parties that wait for the others; as `Lock.status`."""
        return await self._lock.status()


def describe_barrier(lock: Passing, name: str, parties: int) -> Barrier:
    """The barrier of these arguments, checked."""
    checked_number("parties", parties)
    return Barrier(lock("barrier", name, Rule.GROUP, parties, parties), parties)
