"""What is PostgreSQL's own: connections, restarts, standbys, poolers, rights, transactions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import aiolock
from aiolock import protocol
from aiolock.cli.main import main
from aiolock.protocol import (
    GRANTS,
    PART,
    WAS_HOLDER,
    Adopt,
    Break,
    Detach,
    Form,
    Post,
    ReadPosted,
    ReadStatus,
    Rule,
)
from aiolock.stores import postgres
from aiolock.stores.postgres import (
    _codec,
    _greeting,
    _link,
    _listener,
    _notices,
    _pipeline,
    _reading,
    _schema,
    _settings,
    _store,
    _wire,
)
from aiolock.stores.postgres._calls import Call, text
from aiolock.stores.postgres._errors import Failed
from aiolock.stores.postgres._store import PostgresStore
from aiolock.testing._peer import LONG, PLAIN, READER, Peer
from tests.support import databases
from tests.support.databases import PgBouncer, PostgresServer, Standby
from tests.support.failures import pair, parent_that_died, queued, soon, start_waiter, take, until
from tests.support.worlds import virtual


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server of the test's own, to stop and to change."""
    databases.need_postgres()
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def own_rights() -> Iterator[PostgresServer]:
    """One whose tests give rights back that they have taken."""
    databases.need_postgres()
    with PostgresServer() as server:
        yield server


def store_of(client: aiolock.LockClient) -> PostgresStore:
    """The store behind a client."""
    store = client._engine.store
    assert isinstance(store, PostgresStore)
    return store


def ears(server: PostgresServer) -> set[int]:
    """The processes of the server that serve those that listen."""
    rows = server.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")
    return {pid for (pid,) in rows}


def commands(server: PostgresServer) -> set[int]:
    """Those that carry out commands."""
    return set(server.backends()) - ears(server)


async def counted(server: PostgresServer, connected: Sequence[int] = ()) -> None:
    """Wait until it has counted all that was done on connections that are closed.

    What serves a connection keeps its counts for itself, for up to a second, and tells them when it
    ends, which is after the client has closed. ``connected`` are the processes that go on.
    """
    others = (
        b"SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        b" AND pid <> ALL (pg_backend_pid() || %s::int[])"
    )
    with contextlib.closing(server.connect()) as connection:
        await until(lambda: not connection.execute(others, ([*connected],)).fetchall())


def terminate(server: PostgresServer, pids: set[int]) -> None:
    """End these connections, from the server's side."""
    assert pids
    server.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) pid", [*pids])


# --- Connections


async def test_client_with_fifty_waiters_has_two_connections_and_none_after_close(
    own_postgres: PostgresServer,
) -> None:
    """A client has two, whatever waits, and none is left when it closes."""
    async with aiolock.connect(own_postgres.url("app")) as client, client.lock("x"):
        waiting = [asyncio.create_task(take(client.lock("x"))) for _ in range(50)]
        await queued(client.lock("x"), 50)
        assert len(own_postgres.backends()) == 2
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    await until(lambda: not own_postgres.backends())
    assert own_postgres.execute("SELECT count(*) FROM aiolock.clients") == [(0,)]


async def test_commands_connection_ended_by_the_server_loses_no_holder_or_waiter(
    own_postgres: PostgresServer,
) -> None:
    """What was under way is sent again; who holds and who waits notices nothing."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        terminate(own_postgres, commands(own_postgres))
        await lease.release()
        second = await soon(waiting, within=5)
        assert second.fence > lease.fence
        await second.release()


async def test_acquire_under_way_when_its_connection_ends_is_sent_again(
    own_postgres: PostgresServer,
) -> None:
    """It waits for somebody else's lock, and its connection is ended in the midst of that."""
    async with aiolock.connect(own_postgres.url("app")) as client:
        with contextlib.closing(psycopg.connect(own_postgres.url())) as other:
            key = b"aiolock\0lock:x"
            other.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(encode(%s, 'hex'), 20))", (key,)
            )
            asking = asyncio.create_task(take(client.lock("x")))
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            await until(lambda: own_postgres.execute(waits) == [(1,)])
            terminate(own_postgres, commands(own_postgres))
        lease = await asyncio.wait_for(asking, 3)
        await lease.release()


class Hasty(threading.Thread):
    """A proxy that ends its first connections with a reset, when it is told to."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._to = port
        self.url = f"postgresql://app@127.0.0.1:{self._listener.getsockname()[1]}/postgres"
        self._links: list[tuple[socket.socket, socket.socket]] = []
        self.answers = 0
        """How often it has passed on something to a client."""
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link = (
                    self._listener.accept()[0],
                    socket.create_connection(("127.0.0.1", self._to)),
                )
                self._links.append(link)
                for one, other, answers in ((*link, 0), (*link[::-1], 1)):
                    flow = threading.Thread(target=self._flow, args=(one, other, answers))
                    flow.daemon = True
                    flow.start()

    def _flow(self, one: socket.socket, other: socket.socket, answers: int) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
                self.answers += answers
            other.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """End those that there are."""
        for link in self._links:
            for end in link:
                with contextlib.suppress(OSError):  # the other end has gone first
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RD)
                end.close()
        self._links.clear()

    def stop(self) -> None:
        """Take no more, and end all."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join()
        self.reset()


