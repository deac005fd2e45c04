"""The shop: a stock that is read, and written back a moment later, as in so many programs.

Nothing here guards it. Whoever buys reads the stock and writes one less, and with it, in one step,
the record of the sale: so that it can be counted afterwards what was really sold.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Protocol

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url

_KEPT: Final = 3600
"""Seconds until the server forgets the shop by itself, should nobody be left to tidy up."""


class Sale(NamedTuple):
    """The record of one sale."""

    item: int
    """The stock as the buyer had read it: items are sold from the highest number down to 1."""
    fence: int
    """The fencing token under which it was sold; 0 without a lock."""


class Shop(Protocol):
    """A stock, and the record of what was sold."""

    async def open(self, items: int) -> None:
        """Begin a sale of so many items."""
        ...

    async def stock(self) -> int:
        """How many are left."""
        ...

    async def sell(self, sale: Sale) -> None:
        """Write the stock without this item and the record, both in one step."""
        ...

    async def sales(self) -> list[Sale]:
        """Every sale, in the order in which they were written."""
        ...


class MemoryShop:
    """A shop of this process. Like a real one, it takes a turn of the event loop to answer."""

    def __init__(self) -> None:
        self._stock = 0
        self._sales: list[Sale] = []

    async def open(self, items: int) -> None:
        """See `Shop`."""
        self._stock = items
        self._sales = []

    async def stock(self) -> int:
        """See `Shop`."""
        stock = self._stock
        await asyncio.sleep(0)
        return stock

    async def sell(self, sale: Sale) -> None:
        """See `Shop`."""
        await asyncio.sleep(0)
        self._stock = sale.item - 1
        self._sales.append(sale)

    async def sales(self) -> list[Sale]:
        """See `Shop`."""
        return self._sales


class RedisShop:
    """A shop on a Redis server, for any number of processes: a number that they GET and SET."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._stock = f"{prefix}:stock"
        self._sales = f"{prefix}:sales"

    async def open(self, items: int) -> None:
        """See `Shop`."""
        await self._redis.set(self._stock, items, ex=_KEPT)
        await self._redis.delete(self._sales)

    async def stock(self) -> int:
        """See `Shop`."""
        return int(await self._redis.get(self._stock) or 0)

    async def sell(self, sale: Sale) -> None:
        """See `Shop`."""
        async with self._redis.pipeline(transaction=True) as both:
            _ = both.set(self._stock, sale.item - 1, ex=_KEPT)
            _ = both.rpush(self._sales, f"{sale.item} {sale.fence}")
            _ = both.expire(self._sales, _KEPT)
            await both.execute()

    async def sales(self) -> list[Sale]:
        """See `Shop`."""
        records = await self._redis.lrange(self._sales, 0, -1)
        return [Sale(*map(int, record.split())) for record in records]


def redis_client(url: str) -> Redis:
    """An ordinary client, of which hundreds of requests at once share a few connections.

    Nothing is tried twice: a sale whose reply was lost may have been written.
    """
    pool = BlockingConnectionPool(max_connections=16, timeout=None, **parse_url(url))
    return Redis.from_pool(pool)
