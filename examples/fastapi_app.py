"""A shop that never sells more than it has, in any number of processes.

    uvicorn --app-dir examples fastapi_app:app
    AIOLOCK_URL=redis://localhost uvicorn --app-dir examples --workers 4 fastapi_app:app

    curl -X PUT localhost:8000/items/apple?stock=10
    curl -X POST localhost:8000/items/apple/sales

Without AIOLOCK_URL the locks and the stock are in the memory of one process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Protocol

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from redis.asyncio import Redis

import aiolock
from aiolock import Lease
from aiolock.integrations.fastapi import locked, setup

URL = os.environ.get("AIOLOCK_URL", "memory://")
PATIENCE = float(os.environ.get("SHOP_PATIENCE", "2"))  # seconds that a request waits for its turn


class Stock(Protocol):
    """The stock of the shop. A write names the fence under which it was decided."""

    async def read(self, item: str) -> int:
        """How many items are left."""
        ...

    async def write(self, item: str, left: int, fence: int) -> bool:
        """Set how many are left; returns False, and sets nothing, if a higher fence has written."""
        ...


class MemoryStock:
    """A stock in a dict, which ends with the process."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[int, int]] = {}

    async def read(self, item: str) -> int:  # noqa: D102  # see Stock
        return self._items.get(item, (0, 0))[0]

    async def write(self, item: str, left: int, fence: int) -> bool:  # noqa: D102  # see Stock
        if fence < self._items.get(item, (0, 0))[1]:
            return False
        self._items[item] = (left, fence)
        return True


class RedisStock:
    """A stock in a Redis hash, which checks each write where it is made."""

    _WRITE = """
        if tonumber(ARGV[2]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then
            return 0
        end
        redis.call('HSET', KEYS[1], 'left', ARGV[1], 'fence', ARGV[2])
        return 1
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(self._WRITE)

    async def read(self, item: str) -> int:  # noqa: D102  # see Stock
        return int(await self._redis.hget(f"stock:{item}", "left") or 0)

    async def write(self, item: str, left: int, fence: int) -> bool:  # noqa: D102  # see Stock
        return bool(await self._write(keys=[f"stock:{item}"], args=[left, fence]))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    """Open and close the stock; the locks are open before, and are closed after it."""
    if URL.startswith("memory://"):
        app.state.stock = MemoryStock()
        yield
    else:
        async with Redis.from_url(URL) as redis:
            app.state.stock = RedisStock(redis)
            yield


app = FastAPI(lifespan=lifespan)
setup(app, aiolock.connect(URL))  # one client for the whole process; errors are answered


def the_stock(request: Request) -> Stock:
    """The stock that `lifespan` has opened."""
    stock: Stock = request.app.state.stock
    return stock


Shelf = Annotated[Stock, Depends(the_stock)]
# The one lock that every request about this item takes.
Alone = Annotated[Lease, locked("stock:{item}", ttl=10, timeout=PATIENCE, max_waiters=100)]


@app.get("/items/{item}")
async def look(item: str, stock: Shelf) -> dict[str, int]:
    """Reading needs no lock: the answer is old when it arrives, with or without one."""
    return {"left": await stock.read(item)}


@app.put("/items/{item}")
async def fill(
    item: str, stock: Annotated[int, Query(ge=0)], shelf: Shelf, lease: Alone
) -> dict[str, int]:
    """Set the number of items on the shelf."""
    if not await shelf.write(item, stock, lease.fence):
        raise HTTPException(409, "somebody else was faster")
    return {"left": stock}


@app.post("/items/{item}/sales", status_code=201)
async def sell(item: str, shelf: Shelf, lease: Alone) -> dict[str, int]:
    """Sell one."""
    left = await shelf.read(item)
    if left <= 0:
        raise HTTPException(409, "sold out")
    await asyncio.sleep(0.01)  # the payment; without the lock, others read the old stock now
    if not await shelf.write(item, left - 1, lease.fence):
        raise HTTPException(409, "somebody else was faster")
    return {"left": left - 1}
