"""Sells orders under the row and the lock: while old and new programs run side by side."""

import asyncio
import contextlib
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator

import aiolock

db = sqlite3.connect("shop.db", isolation_level=None, timeout=60)  # represents your database
db.row_factory = lambda _, row: row[0] if len(row) == 1 else row

TAKE = """
    UPDATE resource_lock SET owner = ?, expires_at = ?, version = version + 1
    WHERE resource = ? AND version = ?
"""


@contextlib.asynccontextmanager
async def row(resource: str, *, lease_time: float, wait_time: float) -> AsyncIterator[None]:
    """Lock the row of a resource: read it, and take it if nobody was quicker."""
    owner, began = str(uuid.uuid4()), time.time()
    while True:
        holder, expires_at, version = db.execute(
            "SELECT owner, expires_at, version FROM resource_lock WHERE resource = ?", (resource,)
        ).fetchone()
        if holder is None or expires_at < time.time():
            values = owner, time.time() + lease_time, resource, version
            if db.execute(TAKE, values).rowcount:
                break
        if time.time() > began + wait_time:
            raise TimeoutError(f"{resource} is locked")
        await asyncio.sleep(0.02)
    try:
        yield
    finally:
        db.execute(
            "UPDATE resource_lock SET owner = NULL WHERE resource = ? AND owner = ?",
            (resource, owner),
        )


async def sell(order: str) -> None:
    """Take one from the stock: read, work, write."""
    left = db.execute("SELECT number FROM stock").fetchone()
    await asyncio.sleep(0.001)
    db.execute("UPDATE stock SET number = ?", (left - 1,))
    db.execute("INSERT INTO sold VALUES (?, 'during')", (order,))


def next_order() -> str | None:
    """Take an order; None if there is none."""
    row: str | None = db.execute(
        "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders) RETURNING name"
    ).fetchone()
    return row


async def main() -> None:
    """Sell what was ordered, one after the other."""
    async with aiolock.connect("sqlite:///./locks.db") as client:
        while order := next_order():
            async with (
                client.lock("warehouse", ttl=30, timeout=60),
                row("warehouse", lease_time=30, wait_time=60),  # against the old programs
            ):
                await sell(order)


asyncio.run(main())
