"""The stages of the acts: this process, or worker processes around a server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

import aiolock
from aiolock.cli.demo.crew import Crew, crew
from aiolock.cli.demo.customers import Customers, Visit
from aiolock.cli.demo.kills import Kill, Look, arranged, kill, look, look_at_key
from aiolock.cli.demo.observed import Observed
from aiolock.cli.demo.options import in_a_file
from aiolock.cli.demo.peer import key
from aiolock.cli.demo.shop import MemoryShop, Shop, redis_client, shop_beside, tidy
from aiolock.cli.demo.worker import LOCK, Guard, Order, Setup
from aiolock.stores.memory import MemoryServer, MemoryStore

_TIDY_PATIENCE: Final = 5.0
"""Seconds for removing what we have left on the server."""


class Stage(Protocol):
    """A shop, and the customers to serve."""

    visits: list[Visit]
    """The requests served so far, in no particular order."""

    @property
    def shop(self) -> Shop:
        """The shop in which they buy."""
        ...

    async def serve(self, order: Order) -> list[Kill]:
        """Serve customers until they are done; returns the workers that were killed meanwhile."""
        ...

    async def commands(self) -> int | None:
        """How many commands the lock has sent to its store so far; None if we may not know."""
        ...


class OneProcess:
    """Everything in this process, on the embedded store. No worker can be killed."""

    def __init__(self, lock: aiolock.Lock, store: Observed) -> None:
        self.visits: list[Visit] = []
        self.shop = MemoryShop()
        self._lock = lock
        self._store = store

    async def serve(self, order: Order) -> list[Kill]:
        """See `Stage`."""
        lock = self._lock if order.guard == "aiolock" else None
        customers = Customers(0, self.shop, lock, self.visits.append)
        await customers.buy(order.at_once, order.requests)
        return []

    async def commands(self) -> int:
        """The operations of the store: each would be a command."""
        return self._store.operations


class Workers:
    """Worker processes; the stock is where the lock is."""

    def __init__(
        self,
        shop: Shop,
        redis: Redis | None,
        looks: dict[Guard, Look],
        crew: Crew,
        tell_kill: Callable[[Kill], object] | None,
    ) -> None:
        self.visits = crew.visits
        self.shop = shop
        self._redis = redis
        self._looks = looks
        self._crew = crew
        self._tell_kill = tell_kill

    async def serve(self, order: Order) -> list[Kill]:
        """See `Stage`; each worker serves its share, and under a lock some are killed."""
        tell_kill = self._tell_kill if order.guard in self._looks else None
        orders = _shares(order, len(self._crew.workers))
        for worker, share in zip(
            self._crew.workers, arranged(orders) if tell_kill else orders, strict=True
        ):
            worker.order(share)
        look = self._looks.get(order.guard)
        kills = await kill(self._crew, look, tell_kill) if look and tell_kill else []
        await self._crew.all_idle()
        return kills

    async def commands(self) -> int | None:
        """Script calls on the whole server (the shop makes none), and the tries of redis-py."""
        scripts = None if self._redis is None else await _script_calls(self._redis)
        return None if scripts is None else scripts + sum(visit.tries for visit in self.visits)


def _shares(order: Order, workers: int) -> list[Order]:
    """Each worker's share of an order."""

    def share(total: int, number: int) -> int:
        return total * (number + 1) // workers - total * number // workers

    return [
        replace(
            order,
            at_once=share(order.at_once, number),
            requests=None if order.requests is None else share(order.requests, number),
        )
        for number in range(workers)
    ]


@asynccontextmanager
async def one_process(ttl: float) -> AsyncGenerator[Stage, None]:
    """The stage of ``memory://``."""
    store = Observed(MemoryStore(MemoryServer()))
    async with aiolock.connect(store, ttl=ttl) as client:
        yield OneProcess(client.lock(LOCK), store)


@asynccontextmanager
async def workers(
    url: str, count: int, ttl: float, tell_kill: Callable[[Kill], object] | None
) -> AsyncGenerator[Stage, None]:
    """The stage of all other stores. However it ends, it leaves nothing on the server."""
    prefix = f"aiolock-demo-{secrets.token_hex(4)}"
    setups = [Setup(number, url, prefix, ttl) for number in range(count)]
    async with AsyncExitStack() as stack:
        redis = None if in_a_file(url) else await stack.enter_async_context(redis_client(url))
        if redis is not None:
            stack.push_async_callback(_tidy, redis, prefix)
        else:
            stack.callback(tidy, url, prefix)
        client = await stack.enter_async_context(aiolock.connect(url, prefix=prefix, ttl=ttl))
        shop = await stack.enter_async_context(shop_beside(url, prefix))
        team = await stack.enter_async_context(crew(setups))
        looks: dict[Guard, Look] = {"aiolock": partial(look, client.lock(LOCK))}
        if redis is not None:
            looks["redis-py"] = partial(look_at_key, redis, key(prefix))
        yield Workers(shop, redis, looks, team, tell_kill)


# Any: redis-py has only partial types for these commands.


async def _script_calls(redis: Any) -> int | None:
    try:
        stats = await redis.info("commandstats")
    except NoPermissionError:
        return None
    names = ("cmdstat_evalsha", "cmdstat_eval")
    return sum(int(stats[name]["calls"]) for name in names if name in stats)


async def _tidy(redis: Any, prefix: str) -> None:
    # By now an unreachable server is no news, and what cannot be removed expires.
    with suppress(RedisError, OSError):
        async with asyncio.timeout(_TIDY_PATIENCE):
            async for key in redis.scan_iter(f"{prefix}:*", count=1000):
                await redis.delete(key)
