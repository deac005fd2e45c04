"""The schema is replaced by that of another version while clients are at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import psycopg
import pytest

import aiolock
from aiolock.stores import postgres
from aiolock.stores.postgres import _schema
from tests.support import databases
from tests.support.databases import PostgresServer

# As a later version changes the tables: what was compiled for them before does not fit any more.
_CHANGE = """
ALTER TABLE aiolock.waiters DROP COLUMN weight;
ALTER TABLE aiolock.waiters ADD COLUMN weight bigint NOT NULL DEFAULT 1000;
ALTER TABLE aiolock.grants DROP COLUMN weight;
ALTER TABLE aiolock.grants ADD COLUMN weight bigint NOT NULL DEFAULT 1000;
"""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own."""
    databases.need_postgres()
    with PostgresServer() as own:
        yield own


async def _in_turn(client: aiolock.LockClient, fences: list[int], stop: asyncio.Event) -> None:
    while not stop.is_set():
        async with client.lock("x") as lease:
            fences.append(lease.fence)


@pytest.mark.one_loop
async def test_clients_at_work_go_on_while_the_tables_are_changed(
    server: PostgresServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call fails that was under way: it is made again, with the new functions."""
    statements = _schema.statements()
    monkeypatch.setattr(_schema, "statements", lambda: _CHANGE + statements)
    url, stop, fences = server.url("app"), asyncio.Event(), list[int]()
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(aiolock.connect(url, prefix=prefix)) for _ in range(4)
        ]
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(_in_turn(client, fences, stop))
            for _ in range(5):
                had = len(fences)
                await asyncio.to_thread(postgres.create_schema, server.url(), "app")
                async with asyncio.timeout(30):
                    while len(fences) <= had + 4:  # noqa: ASYNC110  # they tell nobody
                        await asyncio.sleep(0.001)
            stop.set()
    assert fences == sorted(set(fences))


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("older", "table"),
    [
        ("ALTER TABLE aiolock.names RENAME bucket TO earlier", "names"),
        ("DROP INDEX aiolock.clients_by_seen", "grants"),
    ],
    ids=["column", "index"],
)
async def test_init_db_gives_up_on_a_table_that_a_transaction_keeps(
    server: PostgresServer, prefix: str, monkeypatch: pytest.MonkeyPatch, older: str, table: str
) -> None:
    """The error says which process keeps it, and nothing was made; clients go on all the time."""
    statements = _schema.statements()
    sooner = statements.replace("interval '10 seconds'", "interval '1 second'")
    assert sooner != statements
    monkeypatch.setattr(_schema, "statements", lambda: sooner)
    made = (
        "SELECT to_regclass('aiolock.clients_by_seen') IS NOT NULL AND EXISTS (SELECT FROM"
        " pg_attribute WHERE attrelid = 'aiolock.names'::regclass AND attname = 'bucket')"
    )
    async with aiolock.connect(server.url("app"), prefix=prefix) as client:
        server.execute(older)
        with contextlib.closing(psycopg.connect(server.url())) as keeper:
            keeper.execute(f"SELECT FROM aiolock.{table}".encode())
            pid = keeper.info.backend_pid
            with pytest.raises(aiolock.StoreError, match=rf"processes: (\d+, )*{pid}\b.*end it"):
                await asyncio.to_thread(postgres.create_schema, server.url(), "app")
            assert server.execute(made) == [(False,)]
        await asyncio.to_thread(postgres.create_schema, server.url(), "app")
        assert server.execute(made) == [(True,)]
        async with client.lock("x", timeout=20):
            pass


@pytest.mark.one_loop
async def test_init_db_names_what_depends_on_a_function_that_it_replaces(
    server: PostgresServer,
) -> None:
    """It is not dropped with the function; nothing else is changed, and the next run succeeds."""
    server.execute(
        "CREATE FUNCTION aiolock.status(n bytea, ws bigint) RETURNS text LANGUAGE sql"
        " AS $$ SELECT 'of an earlier version' $$"
    )
    server.execute("CREATE VIEW public.held AS SELECT aiolock.status('x', 1)")
    with pytest.raises(aiolock.StoreError, match=r"view public\.held depends on .* make it anew"):
        await asyncio.to_thread(postgres.create_schema, server.url(), "app")
    assert server.execute("SELECT * FROM public.held") == [("of an earlier version",)]
    server.execute("DROP VIEW public.held")
    await asyncio.to_thread(postgres.create_schema, server.url(), "app")
