"""A job under a lock of aiolock: the program after the migration."""

import asyncio
import os
from typing import Any, LiteralString, TypeAlias

import psycopg

import aiolock

URL = os.environ.get("DATABASE_URL", "postgresql://localhost/shop")
Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]


async def sell(db: Connection) -> bool:
    """Sell what was ordered next: read, work, write; whether there was an order."""
    order = await rows(
        db, "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders) RETURNING id"
    )
    if not order:
        return False
    ((left,),) = await rows(db, "SELECT number FROM stock")
    await asyncio.sleep(0.001)
    await db.execute("UPDATE stock SET number = %s", (left - 1,))
    await db.execute("INSERT INTO sold VALUES (%s, 'after')", order[0])
    return True


async def rows(db: Connection, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
    """The rows that a statement gives."""
    return await (await db.execute(statement, values)).fetchall()


async def main() -> None:
    """Run the job each time that it is due, unless it runs elsewhere, until all is sold."""
    async with (
        await psycopg.AsyncConnection.connect(URL, autocommit=True) as db,
        aiolock.connect(URL) as client,
    ):
        job = client.lock("sell", ttl=30, max_hold=600, min_hold=0)
        left = True
        while left:
            if lease := await job.try_acquire():
                async with lease:
                    left = await sell(db)
            await asyncio.sleep(0.002)  # until it is due


asyncio.run(main())
