"""What only databases are measured for: vacuums, long transactions, notifications, statements."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator, Sequence

import psycopg

from benchmarks import measures
from benchmarks.crew import Worker
from benchmarks.databases import Servers
from benchmarks.redis_server import RedisServer
from benchmarks.scenarios import Outcome, Size
from tests.support.databases import PostgresServer

WRITERS = 8
SLICES = 5
"""So many crowds, one after the other, while a snapshot is held."""
_TABLES = "aiolock.names, aiolock.waiters, aiolock.grants"


def _postgres(server: RedisServer) -> PostgresServer:
    assert isinstance(server, Servers)
    return server.postgres


async def _rate(server: RedisServer, crew: Sequence[Worker], size: Size) -> float:
    """Entries a second of some tasks of one process on one name, on new connections."""
    tasks, times = size.yielding
    crowd = await measures.one_name(server, crew[:1], tasks=tasks, times=times, limit=size.limit)
    return crowd.rate


async def vacuumed(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Before and after a VACUUM of empty tables, and of tables that a snapshot has bloated."""
    database = _postgres(server)
    before = await _rate(server, crew, size)
    database.execute(f"TRUNCATE {_TABLES}")
    database.execute(f"VACUUM ANALYZE {_TABLES}")
    scans = _full_scans(database)
    after = await _rate(server, crew, size)
    with _snapshot(database, "postgres"):
        await _rate(server, crew, size)
    database.execute(f"VACUUM ANALYZE {_TABLES}")
    bloated = await _rate(server, crew, size)
    return Outcome(
        {
            "vacuum.before.rate": before,
            "vacuum.after.rate": after,
            "vacuum.bloated.rate": bloated,
            "vacuum.scans": float(_full_scans(database) - scans),
        }
    )


def _full_scans(database: PostgresServer) -> int:
    deadline = time.monotonic() + 10
    while database.backends():  # what serves a connection tells its counts when it ends
        if time.monotonic() > deadline:
            raise TimeoutError("a client has closed, and is still connected 10 s later")
        time.sleep(0.01)
    ((scans,),) = database.execute(
        "SELECT sum(seq_scan) FROM pg_stat_user_tables"
        " WHERE schemaname = 'aiolock' AND relname IN ('names', 'waiters', 'grants')"
    )
    return int(scans)


async def snapshots(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """While a transaction is open in another database, and in the same: the last of its time."""
    database = _postgres(server)
    figures: dict[str, float] = {}
    for where, name in (("elsewhere", "elsewhere"), ("here", "postgres")):
        figures[f"snapshot.{where}.before.rate"] = await _rate(server, crew, size)
        with _snapshot(database, name):
            rates = [await _rate(server, crew, size) for _ in range(SLICES)]
        figures[f"snapshot.{where}.rate"] = rates[-1]
    database.execute(f"VACUUM {_TABLES}")
    return Outcome(figures)


@contextlib.contextmanager
def _snapshot(database: PostgresServer, name: str) -> Generator[None]:
    """A transaction in the database of this name that sees the past."""
    with psycopg.connect(database.url(), dbname=name) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield


async def writers(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Commits a second, of tasks that each have a connection and a row, while others listen."""
    with contextlib.ExitStack() as stack:
        for number in range(WRITERS):
            ear = stack.enter_context(contextlib.closing(_postgres(server).connect()))
            ear.execute(f'LISTEN "aiolock:ear{number}"'.encode())
        cost = await measures.many_names(server, crew[0], tasks=WRITERS, operations=8 * size.each)
    return Outcome({"writers.rate": cost.rate, "writers.server.us": cost.server})


async def waiting(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Statements of a process whose tasks all wait, while nothing happens."""
    sent = await measures.waiters(
        server, crew[:2], asyncio.Lock(), tasks=size.lines[0], watch=size.watch
    )
    return Outcome({"waiting.statements": sent})
