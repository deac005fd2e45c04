"""Try to get a lock for a while, in a queue that does not grow: three outcomes.

    export AIOLOCK_URL=redis://localhost            # or postgresql://, mysql://, sqlite://
    python examples/booking.py 1                    # one customer
    python examples/booking.py 30                   # a rush

Each customer gets the next free seat of a show. A customer needs the show alone, to find the seat
and to pay for it. Customers wait for that for five seconds at most. They are sent away at once if
twenty are waiting already, because their turn would not come in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
from dataclasses import dataclass

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
FILE = os.environ.get("BOOKINGS_FILE", "bookings.db")  # stands for your database
WAIT = float(os.environ.get("WAIT_SECONDS", "5"))
TTL = float(os.environ.get("TTL_SECONDS", "10"))
PAYMENT = float(os.environ.get("PAYMENT_SECONDS", "0.2"))

TABLE = """
CREATE TABLE IF NOT EXISTS bookings (
    show TEXT NOT NULL,
    seat INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    PRIMARY KEY (show, seat)  -- a second line of defence: no seat is sold twice
)
"""


@dataclass(frozen=True)
class Booked:
    """The customer's turn came in time."""

    seat: int

    def __str__(self) -> str:
        return f"has got seat {self.seat}"


@dataclass(frozen=True)
class InVain:
    """The customer's turn did not come in time."""

    waited: float
    holders: tuple[aiolock.Participant, ...]

    def __str__(self) -> str:
        who = ", ".join(f"{holder.host}:{holder.pid}" for holder in self.holders)
        return f"has waited {self.waited:.1f} s in vain for {who or 'others'}"


@dataclass(frozen=True)
class QueueFull:
    """Too many were waiting already, so this customer did not wait at all."""

    def __str__(self) -> str:
        return "is sent away at once, the queue is full"


async def book(
    locks: aiolock.LockClient, bookings: sqlite3.Connection, show: str
) -> Booked | InVain | QueueFull:
    """Try to book the next free seat.

    After `LeaseLost` or `StoreError` nothing was booked, or nobody knows: look, then try again.
    """
    # All users of a lock name the same `max_waiters`: it is checked when a waiter comes.
    lock = locks.lock(f"show:{show}", timeout=WAIT, ttl=TTL, max_waiters=20)
    try:
        async with lock as lease:
            ((taken,),) = bookings.execute("SELECT count(*) FROM bookings WHERE show = ?", (show,))
            await asyncio.sleep(PAYMENT)
            bookings.execute(
                "INSERT INTO bookings VALUES (?, ?, ?, ?)",
                (show, taken + 1, os.getpid(), lease.fence),
            )
            return Booked(taken + 1)
    except aiolock.AcquireTimeout as error:
        return InVain(error.waited, error.holders)
    except aiolock.QueueFull:
        return QueueFull()


async def main(customers: str = "1", show: str = "hamlet") -> None:
    """Send this many customers, all at once."""
    with contextlib.closing(sqlite3.connect(FILE, isolation_level=None)) as bookings:
        bookings.execute(TABLE)
        async with aiolock.connect(URL) as locks:

            async def customer(number: int) -> None:
                outcome = await book(locks, bookings, show)
                print(f"customer {number} {outcome}", flush=True)

            async with asyncio.TaskGroup() as group:
                for number in range(1, int(customers) + 1):
                    group.create_task(customer(number))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
