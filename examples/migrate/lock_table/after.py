"""Sells orders under a lock of aiolock: the program after the migration."""

import asyncio
import sqlite3

import aiolock

db = sqlite3.connect("shop.db", isolation_level=None, timeout=60)  # represents your database
db.row_factory = lambda _, row: row[0] if len(row) == 1 else row


async def sell(order: str) -> None:
    """Take one from the stock: read, work, write."""
    left = db.execute("SELECT number FROM stock").fetchone()
    await asyncio.sleep(0.001)
    db.execute("UPDATE stock SET number = ?", (left - 1,))
    db.execute("INSERT INTO sold VALUES (?, 'after')", (order,))


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
            async with client.lock("warehouse", ttl=30, timeout=60):
                await sell(order)


asyncio.run(main())
