"""`Latch`: tasks wait until a number of others are done.

At the store, a latch is a counter: `Latch.count_down` posts counts, and waiters enter by
`Rule.COUNT`. A waiter that enters holds nothing, so its lease is given back at once.
"""

from __future__ import annotations

import itertools

from aiolock._engine.policy import to_ms
from aiolock._locks.lock import Lock
from aiolock._locks.passing import Passing
from aiolock.copying import CopiedAsItself
from aiolock.errors import LimitMismatch
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Post, ReadPosted, Rule, Status
from aiolock.validation import (
    LONGEST_TTL,
    SHORTEST_TTL,
    checked_name,
    checked_number,
    seconds,
)

_numbers = itertools.count(1)


class Latch(CopiedAsItself):
    """Opens once it was counted down ``count`` times; made by `LockClient.latch`. Holds nothing.

    ::

        loaded = client.latch("loaded:2026-11-21", count=3)
        await loaded.count_down()  # in three workers, when they have done their part
        await loaded.wait()  # anywhere: until all three have

    Waiters are notified by a push. An open latch stays open, also for later waiters, for
    ``remember`` seconds (at least a minute) after the last count; then it is forgotten, and so
    closed again. If its name contains the round, as above, that does not matter.
    """

    __slots__ = ("_count", "_lock", "_remember")

    def __init__(self, lock: Lock, count: int, remember: float) -> None:
        self._lock = lock
        self._count = count
        self._remember = remember

    def __repr__(self) -> str:
        return f"<Latch {self.name!r} count={self._count}>"

    @property
    def name(self) -> str:
        """The latch's name."""
        return self._lock.name

    @property
    def count(self) -> int:
        """The number of counts that open the latch."""
        return self._count

    async def count_down(self, token: str | None = None) -> int:
        """Count once; returns how many counts are still missing. The last one opens the latch.

        Each ``token`` is counted once, however often it comes. Use the name of the part that is
        done, so that a restarted worker does not count twice. Without one, every call counts.

        `LimitMismatch` when others declare another count. One round trip; `StoreError` when the
        store does not answer. Cancelled, it may have been counted.
        """
        engine = self._lock._engine
        engine.check()
        if token is None:  # unique, so that a command that is sent twice counts once
            token = f"{engine.client} {next(_numbers)}"
        token, policy = f"t:{checked_name(token)}", self._lock._policy
        remember = to_ms(self._remember)
        with policy.errors_named():
            counted = await engine.submit(
                Post(policy.key, 0, token=token, declared=self._count, value="", remember=remember)
            )
        if counted < 0:
            raise policy.with_name(
                LimitMismatch(
                    f"the latch {self.name!r} is in use with a count of {-counted}, but"
                    f" {self._count} is declared here: all that use it declare the same"
                )
            )
        return max(0, self._count - counted)

    async def missing(self) -> int:
        """The number of counts that are still missing: one round trip; `StoreError` if unknown."""
        engine, policy = self._lock._engine, self._lock._policy
        engine.check()
        with policy.errors_named():
            return max(0, self._count - (await engine.submit(ReadPosted(policy.key))).count)

    async def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Return once it is open; `AcquireTimeout` when it did not open in ``timeout`` seconds.

        Errors and cancellation are those of `Lock.acquire`; also `LimitMismatch`.
        """
        (await self._lock._acquisition(timeout)).release_nowait()

    async def status(self) -> Status:
        """The waiters of the latch; as `Lock.status`."""
        return await self._lock.status()


def describe_latch(lock: Passing, name: str, count: int, remember: Seconds) -> Latch:
    """The latch of these arguments, checked."""
    checked_number("count", count)
    kept = seconds("remember", remember, least=SHORTEST_TTL, most=LONGEST_TTL)
    return Latch(lock("latch", name, Rule.COUNT, count, count), count, kept)
