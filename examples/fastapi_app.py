"""A shop that never sells more than it has, in however many processes it runs.

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
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Protocol

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "memory://")
PATIENCE = float(os.environ.get("SHOP_PATIENCE", "2"))  # seconds that a request waits for its turn


class Stock(Protocol):
    """What the shop has. A write says under which fence it was decided."""

    async def read(self, item: str) -> int:
        """How many are left."""
        ...

    async def write(self, item: str, left: int, fence: int) -> bool:
        """Set how many are left; False, and nothing set, where a higher fence has written."""
        ...


class MemoryStock:
    """In a dict, which is gone with the process."""

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
    """In a Redis hash, whose writes are checked where they are made."""

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
    """One lock client for the whole process, opened before the first request."""
    async with AsyncExitStack() as stack:
        app.state.locks = await stack.enter_async_context(aiolock.connect(URL))
        if URL.startswith("memory://"):
            app.state.stock = MemoryStock()
        else:
            app.state.stock = RedisStock(await stack.enter_async_context(Redis.from_url(URL)))
        yield


app = FastAPI(lifespan=lifespan)


def the_locks(request: Request) -> aiolock.LockClient:
    """What `lifespan` has opened."""
    locks: aiolock.LockClient = request.app.state.locks
    return locks


def the_stock(request: Request) -> Stock:
    """What `lifespan` has opened."""
    stock: Stock = request.app.state.stock
    return stock


Locks = Annotated[aiolock.LockClient, Depends(the_locks)]
Shelf = Annotated[Stock, Depends(the_stock)]


def lock_of(item: str, locks: aiolock.LockClient) -> aiolock.Lock:
    """The one lock that every request about this item takes."""
    return locks.lock(f"stock:{item}", ttl=10, timeout=PATIENCE, max_waiters=100)


@app.get("/items/{item}")
async def look(item: str, stock: Shelf) -> dict[str, int]:
    """Reading needs no lock: the answer is old when it arrives, with or without one."""
    return {"left": await stock.read(item)}


@app.put("/items/{item}")
async def fill(item: str, stock: int, shelf: Shelf, locks: Locks) -> dict[str, int]:
    """Put so many on the shelf."""
    async with lock_of(item, locks) as lease:
        if not await shelf.write(item, stock, lease.fence):
            raise HTTPException(409, "somebody else was faster")
    return {"left": stock}


@app.post("/items/{item}/sales", status_code=201)
async def sell(item: str, shelf: Shelf, locks: Locks) -> dict[str, int]:
    """Sell one."""
    async with lock_of(item, locks) as lease:
        left = await shelf.read(item)
        if left == 0:
            raise HTTPException(409, "sold out")
        await asyncio.sleep(0.01)  # the payment; without the lock, others read the old stock now
        if not await shelf.write(item, left - 1, lease.fence):
            raise HTTPException(409, "somebody else was faster")
    return {"left": left - 1}


# What else aiolock raises (WouldDeadlock, LimitMismatch, NotHeld) is a fault of the program: a 500.


@app.exception_handler(aiolock.AcquireTimeout)
@app.exception_handler(aiolock.QueueFull)
async def busy(_: Request, error: Exception) -> JSONResponse:
    """Others are before us, and we have waited long enough: nothing was done."""
    return JSONResponse({"detail": str(error)}, 423, headers={"Retry-After": "1"})


@app.exception_handler(aiolock.StoreError)
@app.exception_handler(aiolock.ClientClosed)
@app.exception_handler(aiolock.LeaseLost)
async def unavailable(_: Request, error: Exception) -> JSONResponse:
    """The lock store did not answer, this process is being shut down, or the lock was lost on the
    way: then look before trying again.
    """
    return JSONResponse({"detail": str(error)}, 503, headers={"Retry-After": "5"})
