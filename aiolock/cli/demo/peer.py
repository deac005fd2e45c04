"""redis-py's own `Lock`, unchanged: most programs on Redis use it, so aiolock is compared with it.

It has no queue: a caller that finds it held asks again every 0.1 s, and the first to ask when it is
free gets it. A program makes one `Lock` for each use, with a lease that nothing renews.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from time import monotonic, monotonic_ns

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.lock import Lock
from redis.exceptions import LockNotOwnedError

from aiolock.cli.demo.customers import CURRENT, Customers, Visit
from aiolock.cli.demo.shop import Shop


def key(prefix: str) -> str:
    """The key of the lock, among those that the demo removes."""
    return f"{prefix}:redis-py"


@asynccontextmanager
async def new_locks(
    url: str, prefix: str, ttl: float, at_once: int
) -> AsyncGenerator[Callable[[], Lock], None]:
    """Makes a lock for each use; as many connections as locks are used at once."""
    pool = ConnectionPool(max_connections=at_once, **parse_url(url))
    async with Redis.from_pool(pool) as redis:
        yield lambda: NotedLock(redis, key(prefix), timeout=ttl)


class PeerCustomers(Customers):
    """The same customers, each under redis-py's `Lock`, until the shop closes."""

    def __init__(
        self,
        worker: int,
        shop: Shop,
        served: Callable[[Visit], object],
        new_lock: Callable[[], Lock],
        seconds: float,
    ) -> None:
        super().__init__(worker, shop, None, served)
        self._new_lock = new_lock
        self._closes = monotonic() + seconds

    async def _visit(self, visit: Visit) -> None:
        lock = self._new_lock()
        seconds = self._closes - monotonic()
        if seconds <= 0 or not await lock.acquire(blocking_timeout=seconds):
            return
        await self._buy_one(visit)
        try:
            await lock.release()
        except LockNotOwnedError:
            visit.lost = True


class NotedLock(Lock):
    """Notes on the visit how often it tried, and when it first knew that it had to wait."""

    async def do_acquire(self, token: str | bytes) -> bool:
        """Try once."""
        visit = CURRENT.get()
        visit.tries += 1
        acquired = await super().do_acquire(token)
        if not acquired and not visit.queued:
            visit.queued = monotonic_ns()
        return acquired
