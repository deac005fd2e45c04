"""`RWLock`: a lock that many readers or one writer can hold.

It is two `Lock` descriptions of one name: a shared one for readers, an exclusive one for writers.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiolock._locks.lock import Lock
from aiolock.copying import CopiedAsItself
from aiolock.protocol import Status


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RWLock(CopiedAsItself):
    """A description of one readers-writer lock; made by `LockClient.rwlock`. Holds nothing.

    ::

        rates = client.rwlock("rates")
        async with rates.read():  # any number of these at a time
            ...
        async with rates.write() as lease:  # one, and then nobody reads
            ...
            await lease.downgrade()  # from here on others read too, but nobody writes

    `read` and `write` return locks with all methods of a `Lock`; a plain lock of this name is the
    write lock. First come, first served: a waiting writer holds back the readers behind it, so no
    stream of readers starves it, and readers next to each other in the queue enter together. Each
    reader has a lease of its own, so the lease of a crashed reader expires alone.
    """

    _reading: Lock
    _writing: Lock

    def __repr__(self) -> str:
        return f"<RWLock {self.name!r} ttl={self._writing.ttl:g}>"

    @property
    def name(self) -> str:
        """The name of both locks."""
        return self._writing.name

    def read(self) -> Lock:
        """The lock that readers share.

        A task that reads cannot wait to write as well: that raises `WouldDeadlock` at once, because
        two such readers would wait for each other. Nor can a task that reads or writes acquire a
        second read lease, behind a writer that waits for the task's own lease. With
        ``reentrant=True`` it can, by the lease that it has.
        """
        return self._reading

    def write(self) -> Lock:
        """The lock that one writer holds alone; its lease can be downgraded (`Lease.downgrade`)."""
        return self._writing

    async def status(self) -> Status:
        """The readers or the writer, and the waiters; as `Lock.status`."""
        return await self._writing.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Take it from all readers or from the writer, or from one holder: as `Lock.break_`."""
        return await self._writing.break_(fence)
