"""PostgreSQL behind a pooler: nothing of aiolock's is left in a session that others use as well."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal

import psycopg
import pytest

import aiolock
from aiolock.cli.main import main
from aiolock.stores.postgres._schema import PROTOCOL
from tests.support import databases
from tests.support.databases import PgBouncer, PostgresServer
from tests.support.failures import queued, soon, take

Mode = Literal["transaction", "session", "statement"]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own."""
    databases.need_postgres()
    if not shutil.which("pgbouncer"):
        pytest.skip("no pgbouncer here")
    with PostgresServer() as server:
        yield server


# --- What is in a session

_STATE = """
    SELECT json_build_object(
        'settings', (SELECT json_object_agg(name, setting) FROM pg_settings
            WHERE name NOT IN ('transaction_isolation', 'transaction_read_only')),
        'flushed', current_setting('aiolock.flushed', true),
        'out', coalesce(current_setting('aiolock.out', true), ''),
        'prepared', (SELECT json_agg(name) FROM pg_prepared_statements),
        'cursors', (SELECT json_agg(name) FROM pg_cursors WHERE name <> ''),
        'channels', (SELECT json_agg(c) FROM pg_listening_channels() c),
        'temporary', (SELECT json_agg(relname) FROM pg_class
            WHERE relnamespace = pg_my_temp_schema()),
        'locks', (SELECT json_agg(objid) FROM pg_locks
            WHERE pid = pg_backend_pid() AND locktype = 'advisory'))
    """


def sessions(pooler: PgBouncer, count: int = 4, *, loaded: bool = False) -> dict[int, Any]:
    """What each session of the pool has, by the process that serves it.

    All of them are in use at once, so each is looked at. With ``loaded``, each has loaded PL/pgSQL,
    whose settings are listed from then on.
    """
    with contextlib.ExitStack() as stack:
        found = dict[int, Any]()
        for _ in range(count):
            connection = stack.enter_context(contextlib.closing(psycopg.connect(pooler.url())))
            stack.callback(connection.rollback)  # else the pooler ends the session
            connection.autocommit = count == 1  # a pooler of statements takes no transaction
            connection.prepare_threshold = None
            if loaded:
                connection.execute("DO $$ BEGIN END $$")
            ((pid, state),) = connection.execute(
                f"SELECT pg_backend_pid(), ({_STATE})".encode()
            ).fetchall()
            found[pid] = state
        assert len(found) == count
        for state in found.values():
            assert not any(
                state[each] for each in ("prepared", "cursors", "channels", "temporary", "locks")
            )
        return found


@contextlib.asynccontextmanager
async def traffic(pooler: PgBouncer, clients: int) -> AsyncGenerator[None]:
    """Others that use the pool all the time."""

    async def use() -> None:
        async with await psycopg.AsyncConnection[Any].connect(
            pooler.url(), autocommit=True, prepare_threshold=None
        ) as connection:
            while not ended.is_set():
                await connection.execute("SELECT count(*) FROM pg_class")

    ended = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(use())
        try:
            yield
        finally:
            ended.set()


# --- Refused


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("mode", "settings", "count", "busy"),
    [
        ("transaction", (), 4, 0),
        ("transaction", (), 4, 3),
        ("transaction", ("server_round_robin = 1",), 4, 0),
        ("transaction", ("server_round_robin = 1", "default_pool_size = 2"), 2, 0),
        ("transaction", ("server_round_robin = 1", "default_pool_size = 3"), 3, 0),
        ("transaction", ("default_pool_size = 1",), 1, 0),
        ("statement", ("default_pool_size = 1",), 1, 0),
    ],
    ids=["last", "busy", "first", "first-of-two", "first-of-three", "one", "statements"],
)
async def test_bare_url_of_a_shared_session_is_refused_and_leaves_no_state(
    server: PostgresServer, mode: Mode, settings: Sequence[str], count: int, busy: int
) -> None:
    """Whichever session the pooler gives next, each is as it was; the error says what to write."""
    with PgBouncer(server, mode=mode, settings=settings) as pooler:
        before = sessions(pooler, count)
        for url in (pooler.url(), pooler.url("?durable=0")):
            async with traffic(pooler, busy):
                with pytest.raises(aiolock.StoreError, match=r"pooler.*pooled=1.*listen_url="):
                    await aiolock.connect(url).open()
        assert sessions(pooler, count) == before


@pytest.mark.one_loop
async def test_listen_url_through_a_pooler_is_refused_and_leaves_no_state(
    server: PostgresServer,
) -> None:
    """The second URL must lead to the server itself, and is not believed without a look."""
    with PgBouncer(server) as pooler:
        before = sessions(pooler, loaded=True)
        url = pooler.url(f"?pooled=1&listen_url={pooler.url()}")
        with pytest.raises(aiolock.StoreError, match="URL of the server itself"):
            await aiolock.connect(url).open()
        assert sessions(pooler, loaded=True) == before


@pytest.mark.one_loop
async def test_open_cancelled_at_any_time_leaves_no_state_in_the_sessions(
    server: PostgresServer,
) -> None:
    """A client that is given up so has set nothing before it knew whose session it was."""
    with PgBouncer(server) as pooler:
        before = sessions(pooler)
        for milliseconds in range(0, 60, 3):
            with contextlib.suppress(TimeoutError, aiolock.StoreError):
                async with asyncio.timeout(milliseconds / 1000):
                    await aiolock.connect(pooler.url()).open()
        assert sessions(pooler) == before


# --- In use


