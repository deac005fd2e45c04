"""A stock that is not oversold: each write was certainly decided while the lock was held.

    export AIOLOCK_URL=postgresql://localhost/shop
    aiolock init-db $AIOLOCK_URL
    python examples/stock_in_postgres.py fill 10
    for shop in 1 2 3; do python examples/stock_in_postgres.py sell & done

Each shop reads what is left, takes its time (a payment, say), and then writes what is left. A lock
lets one shop at a time do that. But a process may be stopped after it has looked at its lease, for
longer than the lease lasts, and then go on to write. `aiolock.check_fence` in the same transaction
prevents that: at that point the lock is still held, and no other client gets it before the commit.
"""

from __future__ import annotations

import asyncio
import os
import sys

import psycopg

import aiolock

URL = os.environ.get("AIOLOCK_URL", "postgresql://localhost/shop")
PAYMENT = float(os.environ.get("PAYMENT_SECONDS", "0.05"))
TTL = float(os.environ.get("TTL_SECONDS", "30"))

TABLES = """
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, amount int NOT NULL CHECK (amount >= 0));
CREATE TABLE IF NOT EXISTS sales (item text NOT NULL, shop int NOT NULL, fence bigint NOT NULL);
"""

Database = psycopg.AsyncConnection[tuple[int]]


def say(text: str) -> None:
    """Print it now, also into a pipe."""
    print(text, flush=True)


async def fill(database: Database, amount: int) -> None:
    """Set the stock to this amount."""
    await database.execute(TABLES)
    await database.execute(
        "INSERT INTO stock VALUES ('tea', %s) ON CONFLICT (item) DO UPDATE SET amount = %s",
        (amount, amount),
    )


async def sell(database: Database, locks: aiolock.LockClient) -> bool:
    """Sell one; returns whether there was one."""
    async with locks.lock("stock:tea", ttl=TTL, timeout=60) as lease:
        row = await (
            await database.execute("SELECT amount FROM stock WHERE item = 'tea'")
        ).fetchone()
        if row is None or row[0] == 0:
            return False
        say("is paying")
        await asyncio.sleep(PAYMENT)
        async with database.transaction():
            # First: no other client has the lock from here to the commit, even if we are stopped.
            await database.execute("SELECT aiolock.check_fence(%s, %s)", (lease.name, lease.fence))
            await database.execute("UPDATE stock SET amount = %s WHERE item = 'tea'", (row[0] - 1,))
            await database.execute(
                "INSERT INTO sales VALUES ('tea', %s, %s)", (os.getpid(), lease.fence)
            )
        say(f"sold one, {row[0] - 1} are left")
        return True


async def main(role: str, *amount: str) -> None:
    """Fill the stock, or sell until nothing is left."""
    async with await psycopg.AsyncConnection[tuple[int]].connect(URL, autocommit=True) as database:
        if role == "fill":
            await fill(database, int(amount[0]))
            return
        async with aiolock.connect(URL) as locks:
            while True:
                try:
                    if not await sell(database, locks):
                        break
                except (aiolock.LeaseLost, psycopg.DatabaseError) as error:
                    say(f"has lost its turn, and written nothing: {error}")
    say("sold out")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