async def test_pipe_reset_between_an_answer_and_a_write_reconnects(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """An answer has come, then a reset, and then something is written: it connects again."""
    proxy = Hasty(postgres_server.port)
    try:
        async with aiolock.connect(proxy.url, prefix=prefix) as client:
            store = store_of(client)
            before = proxy.answers
            asked: list[asyncio.Future[Any]] = [store.submit(ReadPosted("x"))]
            await asyncio.sleep(0)
            # When that is answered; and a flush behind it, which is written as well.
            asked += [store.submit(Post("x", 0, token="t", declared=3, value="", remember=60_000))]
            give_up = time.monotonic() + 10
            while proxy.answers == before:  # meanwhile the loop does not run
                assert time.monotonic() < give_up, "no answer"
                time.sleep(0.005)
            proxy.reset()
            time.sleep(0.05)
            await asyncio.wait_for(asyncio.gather(*asked), 5)
            async with client.lock("x", timeout=5):
                pass
    finally:
        proxy.stop()


async def test_listening_connection_ended_by_the_server_misses_no_grant(
    own_postgres: PostgresServer,
) -> None:
    """It listens on another one, and asks for what it may have missed."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        terminate(own_postgres, ears(own_postgres))
        await lease.release()
        await (await soon(waiting, within=5)).release()
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        await (await soon(waiting, within=5)).release()


async def test_release_past_a_killed_waiter_grants_the_next_at_once(
    own_postgres: PostgresServer,
) -> None:
    """Its session's lock is gone with it, so it is passed over in the step that hands on."""
    url = own_postgres.url("app")
    # Others have had the time to come back since this server was started.
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    async with pair(url) as (ours, theirs):
        lease = await take(ours.lock("x", ttl=60))
        process = start_waiter(url)
        try:
            await queued(ours.lock("x"), 1, process=process)
            waiting = asyncio.create_task(take(theirs.lock("x")))
            await queued(ours.lock("x"), 2, process=process)
        finally:
            process.kill()
            process.wait()
        await until(lambda: len(own_postgres.backends()) == 4)
        assert [each.alive for each in (await ours.lock("x").status()).waiters] == [False, True]
        await lease.release()
        await (await asyncio.wait_for(waiting, 1.4)).release()  # a claim is 3 s


async def test_fork_of_a_client_keeps_no_connection_of_its_dead_parent_open(
    own_postgres: PostgresServer,
) -> None:
    """A fork has let go of the parent's connections, which end with the parent."""
    async with parent_that_died(own_postgres.url("app")):
        await until(lambda: not own_postgres.backends())


def holds_a_socket(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a child that is forked now has this connection."""
    number = connection.pgconn.socket
    child = os.fork()
    if not child:  # pragma: no cover
        os._exit(stat.S_ISSOCK(os.fstat(number).st_mode))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


async def test_fork_while_a_connection_is_greeted_does_not_inherit_the_socket(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child does not keep it, though nobody uses it yet: it listens soon."""
    holds = list[bool]()
    greeting = _listener.Listener._greet

    async def greets(self: Any, connection: Any) -> None:
        holds.append(holds_a_socket(connection))
        await greeting(self, connection)

    monkeypatch.setattr(_listener.Listener, "_greet", greets)
    async with aiolock.connect(postgres_server.url("app")):
        assert holds == [False]


async def test_fork_while_a_connection_is_made_has_it_replaced_by_another(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child may have a copy of it: it is ended, and another one is made."""
    made = list[psycopg.AsyncConnection[Any]]()
    connect = psycopg.AsyncConnection.connect
    forks = {1, 3}

    async def connects(*arguments: Any, **options: Any) -> psycopg.AsyncConnection[Any]:
        made.append(await connect(*arguments, **options))
        if len(made) in forks:
            assert holds_a_socket(made[-1])
        return made[-1]

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connects)
    async with aiolock.connect(postgres_server.url("app")) as client, client.lock("x"):
        assert [each.closed for each in made] == [True, False, True, False]
        assert not holds_a_socket(made[1])
        assert not holds_a_socket(made[3])


async def test_link_made_while_another_thread_forks_waits_for_the_fork() -> None:
    """Nothing is added to what the fork goes through meanwhile."""
    made = threading.Event()

    def makes() -> None:
        _link.Link(
            "connect_timeout=3", greet=_never, on_up=_never, on_down=_never, on_failing=_never
        )
        made.set()

    _link._before_fork()
    thread = threading.Thread(target=makes)
    thread.start()
    assert not made.wait(0.2)
    _link._after_fork()
    assert made.wait(10)
    thread.join()


_SETTLED = "SELECT clock_timestamp() > pg_postmaster_start_time() + interval '5 s'"


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_server_restart_keeps_holder_and_queue(
    own_postgres: PostgresServer, how: str
) -> None:
    """All that it knew it knows again: who holds goes on, who waits is next."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        async with ours.lock("x", ttl=60) as lease:
            waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
            await queued(ours.lock("x"), 1)
            await asyncio.to_thread(own_postgres.restart, how)
            await lease.extend(60)
        second = await asyncio.wait_for(waiting, 10)
        assert second.fence > lease.fence
        await second.release()


async def test_acquire_on_a_stopped_server_raises_store_error_naming_it(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in time, that says where; and the next one is served when it goes on."""
    async with aiolock.connect(own_postgres.url("app")) as client:
        where = f"127.0.0.1:{own_postgres.port}"
        with own_postgres.stopped(), monkeypatch.context() as patched:
            patched.setattr(_pipeline, "REPLY_TIMEOUT", 0.4)
            patched.setattr(_pipeline, "COMMAND_TIMEOUT", 1.0)
            with pytest.raises(aiolock.StoreError, match=where):
                await client.lock("x").acquire()
        async with client.lock("x"):
            assert await client.lock("x").locked()


@pytest.mark.parametrize("pooled", [False, True])
async def test_idle_session_timeout_of_the_role_does_not_end_the_connections(
    own_rights: PostgresServer, *, pooled: bool
) -> None:
    """Whatever the role has set: who listens is idle for as long as nothing comes."""
    url = own_rights.url("app")
    setting = "SELECT name FROM pg_settings WHERE name = 'idle_session_timeout'"
    if not own_rights.execute(setting):
        pytest.skip("this PostgreSQL ends no idle sessions")
    own_rights.execute("ALTER ROLE app SET idle_session_timeout = '300ms'")
    try:
        async with aiolock.connect(f"{url}?pooled=1&listen_url={url}" if pooled else url) as client:
            store = store_of(client)
            before = store._pipe._link.connection, store._listener._link.connection
            await asyncio.sleep(1)
            if not pooled:
                assert store._pipe._link.connection is before[0]
            assert store._listener._link.connection is before[1]
    finally:
        own_rights.execute("ALTER ROLE app RESET idle_session_timeout")


async def test_listener_that_hears_nothing_moves_to_another_connection(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes where it listens, though it is connected: it listens on another connection."""
    monkeypatch.setattr(_store, "HEARTBEAT", 0.2)
    async with aiolock.connect(postgres_server.url("app")) as client:
        monkeypatch.setattr(_store, "HEARTBEAT_TIMEOUT", 0.4)  # not before: opening has as long
        listener = store_of(client)._listener
        before = listener._connection
        assert before is not None
        asyncio.get_running_loop().remove_reader(listener._socket)
        await until(lambda: listener._connection not in (None, before))


async def test_release_blocked_by_a_foreign_row_lock_is_tried_again(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock, or a lock that somebody has on our rows, is no error: it is tried again."""
    monkeypatch.setitem(_settings.PINNED, "lock_timeout", "50")
    async with aiolock.connect(own_postgres.url("app")) as client:
        lease = await take(client.lock("x"))
        with contextlib.closing(psycopg.connect(own_postgres.url())) as other:
            other.execute("SELECT FROM aiolock.grants FOR UPDATE")
            releasing = asyncio.create_task(lease.release())
            await asyncio.sleep(0.2)
            assert not releasing.done()
        assert await releasing
        assert not await client.lock("x").locked()


@pytest.mark.one_loop
async def test_names_and_values_of_unusual_characters_are_kept_as_they_are(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """Names and values are bytes to the database: blanks at the end, case, NUL are their own."""
    names = ["a", "A", "a ", "a\0", "ü" * 512, "🙂" * 512, "'; DROP SCHEMA aiolock"]
    async with aiolock.connect(postgres_server.url("app"), prefix=prefix) as client:
        leases = []
        for name in names:
            try:
                leases.append(await take(client.lock(name, timeout=1)))
            except ValueError:
                assert "\0" in name
        for lease in leases:
            assert [each.fence for each in (await client.lock(lease.name).status()).holders] == [
                lease.fence
            ]
            await lease.release()
        async with client.election("e").campaign("x" * 10_000):
            leader = await client.election("e").leader()
            assert leader is not None
            assert leader.value == "x" * 10_000


async def test_batch_with_a_failing_command_carries_out_the_others(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """The others are carried out all the same."""
    async with aiolock.connect(postgres_server.url("app"), prefix=prefix) as client:
        store = store_of(client)
        good = [store.submit(ReadPosted("x")) for _ in range(3)]
        bad = store._pipe.call(Call("read", "x", [b"\\xzz"], text))
        more = [store.submit(ReadPosted("x")) for _ in range(3)]
        answers = await asyncio.gather(*good, bad, *more, return_exceptions=True)
        assert isinstance(answers[3], aiolock.StoreError)
        assert [answer.count for answer in answers if hasattr(answer, "count")] == [0] * 6


@pytest.mark.one_loop
async def test_acquire_of_names_in_opposite_orders_causes_no_database_deadlock(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """Clients that want the same names in opposite orders, at once, never wait for each other."""
    url = postgres_server.url("app")
    names = [f"n{number}" for number in range(64)]
    async with (
        aiolock.connect(url, prefix=prefix) as ours,
        aiolock.connect(url, prefix=prefix) as theirs,
    ):

        async def through(client: aiolock.LockClient, order: list[str]) -> None:
            for _ in range(5):
                await asyncio.gather(*(once(client, name) for name in order))

        async def once(client: aiolock.LockClient, name: str) -> None:
            async with client.lock(name):
                pass

        await asyncio.gather(through(ours, names), through(theirs, names[::-1]))
    await counted(postgres_server)
    rows = postgres_server.execute("SELECT deadlocks FROM pg_stat_database")
    assert all(count == 0 for (count,) in rows)


# --- What is told behind a transaction

RAISES = "RAISE 'the test says so'"
ENDS = "PERFORM pg_terminate_backend(pg_backend_pid())"
"""Its connection is ended by the server, and nothing of it is done."""


def at_first(
    server: PostgresServer, how: str, function: str = "flush", given: str = "", *, times: int = 1
) -> None:
    """What tells others does this instead, the first times that there is something to tell."""
    something = "true" if given else "coalesce(current_setting('aiolock.out', true), '') <> ''"
    passed = ", ".join(f"${place}" for place, _ in enumerate(given.split(","), 1)) if given else ""
    server.execute(f"ALTER FUNCTION aiolock.{function}({given}) RENAME TO _{function}")
    server.execute(f"CREATE SEQUENCE {function}_calls")
    server.execute(
        f"CREATE FUNCTION aiolock.{function}({given}) RETURNS void LANGUAGE plpgsql"
        " SECURITY DEFINER AS $$ BEGIN"
        f" IF {something} AND nextval('public.{function}_calls') <= {times} THEN {how}; END IF;"
        f" PERFORM aiolock._{function}({passed}); END $$"
    )
    server.execute(f"GRANT EXECUTE ON FUNCTION aiolock.{function}({given}) TO app")


NOTIFY = "bytea, bigint, text, bigint"
"""The arguments of the function that finds the clients to notify in the tables."""


async def hand_off(
    ours: aiolock.LockClient, theirs: aiolock.LockClient, *, after: float = 0.0
) -> None:
    """Theirs waits for ours, and has it long before a lease ends."""
    lease = await take(ours.lock("x", ttl=60))
    waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
    await queued(theirs.lock("x"), 1)
    await lease.release()
    second = await soon(waiting, after=after)
    assert second.fence > lease.fence
    await second.release()


@pytest.mark.parametrize(
    ("how", "logged"),
    [(RAISES, "asked again: the test says so"), (ENDS, "for 1 names")],
    ids=["raises", "ends"],
)
async def test_flush_that_fails_once_is_repeated_and_the_waiter_is_notified(
    own_postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
    logged: str,
) -> None:
    """Once, while the connection lives, or with it: who was granted the lock hears of it soon."""
    at_first(own_postgres, how)
    monkeypatch.setattr(_store, "HEARTBEAT", 60.0)
    monkeypatch.setattr(_pipeline, "REPLY_TIMEOUT", 60.0)
    async with pair(own_postgres.url("app")) as (ours, theirs):
        await hand_off(ours, theirs)
    assert logged in caplog.text


async def test_flush_that_failed_is_repeated_with_the_next_heartbeat(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again by each heartbeat, should nothing else try it."""
    at_first(own_postgres, RAISES, times=3)
    monkeypatch.setattr(_notices, "_PAUSES", (60.0,))
    monkeypatch.setattr(_store, "HEARTBEAT", 0.2)
    async with pair(own_postgres.url("app")) as (ours, theirs):
        await hand_off(ours, theirs)
    ((calls,),) = own_postgres.execute("SELECT last_value FROM flush_calls")
    assert calls >= 4


class FailingWire:
    """A connection on which each flush fails, in the next turn."""

    def __init__(self) -> None:
        self.sent = list[float]()

    def send(self, _: object, answered: Callable[[list[Any]], None]) -> None:
        loop = asyncio.get_running_loop()
        self.sent.append(loop.time())
        loop.call_soon(answered, [Failed("the test says so")])


@pytest.mark.one_loop
@virtual
async def test_failed_flush_is_sent_again_at_growing_pauses() -> None:
    """At once, then after pauses that grow up to a second; and after ten of them no more."""
    wire: Any = FailingWire()
    drop: Any = None  # the connection is not to blame
    notices = _notices.Notices(drop=drop, notify_again=drop, done=lambda: None)
    notices.flush(wire, {"x": b"x"})
    pending = [notices.pending]
    await asyncio.sleep(3600)
    pending.append(notices.pending)
    assert pending == [True, False]
    pauses = [later - before for before, later in itertools.pairwise(wire.sent)]
    assert pauses == pytest.approx([0, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1])


async def hand_on_untold(
    ours: aiolock.LockClient,
    theirs: aiolock.LockClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> aiolock.Lease:
    """Ours gives up to notify theirs, which asks when the lease of ours would have ended."""
    # A claim of 3 s would be about to end then: too late to enter, it is given back and asked for.
    monkeypatch.setattr("aiolock._engine.policy.CLAIM", 60_000)
    lease = await take(ours.lock("y", ttl=3))
    waiting = asyncio.create_task(take(theirs.lock("y", ttl=60)))
    await queued(theirs.lock("y"), 1)
    await lease.release()
    await until(lambda: "learns of that only when" in caplog.text)
    notices = store_of(ours)._pipe._notices
    assert not notices.pending
    assert not notices.unanswered(asyncio.get_running_loop().time() + 60)
    assert not waiting.done()
    return await asyncio.wait_for(waiting, 10)


async def test_flush_that_always_fails_is_given_up_and_the_waiter_asks_by_itself(
    own_rights: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The waiter asks by itself, and the next one is notified once the right is given back."""
    monkeypatch.setattr(
        "aiolock._engine.diagnostics.slow_monitor._EVERY", 60.0
    )  # labels would be flushed, too
    monkeypatch.setattr(_notices, "_PAUSES", (0.0, 0.05))
    monkeypatch.setattr(_store, "HEARTBEAT", 60.0)
    async with pair(own_rights.url("app")) as (ours, theirs):
        own_rights.execute("REVOKE EXECUTE ON FUNCTION aiolock.flush FROM app")
        try:
            lease = await hand_on_untold(ours, theirs, monkeypatch, caplog)
            await store_of(ours).submit(Post("z", 1, token="t", declared=2, value="", remember=1))
            await until(lambda: not store_of(ours)._pipe._notices.pending)
        finally:
            own_rights.execute("GRANT EXECUTE ON FUNCTION aiolock.flush TO app")
        await lease.release()
        await hand_off(ours, theirs)
    assert caplog.text.count("learns of that only when") == 1


async def test_notify_again_that_keeps_failing_is_given_up_and_the_waiter_asks(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The session has ended, and the tables cannot be asked: the waiter asks by itself."""
    at_first(own_postgres, ENDS)
    at_first(own_postgres, RAISES, "_notify", NOTIFY, times=3)
    monkeypatch.setattr(_notices, "_PAUSES", (0.0, 0.05))
    async with pair(own_postgres.url("app")) as (ours, theirs):
        await (await hand_on_untold(ours, theirs, monkeypatch, caplog)).release()
        await hand_off(ours, theirs)


async def test_release_whose_answer_and_flush_are_lost_still_notifies_the_waiter(
    own_postgres: PostgresServer,
) -> None:
    """The release is sent again, and finds nothing to do: who was granted the lock hears of it."""
    at_first(own_postgres, ENDS)
    async with pair(own_postgres.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x", ttl=60))
        waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
        await queued(ours.lock("x"), 1)
        pipe = store_of(ours)._pipe
        wire = pipe._wire
        assert wire is not None
        asyncio.get_running_loop().remove_reader(wire._socket)  # it reads no answer
        releasing = asyncio.create_task(lease.release())
        granted = "SELECT count(*) FROM aiolock.grants WHERE claimed"
        await until(lambda: own_postgres.execute(granted) == [(1,)])
        pipe._link.drop(ConnectionError("the test ends it"))
        await (await soon(waiting)).release()
        await releasing


async def test_break_whose_answer_is_lost_raises_store_error_of_unknown_outcome(
    own_postgres: PostgresServer,
) -> None:
    """It is sent again, and finds nothing: nobody knows which of the two broke the lock."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        held = await take(theirs.lock("x", ttl=60))
        pipe = store_of(ours)._pipe
        wire = pipe._wire
        assert wire is not None
        asyncio.get_running_loop().remove_reader(wire._socket)  # it reads no answer
        breaking = asyncio.create_task(ours.lock("x").break_(held.fence))
        await soon(held.lost.wait())
        pipe._link.drop(ConnectionError("the test ends it"))
        with pytest.raises(aiolock.StoreError, match="nobody knows whether this call broke it"):
            await soon(breaking)
        assert not await ours.lock("x").break_(held.fence)


async def test_claim_that_ends_before_its_push_is_granted_to_the_waiter_again(
    own_postgres: PostgresServer,
) -> None:
    """The connection is away for longer than a claim: who had it comes back to its place."""
    at_first(own_postgres, ENDS)
    async with pair(own_postgres.url("app")) as (ours, theirs):
        link = store_of(ours)._pipe._link
        greet = link._greet

        async def greets(connection: Any) -> None:
            await greet(connection)
            await asyncio.sleep(3.3)  # a claim is 3 s

        link._greet = greets
        await hand_off(ours, theirs, after=3.3)


async def test_notify_again_that_fails_once_is_repeated(own_postgres: PostgresServer) -> None:
    """It is tried again."""
    at_first(own_postgres, ENDS)
    at_first(own_postgres, RAISES, "_notify", NOTIFY)
    async with pair(own_postgres.url("app")) as (ours, theirs):
        await hand_off(ours, theirs)


async def test_flush_without_an_answer_ends_the_connection_after_reply_timeout(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is taken for dead, though no command waits for an answer."""
    at_first(own_postgres, "PERFORM pg_sleep(60)")
    async with pair(own_postgres.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x", ttl=60))
        waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
        await queued(ours.lock("x"), 1)
        pipe = store_of(ours)._pipe
        wire = pipe._wire
        monkeypatch.setattr(_pipeline, "REPLY_TIMEOUT", 0.5)
        await lease.release()
        await until(lambda: pipe._wire is not wire)
        await (await soon(waiting)).release()


async def test_heartbeat_without_a_failed_flush_sends_no_flush(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no flush behind it, unless one before it has failed."""
    own_postgres.execute(
        "CREATE OR REPLACE FUNCTION aiolock.flush() RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'the test says so'; END $$"
    )
    monkeypatch.setattr(_store, "HEARTBEAT", 0.05)
    async with aiolock.connect(own_postgres.url("app")) as client:
        listener = store_of(client)._listener
        for _ in range(3):
            listener.heartbeat.clear()
            await soon(listener.heartbeat.wait())
        assert not store_of(client)._pipe._notices.failed


async def test_handoff_with_durable_0_notifies_without_a_flush(
    own_postgres: PostgresServer,
) -> None:
    """With `durable=0`, who is granted the lock is told with the transaction that grants it."""
    own_postgres.execute(
        "CREATE OR REPLACE FUNCTION aiolock.flush() RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'the test says so'; END $$"
    )
    async with pair(own_postgres.url("app", "?durable=0")) as (ours, theirs):
        await hand_off(ours, theirs)
        assert not store_of(ours)._pipe._notices.failed


async def test_aclose_behind_a_failing_flush_notifies_the_waiter_first(
    own_postgres: PostgresServer,
) -> None:
    """A client closes only when it has told what there was to tell."""
    at_first(own_postgres, RAISES, times=4)
    async with aiolock.connect(own_postgres.url("app")) as theirs:
        async with aiolock.connect(own_postgres.url("app")) as ours:
            lease = await take(ours.lock("x", ttl=60))
            waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
            await queued(theirs.lock("x"), 1)
            await lease.release()
        await (await soon(waiting)).release()


async def test_pushes_of_done_request_and_break_need_no_flush(own_postgres: PostgresServer) -> None:
    """That something is done, broken or wanted by others is told with the transaction itself."""
    own_postgres.execute(
        "CREATE OR REPLACE FUNCTION aiolock.flush() RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'the test says so'; END $$"
    )
    async with pair(own_postgres.url("app")) as (ours, theirs):
        run = asyncio.Event()

        async def runs() -> None:
            async with ours.once("job", remember=60, ttl=60) as first:
                assert first
                await run.wait()

        running = asyncio.create_task(runs())
        await until(lambda: own_postgres.execute("SELECT count(*) FROM aiolock.grants")[0][0])
        other = theirs.once("job", remember=60, ttl=60)
        waiting = asyncio.create_task(other.__aenter__())
        own = "SELECT count(*) FROM aiolock.waiters"
        await until(lambda: own_postgres.execute(own) == [(1,)])
        run.set()
        await running
        assert not await soon(waiting)
        await other.__aexit__(None, None, None)

        lease = await take(theirs.lock("x", ttl=60, on_lost="signal"))
        await ours.request_release("x")
        await soon(lease.requested.wait())
        await ours.lock("x").break_()
        await soon(lease.lost.wait())
        store_of(ours)._pipe._notices.close()


FORM = "{3000,0,0,0,0,0,0,0,0,0,0,0}"


def test_waiters_of_one_number_enter_with_one_look_at_the_holders(
    postgres_server: PostgresServer,
) -> None:
    """Many writers below one node, once its reader has released: each look reads the grants."""
    form = _codec.form(Form(3000, True, Rule.ALIKE, 1)).decode()
    with contextlib.closing(postgres_server.connect()) as connection:
        connection.execute("SET search_path = aiolock; SET track_functions = 'all'")
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT hello('look', 2020, 'here', 1)")
            reader = _codec.form(Form(3000, True, Rule.ALIKE, 1_000_000)).decode()
            for seq, each in enumerate([reader, *[form] * 40]):
                asked = "SELECT acquire('look', 'look', %s, %s, 60000, 0, true, 0, 0)"
                connection.execute(asked, (seq, each))
            called = (
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_xact_user_functions"
                " WHERE funcname = '_room'"
            )
            ((before,),) = connection.execute(called).fetchall()
            connection.execute("SELECT release('look', 'look', 0, 0, true, 0)")
            ((after,),) = connection.execute(called).fetchall()
            count = "SELECT count(*) FROM grants WHERE name = 'look'"
            assert connection.execute(count).fetchall() == [(40,)]
            assert after - before == 1


@pytest.mark.one_loop
def test_operations_in_one_transaction_report_only_their_own_pushes(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """Each tells what is its own, in its answer or for the flush, and nothing of the one before."""
    one, two = f"{prefix} one".encode(), f"{prefix} two".encode()
    acquire = "SELECT aiolock.acquire(%s, 'me', %s, %s, 9000, 0, true, 0, 0)"
    release = "SELECT aiolock.release(%s, 'me', 1, 0, true, 0, flushed => true)"
    tells = "SELECT current_setting('aiolock.tells')"

    with contextlib.closing(postgres_server.connect("app")) as app, app.transaction():

        def said(sql: str, *arguments: object) -> str:
            row = app.execute(sql.encode(), arguments).fetchone()
            assert row is not None
            return str(row[0])

        said(acquire, one, 1, FORM)
        assert said(acquire, one, 2, FORM).startswith("queued")
        assert said(release, one).startswith("1\ngranted 2 ")
        assert said(tells) == "true"
        assert "\n" not in said(acquire, two, 3, FORM)
        assert said(tells) == "false"


@pytest.mark.one_loop
def test_late_copy_of_any_command_changes_nothing(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """It takes, prolongs, counts and queues nothing."""
    key = prefix.encode()
    with contextlib.closing(postgres_server.connect("app")) as app:

        def call(function: str, *arguments: object) -> str:
            marks = ", ".join(["%s"] * len(arguments))
            row = app.execute(f"SELECT aiolock.{function}({marks})".encode(), arguments).fetchone()
            assert row is not None
            return str(row[0])

        for arguments in (
            ("acquire", key, "me", 1, FORM, 30_000, 0, True, 0),
            ("renew", [key], "me", "{1}", "{5}", "{1000}"),
            ("request", key, "me"),
            ("resize", key, "me", 3, 4, 1000, "token"),
            ("post", key, "me", 1, "", 0, b"", 1000),
        ):
            assert call(*arguments, 1).startswith("late 1")
        for table in ("names", "waiters", "grants"):
            count = f"SELECT count(*) FROM aiolock.{table} WHERE name = %s"
            assert postgres_server.execute(count, key) == [(0,)]
        assert call("acquire", key, "me", 1, FORM, 30_000, 0, True, 0, 2**62).startswith("granted")


async def test_client_that_does_not_listen_is_dead_only_seconds_after_a_restart(
    own_postgres: PostgresServer,
) -> None:
    """Nobody has had the time to come back; later, who has not is dead."""
    own_postgres.execute("INSERT INTO aiolock.clients VALUES ('gone', 5, 'h', 1)")
    listens = "SELECT aiolock._listens('gone')"
    for _ in range(3):
        await asyncio.to_thread(own_postgres.restart)
        early = own_postgres.execute(f"{listens}, {_SETTLED.removeprefix('SELECT ')}")
        if early[0][1] is False:  # else the machine was too busy for that
            assert early == [(True, False)]
            break
    await until(lambda: own_postgres.execute(listens) == [(False,)], after=5)


@pytest.mark.one_loop
async def test_client_is_dead_if_the_server_seems_to_start_in_the_future(
    own_rights: PostgresServer,
) -> None:
    """The server seems to start in the future; by then the dead have been dead for long."""
    source = "SELECT pg_get_functiondef('aiolock._is_held(bigint)'::regprocedure)"
    ((function,),) = own_rights.execute(source)
    begun = "pg_postmaster_start_time()"
    assert function.count(begun) == 1
    own_rights.execute("INSERT INTO aiolock.clients VALUES ('gone', 5, 'h', 1)")
    try:
        for since, alive in (("1 hour", False), ("2 s", True), ("-1 hour", False)):
            then = f"(clock_timestamp() + interval '{since}')"
            own_rights.execute(function.replace(begun, then))
            assert own_rights.execute("SELECT aiolock._listens('gone')") == [(alive,)]
    finally:
        own_rights.execute(function)
        own_rights.execute("DELETE FROM aiolock.clients WHERE id = 'gone'")


STOPS = """
import asyncio, os, signal, sys, aiolock
from aiolock.stores.postgres._wire import Wire

class Stops:
    def __init__(self, pg):
        self._pg = pg
    def __getattr__(self, name):
        return getattr(self._pg, name)
    def pipeline_sync(self):
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._pg.pipeline_sync()

async def main():
    async with aiolock.connect(sys.argv[1]) as client:
        send = Wire.send
        def stop(wire, batch, answered):
            if len(batch) > 1:
                Wire.send = send
                pg, wire._pg = wire._pg, Stops(wire._pg)
                send(wire, batch, answered)
                wire._pg = pg
            else:
                send(wire, batch, answered)
        Wire.send = stop
        names = [f"x{number}" + int(sys.argv[2]) * "y" for number in range(60)]
        leases = await asyncio.gather(*(client.lock(name).acquire() for name in names))
        print("in", flush=True)
        await asyncio.gather(*(lease.release() for lease in leases))

asyncio.run(main())
"""


@pytest.mark.parametrize("length", [0, 100])
async def test_process_stopped_while_writing_a_transaction_keeps_no_row_locked(
    own_postgres: PostgresServer, length: int
) -> None:
    """Stopped while it writes a transaction, before the end of that: none of it is begun."""
    url = own_postgres.url("app")
    program = [sys.executable, "-P", "-c", STOPS, url, str(length)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"stopped\n"
        async with aiolock.connect(url) as client:
            for number in (0, 1, 59):
                async with client.lock(f"x{number}" + length * "y", timeout=10):
                    pass
        rows = own_postgres.execute(
            "SELECT l.mode, l.relation::regclass::text FROM pg_locks l JOIN pg_stat_activity a"
            " USING (pid) WHERE a.usename = 'app' AND l.locktype <> 'advisory'"
        )
        assert rows == []
        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(process.stdout.readline) == b"in\n"
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# --- In front of it, and beside it


async def test_pooled_client_through_pgbouncer_is_handed_the_lock_and_reconnects(
    own_postgres: PostgresServer,
) -> None:
    """Commands go through PgBouncer, each transaction by another session; listening does not."""
    if not shutil.which("pgbouncer"):
        pytest.skip("no pgbouncer here")
    with PgBouncer(own_postgres) as pooler:
        url = pooler.url(f"?pooled=1&listen_url={own_postgres.url('app')}")
        async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
            lease = await take(ours.lock("x"))
            waiting = asyncio.create_task(take(theirs.lock("x")))
            await queued(ours.lock("x"), 1)
            await lease.release()
            await (await asyncio.wait_for(waiting, 2)).release()
            pooler.restart()
            async with ours.lock("x", timeout=8), theirs.lock("y", timeout=8):
                pass


async def test_bare_url_of_a_session_pooler_is_handed_the_lock(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """Its connections are like the server's own, also for listening; and another client's later."""
    if not shutil.which("pgbouncer"):
        pytest.skip("no pgbouncer here")
    with PgBouncer(postgres_server, mode="session") as pooler:
        for _ in range(2):
            async with (
                aiolock.connect(pooler.url(), prefix=prefix) as ours,
                aiolock.connect(pooler.url(), prefix=prefix) as theirs,
            ):
                await hand_off(ours, theirs)


async def test_open_with_listen_url_of_another_server_raises_store_error(
    own_postgres: PostgresServer,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the two URLs lead to different servers, nothing would ever be heard: an error."""
    monkeypatch.setattr(_store, "HEARTBEAT_TIMEOUT", 0.5)
    url = own_postgres.url("app", f"?pooled=1&listen_url={postgres_server.url('app')}")
    with pytest.raises(aiolock.StoreError, match="listen_url must be the same database"):
        await aiolock.connect(url).open()


async def test_standby_is_refused_until_promoted_and_then_keeps_holder_and_queue(
    own_postgres: PostgresServer,
) -> None:
    """A standby is no place for locks, and says so; promoted it is, and knows what it was sent."""
    with Standby(own_postgres) as standby:
        with pytest.raises(aiolock.StoreError, match="target_session_attrs"):
            await aiolock.connect(standby.url("app")).open()
        async with pair(either(own_postgres, standby)) as (ours, theirs):
            lease = await take(ours.lock("x", ttl=60))
            waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
            await queued(ours.lock("x"), 1)
            standby.wait_for(own_postgres)
            await fail_over(own_postgres, standby)
            await lease.release()
            second = await asyncio.wait_for(waiting, 10)
            assert second.fence > lease.fence
            await second.release()


async def test_grant_is_not_answered_before_the_synchronous_standby_has_it(
    own_postgres: PostgresServer,
) -> None:
    """Nobody hears of a grant that the standby does not have: who holds goes on after a crash."""
    with Standby(own_postgres) as standby:
        own_postgres.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        own_postgres.execute("SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication"
        await until(lambda: own_postgres.execute(state) == [("sync",)])
        async with pair(either(own_postgres, standby)) as (ours, theirs):
            before = await take(theirs.lock("x", ttl=60))
            waiting = asyncio.create_task(take(ours.lock("x", ttl=60)))
            await queued(ours.lock("x"), 1)
            with standby.stopped():
                asking = asyncio.create_task(take(ours.lock("y", ttl=60)))
                releasing = asyncio.create_task(before.release())
                held = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                await until(lambda: own_postgres.execute(held) == [(2,)])
                assert not asking.done()
                assert not releasing.done()
                assert not waiting.done()
            leases = [await asking, await waiting]
            await leases[1].extend(60)  # until then it was a claim, which could end meanwhile
            await fail_over(own_postgres, standby)
            for lease in leases:
                assert await lease.verify()
                await lease.release()
            async with theirs.lock("x", timeout=10) as after:
                assert after.fence > leases[1].fence > before.fence


def either(first: PostgresServer, second: PostgresServer) -> str:
    """The one of these servers that is the primary."""
    both = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    return f"postgresql://app@{both}/postgres?target_session_attrs=read-write"


async def fail_over(primary: PostgresServer, standby: Standby) -> None:
    """The one crashes, and the other takes its place."""
    await asyncio.to_thread(primary.stop, "immediate")
    await asyncio.to_thread(standby.promote)


# --- What may be wrong


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("?durable=2", "durable must be 0 or 1"),
        ("?pooled=1", "go together"),
        ("?listen_url=postgresql://x/y", "go together"),
        ("?durabel=0", "durabel"),
        ("?durable=0&durable=1", "'durable' is in this URL twice"),
        ("?sslmode=disable&sslmode=require", "'sslmode' is in this URL twice"),
        ("?durable", "each option of this URL is name=value"),
        ("?connect_timeout=abc", "a whole number of seconds, such as 3, not 'abc'"),
        ("?connect_timeout=-1", "connect_timeout must be a whole number"),
        ("?pooled=1&listen_url=postgresql://x/y%3Fconnect_timeout%3Dinf", "not 'inf'"),
    ],
)
def test_connect_with_an_unknown_or_invalid_url_option_raises_value_error(
    query: str, what: str
) -> None:
    """An option that is not known, alone, or no number is an error before any I/O."""
    with pytest.raises(ValueError, match=what):
        aiolock.connect(f"postgresql://app@127.0.0.1/x{query}")


@pytest.mark.one_loop
@pytest.mark.parametrize("password", ["50%secret", "s3/cret", "se/c@ret", "se?cret"])
def test_connect_with_an_unencoded_password_raises_value_error_without_it(password: str) -> None:
    """Also where it is written in such a way that it is none."""
    with pytest.raises(ValueError, match=r"percent-encode .*%2F.*%3F.*%40.*%25") as raised:
        aiolock.connect(f"postgresql://app:{password}@db/shop")
    assert "cret" not in str(raised.value)


@pytest.mark.one_loop
async def test_create_schema_in_a_schema_of_another_role_is_refused(
    own_postgres: PostgresServer,
) -> None:
    """The owner's rights would be lent to whatever that role has put there."""
    own_postgres.execute("CREATE DATABASE other OWNER app")
    url = f"postgresql://app@127.0.0.1:{own_postgres.port}/other"
    with contextlib.closing(psycopg.connect(url, autocommit=True)) as app:
        app.execute("CREATE SCHEMA aiolock")
    with pytest.raises(aiolock.StoreError, match="belongs to another role"):
        await asyncio.to_thread(postgres.create_schema, url.replace("app@", "postgres@"))
    await asyncio.to_thread(postgres.create_schema, url)
    async with aiolock.connect(url) as client, client.lock("x"):
        pass


async def test_open_on_a_server_that_stops_after_the_greeting_raises_store_error(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has greeted, and stops then: an error in time, and nothing is left of it."""
    monkeypatch.setattr(_pipeline, "REPLY_TIMEOUT", 0.3)
    greet = _pipeline.Pipeline._greet
    async with contextlib.AsyncExitStack() as stack:

        async def greets(self: _pipeline.Pipeline, connection: Any) -> None:
            await greet(self, connection)
            stack.enter_context(own_postgres.stopped())

        monkeypatch.setattr(_pipeline.Pipeline, "_greet", greets)
        with pytest.raises(aiolock.StoreError, match="no answer"):
            await asyncio.wait_for(aiolock.connect(own_postgres.url("app")).open(), 8)


@pytest.mark.parametrize("which", ["_pipe", "_listener"])
async def test_connection_lost_right_after_its_greeting_is_made_again(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Coming back, it comes back once more; where a client opens, it is an error."""
    async with aiolock.connect(postgres_server.url("app")) as client:
        end = getattr(store_of(client), which)
        up, failures = end._link._on_up, [psycopg.OperationalError("it is gone") for _ in range(2)]

        def fails_first(connection: Any) -> None:
            if failures:
                raise failures.pop()
            up(connection)

        end._link._on_up = fails_first
        end._link.drop(ConnectionError("the test ends it"))
        await until(lambda: not failures and end._link.connection is not None)
        async with client.lock("x", timeout=5):
            pass
        with monkeypatch.context() as patch:
            kind = {"_pipe": "_pipeline.Pipeline", "_listener": "_listener.Listener"}[which]
            patch.setattr(f"aiolock.stores.postgres.{kind}._on_up", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await aiolock.connect(postgres_server.url("app")).open()


async def test_push_of_an_unknown_type_is_logged_and_the_answers_still_count(
    postgres_server: PostgresServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers are heard all the same."""
    async with aiolock.connect(postgres_server.url("app"), prefix=prefix) as client:
        store = store_of(client)
        on_pushes = store._pipe._on_pushes
        store._pipe._on_pushes = lambda name, pushes: on_pushes(name, ["riddle 1", *pushes])
        async with client.lock("x"):
            waiting = asyncio.create_task(take(client.lock("x")))
            await queued(client.lock("x"), 1)
        await (await asyncio.wait_for(waiting, 2)).release()
    assert "could not be delivered" in caplog.text


async def test_commands_sent_again_keep_their_order_at_equal_times(
    postgres_server: PostgresServer,
) -> None:
    """Also those that were asked for at one and the same time, as a coarse clock has it."""
    async with aiolock.connect(postgres_server.url("app")) as client:
        pipe = store_of(client)._pipe
        store = store_of(client)
        asked = [store.submit(ReadPosted(f"{number % 3}")) for number in range(9)]
        await asyncio.sleep(0)
        batch = list(pipe._batch)
        assert len(batch) == 9
        for command in batch:
            command.born = 0.0
        numbers = sorted(command.number for command in batch)
        pipe._link.drop(ConnectionError("the test ends it"))
        assert [command.number for command in pipe._outbox.waiting] == numbers
        for command in batch:
            command.born = asyncio.get_running_loop().time()
        await asyncio.wait_for(asyncio.gather(*asked), 5)


@pytest.mark.one_loop
def test_link_to_several_hosts_waits_long_enough_for_each() -> None:
    """They are tried one after the other, each for as long as it is allowed to take."""
    store = aiolock.connect("postgresql://app@a,b,c/x")._engine.store
    assert isinstance(store, PostgresStore)
    link = _link.Link(
        store._settings.commands, greet=_never, on_up=_never, on_down=_never, on_failing=_never
    )
    assert link._patience >= 3 * 3 + 4


def _never(_: object) -> Any:
    raise AssertionError


@pytest.mark.one_loop
def test_url_options_reach_aiolock_or_libpq_and_repr_hides_the_password() -> None:
    """Its options are aiolock's own, or libpq's; no password is ever shown."""
    store = aiolock.connect(
        "postgres://app:secret@one,two:5433/d?durable=0&sslmode=disable"
    )._engine.store
    assert isinstance(store, PostgresStore)
    assert "secret" not in repr(store)
    assert not store._settings.durable
    assert "synchronous_commit = off" in store._settings.session()
    assert "sslmode=disable" in store._settings.commands
    assert "one:" in repr(store)
    assert "two:" in repr(store)


@pytest.mark.one_loop
async def test_url_options_with_blanks_and_plus_signs_reach_libpq_as_written(
    own_postgres: PostgresServer,
) -> None:
    """They come to libpq as they were written: to it a plus sign is no blank."""
    query = "?options=-c%20geqo%3Doff&application_name=a%20b+c"
    async with aiolock.connect(own_postgres.url("app", query)) as client:
        connection = store_of(client)._pipe._link.connection
        assert connection is not None
        assert connection.info.get_parameters()["options"] == "-c geqo=off"
        names = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE usename = 'app'"
        assert own_postgres.execute(names) == [("a b+c",)]
        own_postgres.execute("SELECT pg_reload_conf()")
        async with client.lock("x"):
            pass


@pytest.mark.one_loop
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_database_of_another_encoding_keeps_names_and_values(
    own_postgres: PostgresServer, encoding: str
) -> None:
    """Whatever the database keeps texts in, names and values are what they were."""
    own_postgres.execute(f"CREATE DATABASE other TEMPLATE template0 ENCODING '{encoding}'")
    owner = f"postgresql://postgres@127.0.0.1:{own_postgres.port}/other"
    await asyncio.to_thread(postgres.create_schema, owner, "app")
    async with pair(owner.replace("postgres@", "app@")) as (ours, theirs):
        lease = await take(ours.lock("ü🙂", ttl=60))
        waiting = asyncio.create_task(take(theirs.lock("ü🙂", ttl=60)))
        await queued(theirs.lock("ü🙂"), 1)
        assert [status.name for status in await ours.snapshot()] == ["ü🙂"]
        await lease.release()
        await (await soon(waiting)).release()
        async with ours.election("e").campaign("ü🙂"):
            leader = await theirs.election("e").leader()
            assert leader is not None
            assert leader.value == "ü🙂"
        with pytest.raises(aiolock.StoreError, match=r"^PostgreSQL at [^ ]+: invalid .*[^^]$"):
            await store_of(ours)._pipe.call(Call("read", "x", [b"\\xzz"], text))


async def test_open_without_a_server_raises_store_error_with_its_address() -> None:
    """An error that says where."""
    port = databases.free_port()
    with pytest.raises(aiolock.StoreError, match=f"PostgreSQL at 127.0.0.1:{port}/x"):
        await aiolock.connect(f"postgresql://app@127.0.0.1:{port}/x").open()


@pytest.mark.one_loop
async def test_open_without_schema_or_usage_raises_store_error_with_the_remedy(
    own_postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that says which command makes it; and after that command it works."""
    own_postgres.execute("CREATE DATABASE other")
    owner = own_postgres.url().replace("/postgres", "/other").replace("//other", "//postgres")
    url = owner.replace("postgres@", "app@")
    with pytest.raises(aiolock.StoreError, match="run `aiolock init-db URL`"):
        await aiolock.connect(url).open()
    assert await asyncio.to_thread(main, ["init-db", owner]) == 0
    assert "Only its owner may use it" in capsys.readouterr().out
    with pytest.raises(aiolock.StoreError, match='GRANT USAGE ON SCHEMA aiolock TO "app"'):
        await aiolock.connect(url).open()
    assert await asyncio.to_thread(main, ["init-db", owner, "--role", "app"]) == 0
    assert "app may use it" in capsys.readouterr().out
    async with aiolock.connect(url) as client, client.lock("x"):
        pass
    with (
        contextlib.closing(psycopg.connect(url)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT FROM aiolock.grants")


CALLED = sorted({*_wire.FUNCTIONS, "hello", "protocol"})


@pytest.mark.one_loop
@pytest.mark.parametrize("function", CALLED)
async def test_open_without_execute_on_a_function_names_the_missing_grant(
    own_rights: PostgresServer, function: str
) -> None:
    """It is noticed when a client opens, and not when that function is called."""
    named = f"aiolock.{function}"
    own_rights.execute(f"REVOKE EXECUTE ON FUNCTION {named} FROM app")
    try:
        with pytest.raises(aiolock.StoreError, match=rf"GRANT EXECUTE ON .* {named}\b") as raised:
            await aiolock.connect(own_rights.url("app")).open()
        assert str(raised.value).startswith("PostgreSQL at 127.0.0.1:")
        assert f"permission denied for function {function}: " in str(raised.value)
        assert raised.value.refused
    finally:
        own_rights.execute(f"GRANT EXECUTE ON FUNCTION {named} TO app")


@pytest.mark.one_loop
def test_error_for_a_url_without_user_names_the_user_of_pguser(
    own_rights: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is who libpq takes, from PGUSER say; this process need not even have a name."""

    def unknown(user: int) -> Any:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGUSER", "app")
    monkeypatch.setenv("PGPORT", str(own_rights.port))
    own_rights.execute("REVOKE EXECUTE ON FUNCTION aiolock.release FROM app")
    try:
        client = aiolock.connect("postgresql://127.0.0.1/postgres")
        where = rf"at 127\.0\.0\.1:{own_rights.port}/postgres: .* TO \"app\""
        with pytest.raises(aiolock.StoreError, match=where):
            asyncio.run(client.open())
    finally:
        own_rights.execute("GRANT EXECUTE ON FUNCTION aiolock.release TO app")
    with pytest.raises(aiolock.StoreError, match='ON DATABASE "template1" TO "app"'):
        postgres.create_schema("postgresql://127.0.0.1/template1")


@pytest.mark.one_loop
async def test_open_with_a_listen_role_that_lacks_rights_names_that_role(
    own_rights: PostgresServer,
) -> None:
    """The advice is for that one, and not for who commands."""
    own_rights.execute("CREATE ROLE ear LOGIN")
    try:
        pooled = own_rights.url("app", f"?pooled=1&listen_url={own_rights.url('ear')}")
        with pytest.raises(aiolock.StoreError, match='TO "ear"'):
            await aiolock.connect(pooled).open()
    finally:
        own_rights.execute("DROP ROLE ear")


@pytest.mark.one_loop
async def test_url_with_only_a_service_opens_by_the_service_file(
    own_rights: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL may say no more than the name of the service."""
    services = tmp_path / "services"
    services.write_text(
        f"[shop]\nhost=127.0.0.1\nport={own_rights.port}\nuser=app\ndbname=postgres\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    async with aiolock.connect("postgresql://?service=shop&durable=0") as client, client.lock("x"):
        pass


@pytest.mark.one_loop
def test_place_of_a_url_with_a_service_is_the_service_unless_it_has_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a name; where that is, is known to libpq only, which may not find it."""
    monkeypatch.setenv("PGHOST", "elsewhere")
    for query, where in (
        ("postgresql://?service=shop", "the service shop"),
        ("postgresql:///?service=shop&durable=0", "the service shop"),
        ("postgresql://h/d?service=shop", "h:5432/d"),
        ("postgresql://", "elsewhere:5432"),
        ("postgresql://h", "h:5432"),
    ):
        store = aiolock.connect(query)._engine.store
        assert isinstance(store, PostgresStore)
        assert store._settings.place.where == where


@pytest.mark.one_loop
def test_schema_has_the_values_of_the_protocol_and_no_names_of_constants() -> None:
    """The file names them; the database is given numbers alone."""
    text = _schema.statements()
    assert f"f + {protocol.MAX_AHEAD})" in text
    assert f"w.ticket % {protocol.LOOKERS} = 0" in text
    names = {name for name in vars(protocol) if name.isupper()}
    assert not names & set(re.findall(r"\w+", text))


@pytest.mark.one_loop
def test_schema_grants_exactly_the_called_functions_and_check_fence() -> None:
    """And of what is granted, a client calls all but what is for its user."""
    assert {*CALLED, "check_fence"} == {*_schema.functions()}


@pytest.mark.one_loop
async def test_open_on_a_schema_that_lacks_a_function_suggests_init_db(
    own_postgres: PostgresServer,
) -> None:
    """An older schema: the error says which command makes the newer one."""
    own_postgres.execute("DROP FUNCTION aiolock.notify_again")
    with pytest.raises(aiolock.StoreError, match=r"no function notify_again .*init-db URL"):
        await aiolock.connect(own_postgres.url("app")).open()


@pytest.mark.one_loop
async def test_client_on_a_schema_without_go_on_locks_and_requests_release(
    own_postgres: PostgresServer,
) -> None:
    """It is older, has no function for that, and does all at once."""
    own_postgres.execute("DROP FUNCTION aiolock.go_on")
    async with aiolock.connect(own_postgres.url("app")) as client, client.lock("x"):
        assert not await client.lock("y").request_release()


@pytest.mark.one_loop
async def test_client_on_a_schema_without_go_on_has_waiters_notified_again(
    own_postgres: PostgresServer,
) -> None:
    """By the function that does that for all at once."""
    at_first(own_postgres, ENDS)
    own_postgres.execute("DROP FUNCTION aiolock.go_on")
    async with pair(own_postgres.url("app")) as (ours, theirs):
        await hand_off(ours, theirs)


async def test_open_whose_first_command_fails_raises_its_message_once(
    own_postgres: PostgresServer,
) -> None:
    """What is wrong is said once, without the statement in which it was."""
    own_postgres.execute(
        "CREATE OR REPLACE FUNCTION aiolock.beat(c text) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN nothing_of_the_kind; END $$"
    )
    with pytest.raises(aiolock.StoreError) as raised:
        await aiolock.connect(own_postgres.url("app")).open()
    where = f"PostgreSQL at 127.0.0.1:{own_postgres.port}/postgres"
    assert str(raised.value) == f'{where}: column "nothing_of_the_kind" does not exist'


@pytest.mark.one_loop
@pytest.mark.parametrize("where", ["init-db", "create=1"])
async def test_create_schema_without_the_right_names_the_grant_it_needs(
    own_postgres: PostgresServer, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """The error says what lets this role make it, and not what lets it use it."""
    own_postgres.execute('CREATE DATABASE "the shop"')
    url = f"postgresql://app@127.0.0.1:{own_postgres.port}/the%20shop"
    if where == "init-db":
        assert await asyncio.to_thread(main, ["init-db", url]) == 1
        told = capsys.readouterr().err
    else:
        with pytest.raises(aiolock.StoreError) as raised:
            await aiolock.connect(f"{url}?create=1").open()
        told = str(raised.value)
    assert 'GRANT CREATE ON DATABASE "the shop" TO "app";' in told
    assert "permission denied for database the shop" in told
    assert "LINE" not in told
    assert told.count("PostgreSQL at") == 1
    with pytest.raises(aiolock.StoreError) as made:
        postgres.create_schema(url)
    assert isinstance(made.value.__cause__, psycopg.errors.InsufficientPrivilege)


@pytest.mark.one_loop
async def test_create_1_uses_an_existing_schema_or_names_the_grant_it_needs(
    own_postgres: PostgresServer,
) -> None:
    """With `create=1` it is used as it is; where that is not allowed, the error says so."""
    url = own_postgres.url("app", "?create=1")
    async with aiolock.connect(url) as client, client.lock("x"):
        pass
    own_postgres.execute("REVOKE USAGE ON SCHEMA aiolock FROM app")
    with pytest.raises(aiolock.StoreError, match='GRANT USAGE ON SCHEMA aiolock TO "app"'):
        await aiolock.connect(url).open()


@pytest.mark.one_loop
async def test_create_1_by_several_clients_at_once_makes_the_schema(
    own_postgres: PostgresServer,
) -> None:
    """`create=1` makes it, by as many as come at once, and again."""
    own_postgres.execute("CREATE DATABASE other")
    url = f"postgresql://postgres@127.0.0.1:{own_postgres.port}/other?create=1"
    clients = [aiolock.connect(url) for _ in range(4)]
    await asyncio.gather(*(client.open() for client in clients))
    for client in clients:
        async with client.lock("x"):
            pass
        await client.aclose()


@pytest.mark.one_loop
def test_init_db_without_a_url_prints_the_schema_with_the_quoted_role(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For an owner who wants to read it first; without a server."""
    assert main(["init-db", "--role", 'we"ird']) == 0
    text = capsys.readouterr().out
    assert text == postgres.schema('we"ird')
    assert 'TO "we""ird"' in text


@pytest.mark.one_loop
@pytest.mark.parametrize("url", ["redis://localhost", "postgresql://app@127.0.0.1:1/x"])
def test_init_db_that_cannot_make_the_schema_exits_1_with_one_line(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code and one line say so."""
    assert main(["init-db", url]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.one_loop
async def test_open_accepts_a_schema_one_protocol_later_and_refuses_others(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema of the next version serves this one, of one later or before it is an error."""
    there = _schema.PROTOCOL
    monkeypatch.setattr(_greeting, "PROTOCOL", there - 1)
    async with aiolock.connect(own_postgres.url("app")) as client, client.lock("x"):
        assert client.protocols == (there,)
    for ours in (there - 2, there + 1):
        monkeypatch.setattr(_greeting, "PROTOCOL", ours)
        text = rf"run `aiolock init-db URL`.*protocol {there} is spoken there.*protocol {ours},"
        with pytest.raises(aiolock.StoreError, match=text):
            await aiolock.connect(own_postgres.url("app")).open()


@pytest.mark.one_loop
async def test_schema_of_a_later_protocol_is_not_replaced_by_an_older_one(
    own_postgres: PostgresServer,
) -> None:
    """Neither a client of this version that may make it nor its owner brings the older back."""
    url = own_postgres.url("postgres")
    protocol = "CREATE OR REPLACE FUNCTION aiolock.protocol() RETURNS integer LANGUAGE sql"
    ours, later = _schema.PROTOCOL, _schema.PROTOCOL + 1
    own_postgres.execute(f"{protocol} AS 'SELECT {later}'")
    async with aiolock.connect(f"{url}?create=1") as client, client.lock("x"):
        assert client.protocols == (ours, later)
    text = rf"protocol {later}.*use the later version of aiolock"
    with pytest.raises(aiolock.StoreError, match=text):
        postgres.create_schema(url)
    async with aiolock.connect(url) as client:
        assert client.protocols == (ours, later)


@pytest.mark.one_loop
async def test_isolation_of_the_role_is_overridden_or_refused_when_pooled(
    own_postgres: PostgresServer,
) -> None:
    """Ours is set for each connection; where that cannot be, behind a pooler, it is an error."""
    own_postgres.execute("ALTER ROLE app SET default_transaction_isolation = 'serializable'")
    async with aiolock.connect(own_postgres.url("app")) as client, client.lock("x"):
        pass
    with (
        contextlib.closing(own_postgres.connect("app")) as connection,
        pytest.raises(psycopg.Error, match="at the isolation level read committed"),
    ):
        connection.execute("SELECT aiolock.release('x', 'me', 1, 0, true, 0)")
    url = own_postgres.url("app", f"?pooled=1&listen_url={own_postgres.url('app')}")
    with pytest.raises(aiolock.StoreError, match="ALTER ROLE"):
        await aiolock.connect(url).open()


OURS = {
    "clock_timestamp()": "timestamptz",
    "convert_to(text, name)": "bytea",
    "current_setting(text)": "text",
    "current_setting(text, boolean)": "text",
    "has_function_privilege(oid, text)": "boolean",
    "now()": "timestamptz",
    "pg_advisory_unlock_shared(bigint)": "boolean",
    "pg_advisory_xact_lock(bigint)": "void",
    "pg_notify(text, text)": "void",
    "pg_try_advisory_lock_shared(bigint)": "boolean",
    "set_config(text, text, boolean)": "text",
    "unnest(text[])": "SETOF text",
}
"""What aiolock calls, as somebody could have made it."""
EQUAL = ["bigint", "boolean", "bytea", "name, text", "oid", "text"]


@pytest.mark.one_loop
async def test_search_path_of_the_caller_replaces_no_function_or_operator(
    own_rights: PostgresServer,
) -> None:
    """What is called is what was meant, whatever the caller has of the same name."""
    own_rights.execute("CREATE SCHEMA mine AUTHORIZATION app")
    try:
        with contextlib.closing(own_rights.connect("app")) as app:
            raises = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'caught'; END $$"
            for function, result in OURS.items():
                app.execute(f"CREATE FUNCTION mine.{function} RETURNS {result} {raises}".encode())
            for each in EQUAL:
                left, right = (each.split(", ") * 2)[:2]
                given = f"mine.equal({left}, {right}) RETURNS boolean"
                app.execute(f"CREATE FUNCTION {given} LANGUAGE sql AS 'SELECT true'".encode())
                for operator in ("=", "<>", "<"):
                    app.execute(
                        f"CREATE OPERATOR mine.{operator} (FUNCTION = mine.equal,"
                        f" LEFTARG = {left}, RIGHTARG = {right})".encode()
                    )
        own_rights.execute("ALTER ROLE app SET search_path = mine, pg_catalog")
        with contextlib.closing(own_rights.connect("app")) as app:
            assert app.execute("SELECT 'a' = 'b'").fetchone() == (True,)  # it is set
            app.execute("SELECT aiolock.beat('me')")
            with pytest.raises(psycopg.Error, match="no client of aiolock"):
                app.execute("SELECT aiolock.hello('*', 1, '', 1)")
        pooled = own_rights.url("app", f"?pooled=1&listen_url={own_rights.url('app')}")
        for url in (own_rights.url("app"), own_rights.url("app", "?create=1"), pooled):
            async with pair(url) as (ours, theirs):
                await hand_off(ours, theirs)
                async with ours.lock("x"), theirs.lock("y"):
                    assert await theirs.lock("x").try_acquire() is None
                    assert [each.name for each in await ours.snapshot()] == ["x", "y"]
    finally:
        own_rights.execute("ALTER ROLE app RESET search_path")
        own_rights.execute("DROP SCHEMA mine CASCADE")


@pytest.mark.one_loop
def test_connect_without_psycopg_raises_import_error_with_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error says which extra to install."""
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import aiolock\n"
        "try:\n    aiolock.connect('postgresql://x/y')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    printed = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install 'aiolock-redis[postgres]'" in printed


# --- In a transaction of the user's


def check(connection: psycopg.Connection[Any], lease: aiolock.Lease) -> None:
    """What a user does, first or last in a transaction."""
    connection.execute("SELECT aiolock.check_fence(%s, %s)", (lease.name, lease.fence))


@pytest.mark.one_loop
async def test_check_fence_keeps_the_lock_from_others_until_the_transaction_ends(
    own_postgres: PostgresServer,
) -> None:
    """Nobody has the lock before the transaction ends: not by a release, a break, or an expiry."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x", ttl=1.5, renew=False))
        with contextlib.closing(psycopg.connect(own_postgres.url("app"))) as connection:
            check(connection, lease)
            check(connection, lease)
            waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
            await queued(theirs.lock("x"), 1)
            breaking = asyncio.create_task(theirs.lock("x").break_())
            async with theirs.lock("y", timeout=2):  # nobody else has to wait
                pass
            await asyncio.sleep(2)
            assert not waiting.done()
            assert not breaking.done()
            asking = theirs.lock("x").try_acquire()
            assert await asyncio.wait_for(asking, 1.5) is None  # nor does who asks for it
            with pytest.raises(psycopg.Error, match="is not held under the fence"):
                check(connection, lease)  # the lease has ended: nothing more may begin
            connection.rollback()
        await breaking
        second = await soon(waiting, within=5)
        with contextlib.closing(psycopg.connect(own_postgres.url("app"))) as connection:
            with pytest.raises(psycopg.Error, match="'x' is not held"):
                check(connection, lease)
            connection.rollback()
            check(connection, second)
            connection.commit()
        await second.release()


UNUSUAL = {
    "array_nulls": "off",
    "bytea_output": "escape",
    '"DateStyle"': "'SQL, DMY'",
    "extra_float_digits": "-15",
    '"IntervalStyle"': "sql_standard",
    "plpgsql.extra_errors": "'all'",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    '"TimeZone"': "'America/St_Johns'",
    "transform_null_equals": "on",
}
"""What a role may have set, and changes how texts are read and written, or how functions run."""


@pytest.mark.one_loop
async def test_role_with_unusual_settings_changes_no_result(own_rights: PostgresServer) -> None:
    """They change nothing: neither in the user's sessions, nor in aiolock's own."""
    for name, value in UNUSUAL.items():
        own_rights.execute(f"ALTER ROLE app SET {name} = {value}")
    try:
        url = own_rights.url("app")
        for each in (url, f"{url}?pooled=1&listen_url={url}"):
            async with pair(each) as (ours, theirs):
                await hand_off(ours, theirs)
                async with ours.semaphore("s", 2), ours.lock("y") as lease:
                    assert [holder.client for holder in (await theirs.lock("y").status()).holders]
                    with contextlib.closing(own_rights.connect("app")) as connection:
                        assert connection.execute("SHOW bytea_output").fetchone() == ("escape",)
                        check(connection, lease)
                        connection.execute("SELECT aiolock.sweep(100)")
    finally:
        own_rights.execute("ALTER ROLE app RESET ALL")


@pytest.mark.one_loop
async def test_release_beside_a_checking_transaction_is_deferred_until_its_end(
    own_postgres: PostgresServer,
) -> None:
    """Who releases goes on at once, and may have to end the transaction; no other enters before."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        for end in ("commit", "rollback"):
            lease = await take(ours.lock("x", ttl=60))
            with contextlib.closing(psycopg.connect(own_postgres.url("app"))) as connection:
                check(connection, lease)
                waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
                await queued(theirs.lock("x"), 1)
                assert await asyncio.wait_for(lease.release(), 2)
                async with ours.lock("y", timeout=2):  # its client has other things to do
                    pass
                await asyncio.sleep(1.0)
                assert not waiting.done()
                assert await theirs.lock("x").try_acquire() is None
                holders = (await theirs.lock("x").status()).holders
                assert [each.fence for each in holders] == [lease.fence]
                with (
                    contextlib.closing(own_postgres.connect("app")) as another,
                    pytest.raises(psycopg.Error, match="is not held under the fence"),
                ):
                    check(another, lease)
                getattr(connection, end)()
                second = await soon(waiting)
            assert second.fence > lease.fence
            assert [each.fence for each in (await ours.lock("x").status()).holders] == [
                second.fence
            ]
            await second.release()


@pytest.mark.one_loop
@pytest.mark.parametrize("waits", [True, False])
async def test_checking_transaction_that_outlives_the_client_keeps_the_lock(
    own_postgres: PostgresServer,
    *,
    waits: bool,
) -> None:
    """Who waits, or asks afterwards, has the lock when it has ended, and not before."""
    url = own_postgres.url("app")
    async with aiolock.connect(url) as theirs:
        async with aiolock.connect(url) as ours:
            lease = await take(ours.lock("x", ttl=600))
            connection = psycopg.connect(url)
            check(connection, lease)
            waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
            await queued(theirs.lock("x"), 1)
            await lease.release()
            closing = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - closing < 3  # it does not wait for that, either
        if not waits:
            waiting.cancel()
            await asyncio.wait([waiting])
        await asyncio.sleep(0.5)
        assert not waits or not waiting.done()
        connection.close()
        await (await soon(waiting if waits else take(theirs.lock("x", ttl=60)))).release()


@pytest.mark.one_loop
async def test_once_beside_a_checking_transaction_is_done_at_its_end(
    own_postgres: PostgresServer,
) -> None:
    """Who has done the work goes on at once; who wants it done waits for the transaction."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        with contextlib.closing(psycopg.connect(own_postgres.url("app"))) as connection:
            async with ours.once("job", remember=60, ttl=60) as first:
                assert first
                row = "SELECT fence FROM aiolock.grants"
                ((fence,),) = own_postgres.execute(row)
                checks = b"SELECT aiolock.check_fence('job', %s, kind => 'once')"
                connection.execute(checks, (fence,))
                other = theirs.once("job", remember=60, ttl=60)
                waiting = asyncio.create_task(other.__aenter__())
                own = "SELECT count(*) FROM aiolock.waiters"
                await until(lambda: own_postgres.execute(own) == [(1,)])
                leaving = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - leaving < 2
            await asyncio.sleep(0.5)
            assert not waiting.done()
            connection.commit()
            assert not await soon(waiting)
            await other.__aexit__(None, None, None)
        async with theirs.once("job", remember=60) as again:
            assert not again


@pytest.mark.one_loop
async def test_downgrade_beside_a_checking_transaction_admits_readers_at_its_end(
    own_postgres: PostgresServer,
) -> None:
    """Who downgrades goes on at once, and no reader enters before the transaction has ended."""
    async with (
        pair(own_postgres.url("app")) as (ours, theirs),
        ours.rwlock("x", ttl=60).write() as lease,
    ):
        with contextlib.closing(psycopg.connect(own_postgres.url("app"))) as connection:
            check(connection, lease)
            reading = asyncio.create_task(take(theirs.rwlock("x", ttl=60).read()))
            await asyncio.wait_for(lease.downgrade(), 2)
            await asyncio.sleep(0.5)
            assert not reading.done()
            connection.commit()
        await (await soon(reading)).release()


@pytest.mark.one_loop
async def test_adopt_beside_a_checking_transaction_waits_until_that_has_ended(
    own_postgres: PostgresServer,
) -> None:
    """Whoever detaches goes on at once; under the fence that was checked, nobody else enters."""
    url, key = own_postgres.url("app"), "k" * 22
    async with (
        Peer(postgres.from_url(url, "aiolock")) as ann,
        Peer(postgres.from_url(url, "aiolock")) as bob,
    ):
        grant = await ann.take("lock:x")
        detach = Detach("lock:x", grant.waiter, PLAIN, grant.fence, key, LONG)
        adopt = Adopt("lock:x", bob.waiter(), PLAIN, grant.fence, key, LONG)
        with contextlib.closing(psycopg.connect(url)) as connection:
            connection.execute("SELECT aiolock.check_fence('x', %s)", (grant.fence,))
            assert await soon(ann.store.submit(detach)) == WAS_HOLDER
            adopting = bob.store.submit(adopt)
            await asyncio.sleep(0.3)
            await soon(bob.take("lock:y"), within=1)  # nothing else waits for that
            assert not adopting.done()
            connection.commit()
        granted = await soon(adopting)
        assert granted is not None
        with contextlib.closing(psycopg.connect(url)) as connection:
            with pytest.raises(psycopg.Error, match="'x' is not held"):
                connection.execute("SELECT aiolock.check_fence('x', %s)", (grant.fence,))
            connection.rollback()
            connection.execute("SELECT aiolock.check_fence('x', %s)", (granted.fence,))


@pytest.mark.one_loop
async def test_status_in_parts_has_each_of_several_detached_grants(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no client, by which others are told apart where parts are joined."""
    monkeypatch.setattr(_reading, "_PARTIES", 1)
    async with Peer(postgres.from_url(own_postgres.url("app"), "aiolock")) as ann:
        grants = [await ann.take("x", ann.waiter(READER)) for _ in range(3)]
        for number, (waiter, fence) in enumerate(grants[:2]):
            await ann.store.submit(Detach("x", waiter, READER, fence, f"k{number}", LONG))
        holders = (await ann.store.submit(ReadStatus("x"))).holders
        assert [party.fence for party in holders] == [grant.fence for grant in grants]
        assert [party.detached for party in holders] == [True, True, False]


@pytest.mark.one_loop
async def test_key_of_a_detached_grant_is_in_no_answer_and_no_notification(
    own_postgres: PostgresServer,
) -> None:
    """Whoever has it may take the lock."""
    url, key = own_postgres.url("app"), "k" * 22
    acquire = "acquire(%s, 'eve', 1, '{1,0,0,0,0,0,0,0,0,0,0,0}', 9, 0, false, 0, 0)"
    looks = ["status(%s, 9, 0, '', 0, 9, 0)", "snapshot(substr(%s, 1, 7), '', 9, 9)", acquire]
    with contextlib.closing(psycopg.connect(url, autocommit=True)) as eve:
        eve.execute(f'LISTEN "aiolock:={key}"')

        def call(*calls: str) -> Iterator[str]:
            for each in calls:
                answer = eve.execute(f"SELECT aiolock.{each}".encode(), (b"aiolock\0lock:x",))
                yield str(answer.fetchall())

        async with Peer(postgres.from_url(url, "aiolock")) as ann:
            grant = await ann.take("lock:x")
            await ann.store.submit(Detach("lock:x", grant.waiter, PLAIN, grant.fence, key, LONG))
            for said in call(*looks):
                assert "=" in said  # a detached grant is there
                assert key not in said
            assert [*call("request(%s, 'eve', 0)")] == ["[('0',)]"]
            assert await ann.store.submit(Break("lock:x", [grant.fence])) == 1
            grant = await ann.take("lock:x")
            await ann.store.submit(Detach("lock:x", grant.waiter, PLAIN, grant.fence, key, 1))
            await asyncio.sleep(0.01)
            assert key not in next(call(acquire))
            assert own_postgres.execute("SELECT client FROM aiolock.grants") == [("eve",)]
        assert not list(eve.notifies(timeout=0.2))


@pytest.mark.one_loop
async def test_check_fence_in_transactions_around_the_lock_loses_no_update(
    own_postgres: PostgresServer,
) -> None:
    """Each reads and writes between its check and its commit, which is after the release."""
    own_postgres.execute("CREATE TABLE stock (amount int)")
    own_postgres.execute("INSERT INTO stock VALUES (0)")
    own_postgres.execute("GRANT ALL ON stock TO app")
    url = own_postgres.url("app")

    async def sell(client: aiolock.LockClient) -> None:
        async with await psycopg.AsyncConnection[Any].connect(url) as connection:
            for _ in range(10):
                async with connection.transaction():
                    await connection.execute("SELECT 1")
                    async with client.lock("stock", timeout=60) as lease:
                        check = "SELECT aiolock.check_fence(%s, %s)"
                        await connection.execute(check, (lease.name, lease.fence))
                        read = await connection.execute("SELECT amount FROM stock")
                        ((amount,),) = await read.fetchall()
                        write = "UPDATE stock SET amount = %s"
                        await connection.execute(write, (amount + 1,))

    async with pair(url) as (ours, theirs):
        await asyncio.gather(*(sell(client) for client in (ours, theirs) for _ in range(3)))
    assert own_postgres.execute("SELECT amount FROM stock") == [(60,)]


@pytest.mark.one_loop
async def test_handoff_beside_a_repeatable_read_transaction_goes_on(
    own_postgres: PostgresServer,
) -> None:
    """A transaction that sees the tables as they were keeps no lock from being handed on."""
    async with pair(own_postgres.url("app")) as (ours, theirs):
        async with ours.lock("x"):
            pass
        with contextlib.closing(psycopg.connect(own_postgres.url())) as other:
            other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            seen = "SELECT fence FROM aiolock.names"
            before = other.execute(seen).fetchall()
            fences = list[int]()

            async def again(client: aiolock.LockClient) -> None:
                for _ in range(20):
                    async with client.lock("x", timeout=30) as lease:
                        fences.append(lease.fence)

            await asyncio.gather(*(again(client) for client in (ours, theirs) for _ in range(3)))
            assert fences == sorted(set(fences))
            assert len(fences) == 120
            assert other.execute(seen).fetchall() == before  # it has been open all the time


@pytest.mark.one_loop
async def test_lease_checked_in_an_open_transaction_is_renewed(
    own_postgres: PostgresServer,
) -> None:
    """A lease is renewed while a transaction that has checked it is open."""
    async with (
        aiolock.connect(own_postgres.url("app")) as client,
        client.lock("x", ttl=4) as lease,
    ):
        with contextlib.closing(psycopg.connect(own_postgres.url("app"))) as connection:
            check(connection, lease)
            await asyncio.sleep(4.5)
            check(connection, lease)
            connection.commit()
        assert lease.state == "held"


# --- Speed


def bloat(server: PostgresServer) -> None:
    """Leave 200 dead versions of each row that there is, where no vacuum comes."""
    tables = ("names", "grants", "waiters")
    off = [f"ALTER TABLE aiolock.{table} SET (autovacuum_enabled = off);" for table in tables]
    updates = [f"UPDATE aiolock.{table} SET name = name;" for table in tables]
    server.execute(
        f"DO $$ BEGIN {' '.join(off)} FOR n IN 1..200 LOOP {' '.join(updates)} END LOOP; END $$"
    )


_SCANS = (
    "SELECT relname, seq_scan, idx_scan > 100 FROM pg_stat_user_tables"
    " WHERE relname IN ('names', 'grants', 'waiters') ORDER BY 1"
)


@pytest.mark.one_loop
async def test_commands_scan_no_table_whether_planned_empty_or_bloated(
    own_postgres: PostgresServer,
) -> None:
    """No table is read from end to end, whether the planner has seen all of them empty or full."""

    async def again() -> None:
        async with client.lock("x"):
            pass

    for bloated in (False, True):
        async with aiolock.connect(own_postgres.url("app")) as client:
            async with client.lock("x"):
                waiting = [asyncio.create_task(again()) for _ in range(20)]
                await queued(client.lock("x"), 20)
                if bloated:
                    await asyncio.to_thread(bloat, own_postgres)
            await asyncio.gather(*waiting)
            own_postgres.execute("ANALYZE" if bloated else "VACUUM ANALYZE")
            await counted(own_postgres, own_postgres.backends())
            own_postgres.execute("SELECT pg_stat_reset()")
            for _ in range(10):
                await asyncio.gather(*(again() for _ in range(20)))
            await client.lock("x").status()
        await counted(own_postgres)
        scans = own_postgres.execute(_SCANS)
        assert scans == [("grants", 0, True), ("names", 0, True), ("waiters", 0, True)]


@pytest.mark.one_loop
async def test_sweep_removes_unused_names_and_gone_clients_only(
    own_postgres: PostgresServer,
) -> None:
    """What nobody needs any more goes, some at a time; what somebody does stays."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    own_postgres.execute(
        "INSERT INTO aiolock.names (name, fence)"
        " SELECT convert_to('old ' || n, 'UTF8'), 1000 * n FROM generate_series(1, 250) n"
    )
    gone = "INSERT INTO aiolock.clients VALUES ('gone', 5, 'h', 1, now() - '2 h'::interval)"
    own_postgres.execute(gone)
    with contextlib.closing(own_postgres.connect("app")) as app:
        ask = "SELECT aiolock.acquire(%s, 'me', 1, %s, 30000, 0, true, 0, 0)"
        app.execute(ask, (b"old 7", "{3000,0,0,0,0,0,0,0,0,0,0,0}"))
        swept = [app.execute("SELECT aiolock.sweep(100)").fetchone() for _ in range(3)]
    assert sum(each[0] for each in swept if each) == 249 + 1
    assert own_postgres.execute("SELECT id FROM aiolock.clients") == []
    assert own_postgres.execute("SELECT name FROM aiolock.names") == [(b"old 7",)]


_GONE = (
    "INSERT INTO aiolock.clients SELECT 'gone ' || n, n, 'h', 1, now() - '2 h'::interval"
    " FROM generate_series(1, %s) n"
)


@pytest.mark.one_loop
async def test_sweep_of_many_gone_clients_removes_a_part_and_keeps_no_lock(
    own_postgres: PostgresServer,
) -> None:
    """Some go at a time, past those that live, and no lock of the server is kept for them."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    fill(own_postgres)
    async with aiolock.connect(own_postgres.url("app")) as client:
        own_postgres.execute("UPDATE aiolock.clients SET seen = now() - '3 h'::interval")
        own_postgres.execute(_GONE, 250)
        with contextlib.closing(own_postgres.connect()) as sweeping:
            left = list[int]()
            for names in (20, 0, 0, 0):
                with sweeping.transaction():
                    row = sweeping.execute("SELECT aiolock.sweep(100)").fetchone()
                    held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND "
                    of_clients = f"{held} locktype = 'advisory' AND mode = 'ShareLock'"
                    assert sweeping.execute(of_clients.encode()).fetchone() == (0,)
                assert row is not None
                left.append(row[0] - names)
        assert left == [100, 100, 50, 0]
        assert own_postgres.execute("SELECT id FROM aiolock.clients") == [(client.id,)]


@pytest.mark.one_loop
async def test_sweep_that_cannot_remove_clients_removes_names_and_logs_failures(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What keeps the one from going does not keep the other; and a sweep that fails is told."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    fill(own_postgres)
    own_postgres.execute(_GONE, 1)
    fails = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'they stay'; END $$"
    own_postgres.execute(f"CREATE FUNCTION stays() {fails}")
    before = "CREATE TRIGGER stays BEFORE DELETE ON aiolock."
    own_postgres.execute(f"{before}clients FOR EACH ROW EXECUTE FUNCTION stays()")
    assert own_postgres.execute("SELECT aiolock.sweep(100)") == [(20,)]
    fill(own_postgres)
    own_postgres.execute(f"{before}names FOR EACH ROW EXECUTE FUNCTION stays()")
    client = aiolock.connect(own_postgres.url("app"))
    await client.open()
    store_of(client)._sweep_in(0.0)
    await until(lambda: "they stay" in caplog.text)
    own_postgres.execute("DROP TRIGGER stays ON aiolock.clients")
    await client.aclose()


@pytest.mark.one_loop
async def test_sweep_removes_dead_waiters_of_names_without_a_grant(
    own_postgres: PostgresServer,
) -> None:
    """The dead that wait for an event go as well, and who lives stays."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    ask = "SELECT aiolock.acquire(%s, %s, 1, %s, 30000, 0, true, 0, 0)"
    async with aiolock.connect(own_postgres.url("app")) as client:
        for who in ("gone", client.id):
            own_postgres.execute(ask, f"awaited by {who}", who, "{3000,1,94,1,0,0,0,0,0,0,0,0}")
        assert own_postgres.execute("SELECT aiolock.sweep(100)") == [(1,)]
        assert own_postgres.execute("SELECT client FROM aiolock.waiters") == [(client.id,)]
        left = own_postgres.execute("SELECT convert_from(name, 'UTF8') FROM aiolock.names")
        assert left == [(f"awaited by {client.id}",)]


@pytest.mark.one_loop
async def test_sweep_leaves_a_grant_checked_in_an_open_transaction(
    own_postgres: PostgresServer,
) -> None:
    """A grant that an open transaction has checked is left to a later sweep, which goes on."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    ask = "SELECT aiolock.acquire(%s, 'gone', 1, %s, 30000, 0, true, 0, 0)"
    with contextlib.closing(own_postgres.connect()) as checking:
        for name in ("a", "b"):
            checking.execute(ask.encode(), (name, "{3000,0,0,0,0,0,0,0,0,0,0,0}"))
        checking.execute("UPDATE aiolock.names SET fence = 1")
        checking.execute("UPDATE aiolock.grants SET ends = 1")
        with checking.transaction():
            checking.execute("SELECT FROM aiolock.grants WHERE name = 'a' FOR KEY SHARE")
            assert own_postgres.execute("SELECT aiolock.sweep(100)") == [(1,)]
        assert own_postgres.execute("SELECT name FROM aiolock.grants") == [(b"a",)]
        assert own_postgres.execute("SELECT aiolock.sweep(100)") == [(1,)]


MANY_ROWS = 2 * GRANTS + 10
_DEAD = (
    "INSERT INTO aiolock.waiters SELECT (aiolock._waiter(name, n, 'gone', n, %s)).*"
    " FROM aiolock.names, generate_series(1, %s) n"
)
_ENDED = (
    "INSERT INTO aiolock.grants SELECT name, n, 'gone', n, 1, true, false, 3000, true, '', 0, 0,"
    " false, false, false, 0, 0, 0, 0 FROM aiolock.names, generate_series(1, %s) n"
)
_BURIED = (
    "INSERT INTO aiolock.tombstones SELECT name, 'gone', n, 1"
    " FROM aiolock.names, generate_series(1, %s) n"
)
_ROWS = (
    "SELECT (SELECT count(*) FROM aiolock.waiters) + (SELECT count(*) FROM aiolock.grants)"
    " + (SELECT count(*) FROM aiolock.tombstones)"
)


@pytest.mark.one_loop
async def test_sweep_of_many_rows_removes_a_part_at_a_time_until_all_are_gone(
    own_postgres: PostgresServer,
) -> None:
    """The next sweep goes on with the name; one with a grant that was checked is passed over."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    own_postgres.execute("INSERT INTO aiolock.names (name, fence) VALUES ('a', 1), ('b', 1)")
    own_postgres.execute(_DEAD, "{3000,0,0,0,0,0,0,0,0,0,0,0}", MANY_ROWS)
    own_postgres.execute(_ENDED, MANY_ROWS)
    own_postgres.execute(_BURIED, MANY_ROWS)
    with contextlib.closing(own_postgres.connect()) as checking, checking.transaction():
        checking.execute("SELECT FROM aiolock.grants WHERE name = 'a' AND fence = 7 FOR KEY SHARE")
        left = [6 * MANY_ROWS]
        while own_postgres.execute("SELECT aiolock.sweep(100)") != [(0,)]:
            ((rows,),) = own_postgres.execute(_ROWS)
            left.append(rows)
            assert len(left) < 100
        assert own_postgres.execute("SELECT name FROM aiolock.names") == [(b"a",)]
        assert own_postgres.execute("SELECT fence FROM aiolock.grants") == [(7,)]
    assert max(before - after for before, after in itertools.pairwise(left)) <= GRANTS + PART
    assert own_postgres.execute("SELECT aiolock.sweep(100)") == [(1,)]
    assert own_postgres.execute(_ROWS) == [(0,)]


@pytest.mark.one_loop
async def test_sweep_of_many_dead_waiters_keeps_the_living_one_behind_them(
    own_postgres: PostgresServer,
) -> None:
    """A part of them may go before it is seen; then the name is in use."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    form = "{3000,1,94,1,0,0,0,0,0,0,0,0}"
    own_postgres.execute("INSERT INTO aiolock.names (name) VALUES ('a')")
    own_postgres.execute(_DEAD, form, MANY_ROWS)
    async with aiolock.connect(own_postgres.url("app")) as client:
        ask = "SELECT aiolock.acquire('a', %s, 1, %s, 30000, 0, true, 0, 0)"
        own_postgres.execute(ask, client.id, form)
        for _ in range(100):
            if own_postgres.execute("SELECT aiolock.sweep(100)") == [(0,)]:
                break
        else:
            raise AssertionError("each sweep finds something to forget")
        waiters = own_postgres.execute("SELECT client FROM aiolock.waiters ORDER BY ticket")
        assert waiters[-1] == (client.id,)
        assert len(waiters) < GRANTS


@pytest.mark.one_loop
async def test_release_that_leaves_a_tombstone_removes_a_part_of_those_that_are_over(
    own_postgres: PostgresServer,
) -> None:
    """Those that are not over stay, and keep late copies out; so do those of an earlier schema."""
    own_postgres.execute("INSERT INTO aiolock.names (name, fence) VALUES ('a', 1)")
    own_postgres.execute(_BURIED, PART + 10)
    later = int(time.time() * 1000) + 60_000
    for seq in (1, 2):
        release = "SELECT aiolock.release('a', 'me', %s, 0, true, %s)"
        assert own_postgres.execute(release, seq, 1000 * later) == [("0",)]
        left = "SELECT count(*), max(seq) FROM aiolock.tombstones WHERE ends = 1"
        assert own_postgres.execute(left) == [(10, PART + 10) if seq == 1 else (0, None)]
    given_up = "UPDATE aiolock.names SET given_up = jsonb_build_object('me:3', %s::bigint)"
    own_postgres.execute(given_up, later)
    ask = "SELECT aiolock.acquire('a', 'me', %s, %s, 30000, 0, true, 0, 0)"
    form = "{3000,0,0,0,0,0,0,0,0,0,0,0}"
    answers = [own_postgres.execute(ask, seq, form)[0][0] for seq in (1, 2, 3, 4)]
    assert [answer.split()[0] for answer in answers] == ["busy", "busy", "busy", "granted"]


def fill(server: PostgresServer) -> None:
    """Leave names that were used long ago."""
    server.execute(
        "INSERT INTO aiolock.names (name, fence)"
        " SELECT convert_to('old ' || n, 'UTF8'), n FROM generate_series(1, 20) n"
    )


_NAMES = "SELECT count(*) FROM aiolock.names"


async def test_sweeps_follow_at_once_with_one_timer_until_no_unused_name_is_left(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, none waits for a minute, and there is one timer for the next one."""
    monkeypatch.setattr(_store, "_SWEPT", 3)
    fill(own_postgres)
    async with aiolock.connect(own_postgres.url("app")) as client:
        store, loop = store_of(client), asyncio.get_running_loop()
        first = store._sweeper
        assert first is not None
        store._sweep_in(0.0)
        assert first.cancelled()
        await until(lambda: own_postgres.execute(_NAMES) == [(0,)])
        await until(lambda: store._sweeper and store._sweeper.when() > loop.time() + 30)


_HELD = (
    "INSERT INTO aiolock.grants SELECT name, fence, 'me', 1, %s, false, false, 3000, false, '', 0,"
    " 0, false, false, false, 0, 0, 0, 0 FROM aiolock.names"
)


async def test_sweep_skips_names_in_use_and_removes_all_behind_them(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as come, and those that are in use are not looked at again and again."""
    monkeypatch.setattr(_store, "_SWEPT", 3)
    fill(own_postgres)  # they are the first to be looked at
    own_postgres.execute(_HELD, int(time.time() * 1000) + 3_600_000)
    own_postgres.execute(
        "INSERT INTO aiolock.names (name, fence)"
        " SELECT convert_to('new ' || n, 'UTF8'), 1000 * n FROM generate_series(1, 300) n"
    )
    async with aiolock.connect(own_postgres.url("app")) as client:
        store, loop = store_of(client), asyncio.get_running_loop()
        store._sweep_in(0.0)
        await until(lambda: own_postgres.execute(_NAMES) == [(20,)])
        await until(lambda: store._sweeper and store._sweeper.when() > loop.time() + 30)
    later = "SELECT count(*) FROM aiolock.names WHERE later > 0"
    assert own_postgres.execute(later) == [(20,)]
    assert own_postgres.execute("SELECT aiolock.sweep(3)") == [(0,)]  # there is nothing to look at


@pytest.mark.one_loop
async def test_sweep_reads_no_younger_names_and_their_use_updates_no_index(
    own_postgres: PostgresServer,
) -> None:
    """It reads no younger name, however many there are; and using one writes to no index."""
    own_postgres.execute(
        "INSERT INTO aiolock.names (name, fence) SELECT convert_to('young ' || n, 'UTF8'),"
        " (extract(epoch FROM now()) * 1000000)::bigint FROM generate_series(1, 2000) n"
    )
    fill(own_postgres)
    own_postgres.execute("ANALYZE")
    await counted(own_postgres)
    own_postgres.execute("SELECT pg_stat_reset()")
    with contextlib.closing(own_postgres.connect("app")) as app:
        assert app.execute("SELECT aiolock.sweep(100)").fetchone() == (20,)
    async with aiolock.connect(own_postgres.url("app")) as client:
        for _ in range(50):
            async with client.lock("x"):
                pass
    await counted(own_postgres)
    (read, updated, hot) = own_postgres.execute(
        "SELECT seq_tup_read + idx_tup_fetch, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname = 'names'"
    )[0]
    assert read < 500
    assert updated - hot <= 1  # one for each minute


@pytest.mark.one_loop
async def test_sweep_does_not_read_removed_names_again(
    own_postgres: PostgresServer,
) -> None:
    """They stay in the index while a transaction sees them: the next sweep begins behind."""
    fill(own_postgres)
    with contextlib.closing(psycopg.connect(own_postgres.url())) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        assert other.execute("SELECT count(*) FROM aiolock.names").fetchone() == (20,)
        at = "SELECT convert_from(last, 'UTF8') FROM aiolock.swept"
        assert own_postgres.execute("SELECT aiolock.sweep(10)") == [(10,)]
        assert own_postgres.execute(at) == [("old 18",)]
        assert own_postgres.execute("SELECT aiolock.sweep(11)") == [(10,)]
        assert own_postgres.execute(at) == [("",)]  # the next one begins with the oldest


@pytest.mark.one_loop
async def test_sweep_marks_listening_clients_as_seen_and_removes_gone_ones_behind(
    own_postgres: PostgresServer,
) -> None:
    """However many there are: those behind them that are gone are forgotten all the same."""
    await until(lambda: own_postgres.execute(_SETTLED) == [(True,)], after=5)
    async with aiolock.connect(own_postgres.url("app")) as client:
        own_postgres.execute("UPDATE aiolock.clients SET seen = now() - '3 h'::interval")
        own_postgres.execute(_GONE, 1)
        assert own_postgres.execute("SELECT aiolock.sweep(100)") == [(1,)]
        seen = "SELECT id FROM aiolock.clients WHERE seen > now() - '1 min'::interval"
        assert own_postgres.execute(seen) == [(client.id,)]


@pytest.mark.one_loop
async def test_init_db_on_an_older_schema_adds_columns_beside_clients_at_work(
    own_postgres: PostgresServer,
) -> None:
    """Run once more, beside clients at work, `init-db` adds the columns, and the indexes."""
    url = own_postgres.url("app")
    own_postgres.execute("ALTER TABLE aiolock.names DROP COLUMN due, DROP COLUMN later")
    own_postgres.execute("ALTER TABLE aiolock.swept DROP COLUMN due")
    own_postgres.execute(
        "CREATE FUNCTION aiolock.downgrade(bytea, text, bigint, bigint)"
        " RETURNS text LANGUAGE sql AS $$ SELECT '0' $$"
    )
    fill(own_postgres)
    async with aiolock.connect(url) as client:
        async with client.lock("x"):
            await asyncio.to_thread(postgres.create_schema, own_postgres.url(), "app")
        async with client.lock("y"):
            pass
    assert own_postgres.execute("SELECT aiolock.sweep(100)") == [(20,)]
    overloads = "SELECT count(*) FROM pg_proc WHERE proname = 'downgrade'"
    assert own_postgres.execute(overloads) == [(1,)]


async def test_aclose_of_a_client_open_for_less_than_a_sweep_interval_may_sweep(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they close, now and then; and no timer for the next sweep is left."""
    fill(own_postgres)
    monkeypatch.setattr(_store, "_SWEEP", 3600.0)
    for dice, left in ((0.9, 20), (0.1, 0)):
        monkeypatch.setattr(_store, "random", SimpleNamespace(random=lambda: dice))  # noqa: B023
        async with aiolock.connect(own_postgres.url("app")) as client:
            store = store_of(client)
            store._swept_at -= 1800.0  # it has been open for half an hour
        assert own_postgres.execute(_NAMES) == [(left,)]
        assert store._sweeper is not None
        assert store._sweeper.cancelled()


@pytest.mark.one_loop
def test_session_settings_of_a_url_without_options_are_durable_and_pinned() -> None:
    """What is set for a connection is what its URL says."""
    durable = _settings.from_url("postgresql://app@h/d").session()
    assert "synchronous_commit" not in durable
    assert "enable_seqscan = off" in durable
