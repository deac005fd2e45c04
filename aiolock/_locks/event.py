"""`Event`: tasks wait until something has happened, once.

At the store, an event is a counter: `Event.set` posts a count of 1, and waiters enter by
`Rule.COUNT`. A waiter that enters holds nothing, so its lease is given back at once.
"""

from __future__ import annotations

from aiolock._engine.policy import to_ms
from aiolock._locks.lock import Lock
from aiolock._locks.passing import Passing
from aiolock.copying import CopiedAsItself
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Post, ReadPosted, Rule, Status
from aiolock.validation import LONGEST_TTL, SHORTEST_TTL, seconds


class Event(CopiedAsItself):
    """Something that happens once; made by `LockClient.event`. Holds nothing.

    ::

        ready = client.event("schema:42 is there")
        await ready.set()  # in one process
        await ready.wait()  # in any number of tasks of any process: until then

    It is like `asyncio.Event`, for many processes, except that it cannot be cleared: if one process
    clears and another sets, no waiter could know which was first. Use a name that contains the
    round instead. The event stays set, also for later waiters, for ``remember`` seconds (at least a
    minute) after it was last set; then it is forgotten.
    """

    __slots__ = ("_lock", "_remember")

    def __init__(self, lock: Lock, remember: float) -> None:
        self._lock = lock
        self._remember = remember

    def __repr__(self) -> str:
        return f"<Event {self.name!r}>"

    @property
    def name(self) -> str:
        """The event's name."""
        return self._lock.name

    async def set(self) -> None:
        """Set the event: all tasks that wait for it continue.

        Idempotent: a second call only makes the store remember it for longer. One round trip;
        `StoreError` when the store does not answer. Cancelled, it may have been set.
        """
        engine, policy = self._lock._engine, self._lock._policy
        engine.check()
        remember = to_ms(self._remember)
        with policy.errors_named():
            await engine.submit(
                Post(policy.key, 1, token="", declared=0, value="", remember=remember)
            )

    async def is_set(self) -> bool:
        """Whether it has happened and the store still remembers it: one round trip.

        `StoreError` when the store does not answer.
        """
        engine, policy = self._lock._engine, self._lock._policy
        engine.check()
        with policy.errors_named():
            return (await engine.submit(ReadPosted(policy.key))).count > 0

    async def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Return once it is set; `AcquireTimeout` when that did not happen in ``timeout`` seconds.

        Errors and cancellation are those of `Lock.acquire`.
        """
        (await self._lock._acquisition(timeout)).release_nowait()

    async def status(self) -> Status:
        """The waiters of the event; as `Lock.status`."""
        return await self._lock.status()


def describe_event(lock: Passing, name: str, remember: Seconds) -> Event:
    """The event of these arguments, checked."""
    kept = seconds("remember", remember, least=SHORTEST_TTL, most=LONGEST_TTL)
    return Event(lock("event", name, Rule.COUNT, 1, 0), kept)
