"""A job under a lock of ShedLock, which is a library for Java.

It represents your program in Java: it keeps the same table by the same statements.

"""

import asyncio
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString, TypeAlias

import psycopg

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
    await db.execute("INSERT INTO sold VALUES (%s, 'before')", order[0])
    return True


async def rows(db: Connection, statement: LiteralString, *values: object) -> list[tuple[Any, ...]]:
    """The rows that a statement gives."""
    return await (await db.execute(statement, values)).fetchall()


TAKE: LiteralString = """
    INSERT INTO shedlock (name, lock_until, locked_at, locked_by)
    VALUES (%s, timezone('utc', now()) + %s * interval '1 second', timezone('utc', now()), %s)
    ON CONFLICT (name) DO UPDATE SET lock_until = EXCLUDED.lock_until,
        locked_at = EXCLUDED.locked_at, locked_by = EXCLUDED.locked_by
    WHERE shedlock.lock_until <= timezone('utc', now())
    RETURNING name
"""
GIVE_BACK: LiteralString = """
    UPDATE shedlock
    SET lock_until = greatest(locked_at + %s * interval '1 second', timezone('utc', now()))
    WHERE name = %s AND locked_by = %s RETURNING name
"""


@asynccontextmanager
async def shedlock(
    db: Connection, name: str, *, at_most: float, at_least: float
) -> AsyncIterator[bool]:
    """ShedLock's lock, as its provider for JDBC keeps it: whether it is ours."""
    owner = f"{socket.gethostname()} {uuid.uuid4()}"
    ours = bool(await rows(db, TAKE, name, at_most, owner))
    try:
        yield ours
    finally:
        if ours:
            await rows(db, GIVE_BACK, at_least, name, owner)


async def main() -> None:
    """Run the job each time that it is due, unless it runs elsewhere, until all is sold."""
    async with await psycopg.AsyncConnection.connect(URL, autocommit=True) as db:
        left = True
        while left:
            async with shedlock(db, "sell", at_most=600, at_least=0) as ours:
                left = not ours or await sell(db)
            await asyncio.sleep(0.002)  # until it is due


asyncio.run(main())
