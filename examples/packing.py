"""A web handler accepts an order under its lock, and a worker in another process packs it.

    AIOLOCK_URL=redis://localhost uvicorn --app-dir examples packing:app
    AIOLOCK_URL=redis://localhost taskiq worker --app-dir examples packing:broker

    curl -X POST localhost:8000/orders/42/packing    # 202: from here on, the worker has the lock
    curl -X DELETE localhost:8000/orders/42          # waits until it is packed, and is refused

The handler hands its lease on with the task, so nobody cancels the order before the worker begins.
Without AIOLOCK_URL all of this is in one process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException
from taskiq import AsyncBroker, InMemoryBroker
from taskiq_redis import RedisStreamBroker

import aiolock
from aiolock import Lease
from aiolock.integrations.fastapi import locked, setup
from aiolock.integrations.taskiq import Locks, hand

URL = os.environ.get("AIOLOCK_URL", "memory://")
WORK = float(os.environ.get("PACKING_SECONDS", "0.5"))

locks = Locks(aiolock.connect(URL))
broker: AsyncBroker = (
    InMemoryBroker() if URL.startswith("memory://") else RedisStreamBroker(URL, queue_name="pack")
).with_middlewares(locks)
status = locks.client.once  # what was packed is remembered there: a stand-in for a database


@broker.task("pack")
@locks.locked("order:{order}")  # the handler's lease; a lock of its own, if it is tried again
async def pack(order: int) -> None:
    """Pack one order, if an earlier run has not done so."""
    async with status(f"packed:{order}", remember=86400) as first:
        if first:
            print(f"packing {order}", flush=True)
            await asyncio.sleep(WORK)  # write with locks.current_lease().fence
            print(f"packed {order}", flush=True)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    """Open the broker, and with it the client of its tasks."""
    await broker.startup()
    yield
    await broker.shutdown()


app = FastAPI(lifespan=lifespan)
setup(app, aiolock.connect(URL))

in_turn = locked("order:{order}", timeout=10)


async def is_packed(order: int) -> bool:
    """Whether it was packed already."""
    return bool((await status(f"packed:{order}", remember=86400).status()).closed)


@app.post("/orders/{order}/packing", status_code=202)
async def start(order: int, lease: Annotated[Lease, in_turn]) -> dict[str, str]:
    """Accept it: the worker has its lock from here on."""
    if await is_packed(order):
        raise HTTPException(409, "it is packed already")
    sent = await hand(lease, pack, order, ttl=600)
    return {"task": sent.task_id}


@app.delete("/orders/{order}", status_code=204, dependencies=[in_turn])
async def cancel(order: int) -> None:
    """Cancel it, unless it is packed: waits for a worker that is at it."""
    if await is_packed(order):
        raise HTTPException(409, "it is packed already")
