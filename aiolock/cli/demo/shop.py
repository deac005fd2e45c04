"""The shop: a stock that is read, and written back a moment later, as in so many programs.

Nothing here guards the stock. A buyer reads it and writes one less, together with the record of the
sale, in one step: so the real sales can be counted afterwards.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url

from aiolock.cli.demo.options import in_a_file

Value = TypeVar("Value")

_KEPT: Final = 3600
"""Seconds until the server forgets the shop by itself, in case the demo cannot tidy up."""


class Sale(NamedTuple):
    """The record of one sale."""

    item: int
    """The stock as the buyer had read it: items are sold from the highest number down to 1."""
    fence: int
    """The fencing token under which it was sold; 0 without a lock."""


class Shop(Protocol):
    """A stock, and the record of its sales."""

    async def open(self, items: int) -> None:
        """Begin a sale of this many items."""
        ...

    async def stock(self) -> int:
        """How many items are left."""
        ...

    async def sell(self, sale: Sale) -> None:
        """Write the stock without this item, and the record, both in one step."""
        ...

    async def sales(self) -> list[Sale]:
        """All sales, in the order in which they were written."""
        ...


class MemoryShop:
    """A shop in this process. Like a real one, it takes a loop iteration to answer."""

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


class FileShop:
    """A shop in an SQLite file, for any number of processes of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # SQLite blocks, so it has a thread of its own, which all requests of this process share.
        self._thread = ThreadPoolExecutor(1)
        self._file: sqlite3.Connection

    async def connect(self) -> None:
        """Open the file."""
        await self._do(self._connect)

    def _connect(self) -> None:
        self._file = sqlite3.connect(self._path, isolation_level=None, timeout=60)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("CREATE TABLE IF NOT EXISTS stock (items INTEGER)")
        self._file.execute("CREATE TABLE IF NOT EXISTS sales (item INTEGER, fence INTEGER)")

    async def aclose(self) -> None:
        """Close it."""
        await self._do(self._file.close)
        self._thread.shutdown()

    async def _do(self, call: Callable[..., Value], *arguments: Any) -> Value:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, call, *arguments)

    def _write(self, *statements: tuple[str, tuple[int, ...]]) -> None:
        self._file.execute("BEGIN IMMEDIATE")
        for statement in statements:
            self._file.execute(*statement)
        self._file.execute("COMMIT")

    async def open(self, items: int) -> None:
        """See `Shop`."""
        begin = ("INSERT INTO stock VALUES (?)", (items,))
        await self._do(self._write, ("DELETE FROM stock", ()), ("DELETE FROM sales", ()), begin)

    def _read(self, what: str) -> list[Any]:
        return self._file.execute(what).fetchall()

    async def stock(self) -> int:
        """See `Shop`."""
        ((items,),) = await self._do(self._read, "SELECT items FROM stock")
        return int(items)

    async def sell(self, sale: Sale) -> None:
        """See `Shop`."""
        left = ("UPDATE stock SET items = ?", (sale.item - 1,))
        await self._do(self._write, left, ("INSERT INTO sales VALUES (?, ?)", tuple(sale)))

    async def sales(self) -> list[Sale]:
        """See `Shop`."""
        rows = await self._do(self._read, "SELECT item, fence FROM sales ORDER BY rowid")
        return [Sale(*row) for row in rows]


def shop_file(url: str, prefix: str) -> Path:
    """The file of the shop that belongs to the locks of an SQLite URL, and to this sale."""
    return Path(f"{unquote(urlsplit(url).path[1:])}.{prefix}")


def tidy(url: str, prefix: str) -> None:
    """Remove all files of such a shop."""
    shop = shop_file(url, prefix)
    for suffix in ("", "-wal", "-shm"):
        shop.with_name(f"{shop.name}{suffix}").unlink(missing_ok=True)


@asynccontextmanager
async def shop_beside(url: str, prefix: str) -> AsyncGenerator[Shop, None]:
    """The shop, in the same place as the locks."""
    if in_a_file(url):
        shop = FileShop(shop_file(url, prefix))
        await shop.connect()
        try:
            yield shop
        finally:
            await shop.aclose()
    else:
        async with redis_client(url) as redis:
            yield RedisShop(redis, prefix)


def redis_client(url: str) -> Redis:
    """An ordinary client, through which hundreds of requests at once share a few connections.

    It retries nothing: a sale whose reply was lost may have been written.
    """
    pool = BlockingConnectionPool(max_connections=16, timeout=None, **parse_url(url))
    return Redis.from_pool(pool)
