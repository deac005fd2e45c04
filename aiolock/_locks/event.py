"""Those who wait until something has happened, once."""

from __future__ import annotations

from aiolock._engine.lease import give_back
from aiolock._engine.policy import Seconds, to_ms
from aiolock._locks.lock import DEFAULT, Default, Lock
from aiolock.store import Status


class Event:
    """Something that happens once; made by `LockClient.event`. Holds nothing.

    ::

        ready = client.event("schema:42 is there")
        await ready.set()  # in one process
        await ready.wait()  # in any number of tasks of any process: until then

    As `asyncio.Event` is for the tasks of one process, but for one thing: it cannot be cleared, for
    of two processes nobody could tell which was first, the one that clears or the one that sets. A
    name that says which round it is needs no clearing. It stays set, for whoever comes later too,
    for ``remember`` seconds (a minute at least) after it was last set: then it is forgotten.
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
        """Let all go on that wait for it.

        Idempotent: again, it is remembered for longer. One round trip; `StoreError` when nobody
        knows. Cancelled, it may have been set.
        """
        engine, policy = self._lock._engine, self._lock._policy
        engine.check()
        keep = to_ms(self._remember)
        with policy.errors_named():
            await engine.store.post(policy.key, 1, token="", declared=0, value="", keep=keep)

    async def is_set(self) -> bool:
        """Whether it has happened, as far as is remembered: one round trip.

        `StoreError` when nobody knows.
        """
        engine, policy = self._lock._engine, self._lock._policy
        engine.check()
        with policy.errors_named():
            return (await engine.store.read(policy.key)).count > 0

    async def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Return once it is set; `AcquireTimeout` when that did not happen in ``timeout`` seconds.

        Errors and cancellation are those of `Lock.acquire`.
        """
        give_back(await self._lock._acquisition(timeout, blocking=True, raises=True))

    async def status(self) -> Status:
        """Who waits for it; as `Lock.status`."""
        return await self._lock.status()
