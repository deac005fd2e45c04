"""A scheduled job on a shared database: one of many instances runs it in each period, in turn.

    export AIOLOCK_URL=postgresql://localhost/shop          # or mysql://root@localhost/shop
    aiolock init-db $AIOLOCK_URL
    python examples/job_on_a_database.py init               # the table job_runs
    python examples/job_on_a_database.py run                # in as many terminals as you like
    python examples/job_on_a_database.py status             # who has it, until when, who waits

The lock is aiolock's. The table is yours: it records when each run was done, by which instance, and
whether it was finished. Kill an instance at any time: when its lease has ended, the others go on.
After SIGTERM or Ctrl-C an instance finishes its run, then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import LiteralString, Protocol
from urllib.parse import unquote, urlsplit

import aiolock

URL = os.environ.get("AIOLOCK_URL", "postgresql://localhost/shop")
EVERY = float(os.environ.get("EVERY_SECONDS", "60"))
WORK = float(os.environ.get("WORK_SECONDS", "5"))
TTL = float(os.environ.get("TTL_SECONDS", "15"))  # after it, one that died in its run is replaced

# `period` counts from 1970, as aiolock does. As the key it is a second line of defence: a period is
# never run twice. A run that was begun and not finished has no `finished`.
TABLE = """
CREATE TABLE IF NOT EXISTS job_runs (
    period bigint PRIMARY KEY,
    host varchar(255) NOT NULL,
    pid bigint NOT NULL,
    fence bigint NOT NULL,
    started timestamp(3) DEFAULT CURRENT_TIMESTAMP(3),
    finished timestamp(3) NULL
)
"""
BEGUN = "INSERT INTO job_runs (period, host, pid, fence) VALUES (%s, %s, %s, %s)"
FINISHED = """
UPDATE job_runs SET finished = CURRENT_TIMESTAMP(3) WHERE period = %s AND fence = %s
"""
LAST_RUNS = """
SELECT period, host, pid, fence, started, finished FROM job_runs ORDER BY period DESC LIMIT 5
"""


class Cursor(Protocol):
    """The part of psycopg's and PyMySQL's cursors that is used here."""

    @property
    def description(self) -> object:
        """None where there are no rows to fetch."""
        ...

    def execute(self, query: LiteralString, args: Sequence[object], /) -> object:
        """Run one statement."""
        ...

    def fetchall(self) -> Sequence[tuple[object, ...]]:
        """Its rows."""
        ...


class Connection(Protocol):
    """The part of their connections that is used here."""

    def cursor(self) -> Cursor:
        """A cursor."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


def connect() -> Connection:
    """A connection that commits each statement."""
    if URL.startswith("postgres"):
        import psycopg

        return psycopg.connect(URL, autocommit=True)
    import pymysql

    where = urlsplit(URL)
    return pymysql.connect(
        host=where.hostname or "localhost",
        port=where.port or 3306,
        user=unquote(where.username or ""),
        password=unquote(where.password or ""),
        database=unquote(where.path[1:]),
        autocommit=True,
    )


def run_statement(statement: LiteralString, *values: object) -> Sequence[tuple[object, ...]]:
    """The rows of a statement. Runs are rare, so each statement has a connection of its own."""
    with contextlib.closing(connect()) as connection:
        cursor = connection.cursor()
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else ()


async def sql(statement: LiteralString, *values: object) -> Sequence[tuple[object, ...]]:
    """Run one statement in a thread: the event loop stays free to renew the lease."""
    return await asyncio.to_thread(run_statement, statement, *values)


def say(text: str) -> None:
    """Print it now, also into a pipe."""
    print(text, flush=True)


async def clean_up() -> None:
    """The job, which must not run twice at a time, nor twice in a period."""
    await asyncio.sleep(WORK)


def cleaning(locks: aiolock.LockClient) -> aiolock.Periodic:
    """The job's schedule, which all instances must declare alike."""
    return locks.periodic("clean up", every=EVERY, ttl=TTL, max_hold=600)


async def one_run(locks: aiolock.LockClient) -> None:
    """Run the job, and record it."""
    status = await cleaning(locks).status()
    # This instance, with its fence, and the time of its grant by the database's clock.
    me = next((party for party in status.holders if party.client == locks.id), None)
    if me is None:
        return  # the lease was lost just now: another instance may have it
    period = int(me.since // EVERY)
    say(f"period {period} begins")
    await sql(BEGUN, period, me.host, me.pid, me.fence)
    await clean_up()
    # If this run was stopped and replaced meanwhile, it changes no row but its own.
    await sql(FINISHED, period, me.fence)
    say(f"period {period} is finished")


async def take_part() -> None:
    """Run the job whenever it is our turn, until asked to end; a run that has begun is finished."""
    stopping = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    async with aiolock.connect(URL) as locks:
        busy = asyncio.Lock()

        async def job() -> None:
            async with busy:
                await one_run(locks)

        say("takes part")
        # Errors of the job are logged, and the next period is another try. While the database
        # cannot be reached, the client tries again.
        running = asyncio.create_task(cleaning(locks).run(job))
        ended = asyncio.create_task(stopping.wait())
        await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED)
        async with busy:  # not in the middle of a run
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def clock(when: float) -> str:
    """A Unix time as text for people."""
    return f"{datetime.fromtimestamp(when, UTC):%H:%M:%S} UTC"


async def show() -> None:
    """Print the holder of the job, since when and until when, the waiters, and the last runs."""
    async with aiolock.connect(URL) as locks:
        status = await cleaning(locks).status()
    for holder in status.holders:
        until = datetime.now(UTC) + timedelta(seconds=holder.remaining)
        say(
            f"{holder.host}:{holder.pid} has run it since {clock(holder.since)}, its lease lasts"
            f" until {clock(until.timestamp())} unless it is renewed"
            + ("" if holder.alive else "; it is gone")
        )
    if not status.holders:
        when = f"in {status.closed:.1f} s" if status.closed else "at once"
        say(f"nobody runs it, the next run may begin {when}")
    for waiter in status.waiters:
        gone = "" if waiter.alive else "; it is gone"
        say(
            f"{waiter.host}:{waiter.pid} is number {waiter.place} in the queue,"
            f" since {clock(waiter.since)}{gone}"
        )
    for period, host, pid, fence, started, finished in await sql(LAST_RUNS):
        end = f"to {finished}" if finished else "on, and is not finished"
        say(f"period {period}: {host}:{pid}, fence {fence}, from {started} {end}")


async def main(command: str) -> None:
    """Make the table, take part, or look."""
    match command:
        case "init":
            await sql(TABLE)
        case "run":
            await take_part()
        case "status":
            await show()
        case _:
            sys.exit(f"init, run or status, not {command!r}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