async def use_all(ours: aiolock.LockClient, theirs: aiolock.LockClient) -> None:
    """Each function in the database is called."""
    lease = await take(ours.lock("x", ttl=60))
    waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
    await queued(ours.lock("x"), 1)
    await lease.release()
    second = await soon(waiting)
    await ours.request_release("x")
    await second.extend(30)
    assert await ours.lock("x").break_(second.fence)
    with contextlib.suppress(aiolock.LeaseLost):
        await second.release()
    async with ours.semaphore("s", 2), theirs.semaphore("s", 2):
        pass
    async with ours.rwlock("r").write() as write:
        await write.downgrade()
    await ours.event("e").set()
    await theirs.event("e").wait()
    async with ours.once("o", remember=60) as first:
        assert first
    await ours.snapshot()


async def killed(url: str) -> None:
    """A process that holds a lock, and waits for another, is killed."""
    code = (
        "import asyncio, sys, aiolock\n"
        "async def main():\n"
        "    async with aiolock.connect(sys.argv[1]) as client:\n"
        "        async with client.lock('killed'):\n"
        "            print(flush=True)\n"
        "            await asyncio.gather(*(again(client) for _ in range(20)))\n"
        "async def again(client):\n"
        "    while True:\n"
        "        async with client.lock('again'):\n"
        "            pass\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, url, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readline(), 20)
    await asyncio.sleep(0.05)  # anywhere in what it does again and again
    process.send_signal(signal.SIGKILL)
    await process.wait()


@pytest.mark.one_loop
@pytest.mark.parametrize("durable", [1, 0])
async def test_pooled_client_that_worked_or_was_killed_leaves_no_state_in_sessions(
    server: PostgresServer, durable: int
) -> None:
    """Whatever it does, and also when it is killed: each session of the pool is as it was."""
    if not durable:
        server.execute("ALTER ROLE app SET client_encoding = 'LATIN1'")
    with PgBouncer(server) as pooler:
        before = sessions(pooler, loaded=True)
        url = pooler.url(f"?pooled=1&durable={durable}&listen_url={server.url('app')}")
        async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
            await use_all(ours, theirs)
            assert sessions(pooler, loaded=True) == before
        await killed(url)
        # The pooler ends a session whose client has gone within a transaction, and makes another.
        assert [*sessions(pooler, loaded=True).values()] == [*before.values()]


@pytest.mark.one_loop
async def test_pooled_transaction_has_the_settings_of_an_own_session(
    server: PostgresServer,
) -> None:
    """They are set for the transaction alone; so is what `durable=0` asks for."""
    see = "CREATE OR REPLACE FUNCTION aiolock.read(n bytea) RETURNS text LANGUAGE sql AS"
    shown = ("enable_seqscan", "lock_timeout", "statement_timeout", "synchronous_commit")
    settings = ", ".join(f"current_setting('{each}')" for each in shown)
    server.execute("CREATE TABLE seen (what text[])")
    server.execute("GRANT ALL ON seen TO app")
    server.execute(f"{see} $$ INSERT INTO public.seen VALUES (ARRAY[{settings}]); SELECT '0 ' $$")
    with PgBouncer(server) as pooler:
        url = pooler.url(f"?pooled=1&durable=0&listen_url={server.url('app')}")
        async with aiolock.connect(url) as client:
            await client.event("e").is_set()
    assert server.execute("SELECT what FROM seen") == [(["off", "2s", "3s", "off"],)]


@pytest.mark.one_loop
async def test_push_is_sent_despite_settings_left_in_the_pool(server: PostgresServer) -> None:
    """What an earlier version has left in the sessions means nothing to this one."""
    server.execute("ALTER ROLE app SET aiolock.flushed = on")
    server.execute("ALTER ROLE app SET aiolock.tells = true")
    with PgBouncer(server) as pooler:
        url = pooler.url(f"?pooled=1&listen_url={server.url('app')}")
        async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
            lease = await take(ours.lock("x", ttl=60))
            waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
            await queued(ours.lock("x"), 1)
            await lease.release()
            await (await soon(waiting)).release()


@pytest.mark.one_loop
async def test_session_pooler_without_reset_query_gets_its_sessions_back_unchanged(
    server: PostgresServer,
) -> None:
    """Its URL is enough; a client that closes clears the session on which it listened."""
    with PgBouncer(server, mode="session", settings=("server_reset_query =",)) as pooler:
        before = sessions(pooler, loaded=True)
        async with aiolock.connect(pooler.url()) as ours, aiolock.connect(pooler.url()) as theirs:
            await use_all(ours, theirs)
        assert sessions(pooler, loaded=True) == before


# --- The schema


@pytest.mark.one_loop
@pytest.mark.parametrize("make", ["init-db", "create=1"])
async def test_schema_made_through_a_pooler_leaves_no_state_in_the_sessions(
    server: PostgresServer, capsys: pytest.CaptureFixture[str], make: str
) -> None:
    """For the first time, and again; also where it fails."""
    server.execute("GRANT CREATE ON DATABASE postgres TO app")
    server.execute("DROP SCHEMA aiolock CASCADE")
    create: Callable[[PgBouncer], Awaitable[None]]

    async def by_command(pooler: PgBouncer) -> None:
        assert await asyncio.to_thread(main, ["init-db", pooler.url()]) == 0

    async def by_client(pooler: PgBouncer) -> None:
        url = pooler.url(f"?create=1&pooled=1&listen_url={server.url('app')}")
        async with aiolock.connect(url) as client, client.lock("x"):
            pass

    create = by_command if make == "init-db" else by_client
    with PgBouncer(server) as pooler:
        before = sessions(pooler, loaded=True)
        for _ in range(2):
            await create(pooler)
            assert server.execute("SELECT aiolock.protocol()") == [(PROTOCOL,)]
            assert sessions(pooler, loaded=True) == before
        assert main(["init-db", pooler.url(), "--role", "nobody there"]) == 1
        assert "nobody there" in capsys.readouterr().err
        assert sessions(pooler, loaded=True) == before
