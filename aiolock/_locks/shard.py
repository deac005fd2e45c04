"""`Shard`: one part of some work, held by a member of a group: see `shards`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from aiolock._engine.lease import Lease, LostEvent
from aiolock._engine.lease_state import LeaseState
from aiolock._engine.scope import Scope, body_of
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.placement import shard_of
from aiolock.copying import Uncopyable
from aiolock.entering import AsyncEnterable, Entered, Entry, current_task

_BY_HAND: Final = Entered(current_task)
"""The bodies of shards that were entered by hand."""


class _LostShard(LostEvent):
    """The loss of a shard."""

    def __init__(self, tell: Callable[[], object]) -> None:
        super().__init__()
        self._tell = tell

    def set(self) -> None:
        """Set it, and tell."""
        super().set()
        self._tell()


class Shard(
    Uncopyable, AsyncEnterable["Shard"], AsyncOnly, instead="it is one hold of this process"
):
    """One shard that this member holds; made by `Shards`.

    Enter it: the body is cancelled when the shard is lost, and its end releases the shard.
    `Shards.run` does that for its bodies.
    """

    def __init__(self, index: int, count: int, lease: Lease) -> None:
        self._index = index
        self._count = count
        self._lease = lease
        self._giving_up = asyncio.Event()
        self._over = asyncio.Event()
        """Set when it is held no more."""
        lease._hold.lost = lost = _LostShard(self._over.set)
        if lease._hold.state is LeaseState.LOST:
            lost.set()

    def __repr__(self) -> str:
        return f"<Shard {self.name!r} fence={self.fence} {self.state}>"

    def __contains__(self, key: object) -> bool:
        """Whether this shard is the one of that key: ``tenant in shard``."""
        if not isinstance(key, str):
            raise TypeError(f"a key must be a str, not {type(key).__name__}")
        return shard_of(key, self._count) == self._index

    @property
    def index(self) -> int:
        """Its number, from 0."""
        return self._index

    @property
    def name(self) -> str:
        """The name of its lock: that of the shards, and its number, as ``tenants/7``."""
        return self._lease.name

    @property
    def lease(self) -> Lease:
        """The lease of its lock."""
        return self._lease

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of whoever held this shard before."""
        return self._lease.fence

    @property
    def state(self) -> LeaseState:
        """The state of its lease."""
        return self._lease.state

    @property
    def lost(self) -> LostEvent:
        """An event, set when the shard is lost; never by giving it up."""
        return self._lease.lost

    @property
    def giving_up(self) -> asyncio.Event:
        """An event, set when another member waits for this shard, which is for it now.

        The body ends its present piece of work, and returns: then the other one begins.
        """
        return self._giving_up

    async def release(self) -> bool:
        """Release the shard, as `Lease.release`; the end of its body does so."""
        try:
            return await self._lease.release()
        finally:
            self._over.set()

    @property
    def _entered(self) -> Entered:
        return _BY_HAND

    async def _enter(self, entry: Entry) -> Shard:
        self._lease._still_ours()
        scope = body_of(self._lease, current_task(), cancels=True)
        entry.enters(self, _Inside(self, scope))
        return self


class _Inside:
    """The body of a shard."""

    def __init__(self, shard: Shard, scope: Scope) -> None:
        self._shard = shard
        self._scope = scope

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return self._scope.task

    async def close(self, error: BaseException | None) -> None:
        """Leave it."""
        try:
            await self._scope.close(error)
        finally:
            self._shard._over.set()

    def __del__(self) -> None:
        # In any thread: nothing can leave it any more.
        over, lease = self._shard._over, self._shard._lease
        if not over.is_set() and lease._watchdog.is_here:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                lease._watchdog.loop.call_soon_threadsafe(over.set)
            lease._watchdog.forgotten.unreachable(lease._hold)
