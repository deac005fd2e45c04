"""What is MySQL's and MariaDB's own: connections, bells, restarts, rights, stopped processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

import aiolock
from aiolock import protocol
from aiolock._engine.diagnostics import slow_monitor
from aiolock.cli.main import main
from aiolock.protocol import (
    BREAK_UNKNOWN,
    WAS_HOLDER,
    WAS_UNKNOWN,
    Acquire,
    Break,
    Form,
    Granted,
    Operation,
    Post,
    Queued,
    ReadPage,
    ReadPosted,
    ReadStatus,
    Release,
    WaiterId,
)
from aiolock.stores import mysql
from aiolock.stores._codec import encode
from aiolock.stores._effects import Push
from aiolock.stores._state import NameState
from aiolock.stores.mysql import _database, _listener, _session, _settings
from aiolock.stores.mysql._database import Database
from aiolock.stores.mysql._link import Link
from aiolock.stores.mysql._listener import Listener
from aiolock.stores.mysql._read import Read
from aiolock.stores.mysql._session import Session
from aiolock.stores.mysql._store import MySQLStore
from aiolock.stores.mysql._transaction import NOW
from tests.support import databases
from tests.support.databases import MariaDBServer
from tests.support.failures import pair, parent_that_died, queued, soon, start_waiter, take, until

SLEEP = _listener.SLEEP


@pytest.fixture(autouse=True)
def bells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or who puts up a label, or wakes by itself, fetches what was left for it, bell or no bell."""
    monkeypatch.setattr(slow_monitor, "_EVERY", 3600.0)
    monkeypatch.setattr(_listener, "SLEEP", 10.0)


def store_of(client: aiolock.LockClient) -> MySQLStore:
    """The store behind a client."""
    store = client._engine.store
    assert isinstance(store, MySQLStore)
    return store


def session_of(client: aiolock.LockClient) -> Session:
    """What it has open."""
    session = store_of(client)._session
    assert session is not None
    return session


def number(server: MariaDBServer, client: aiolock.LockClient, *, bell: bool = False) -> int | None:
    """What the server calls one of a client's connections."""
    lock = f"aiolock:{client._engine.client}{':bell' if bell else ''}"
    ((found,),) = server.execute("SELECT IS_USED_LOCK(%s)", lock)
    assert found is None or isinstance(found, int)
    return found


async def settled(server: MariaDBServer) -> None:
    """Others have had the time to come back since this server was started."""
    await until(
        lambda: int(server.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]) > 5,
        within=14,
        after=6,
    )


def _no(_: Link) -> bool:
    return False


# --- Connections


async def test_client_with_fifty_waiters_has_two_connections_and_none_after_close(
    own_mariadb: MariaDBServer,
) -> None:
    """A client has two, whatever waits, and none is left when it closes, nor a row of it."""
    async with aiolock.connect(own_mariadb.url("app")) as client, client.lock("x"):
        waiting = [asyncio.create_task(take(client.lock("x"))) for _ in range(50)]
        await queued(client.lock("x"), 50)
        assert len(own_mariadb.connections()) == 2
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    await until(lambda: not own_mariadb.connections())
    assert own_mariadb.execute("SELECT * FROM aiolock_clients") == []
    assert not [each for each in threading.enumerate() if each.name.startswith("aiolock mysql")]


async def test_waiters_in_a_queue_send_no_statements_but_their_sleep(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits asks the server nothing: its sleep, once a second, is enough to be seen."""
    later = SimpleNamespace(uniform=lambda _, most: most, random=lambda: 1.0)
    monkeypatch.setattr(_session, "random", later)  # a sweep is another thing
    monkeypatch.setattr(_listener, "SLEEP", SLEEP)
    async with pair(own_mariadb.url("app")) as (ours, theirs), ours.lock("x", ttl=600):
        waiting = [asyncio.create_task(take(theirs.lock("x"))) for _ in range(200)]
        await queued(ours.lock("x"), 200)
        await asyncio.sleep(0.5)
        before = questions(own_mariadb)
        await asyncio.sleep(1.0)
        assert questions(own_mariadb) - before <= 8  # the look itself, and two sleeps of both
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


def questions(server: MariaDBServer) -> int:
    """How many statements clients have sent."""
    return int(server.execute("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


async def test_commands_connection_killed_by_the_server_loses_no_holder_or_waiter(
    own_mariadb: MariaDBServer,
) -> None:
    """Who holds and who waits notices nothing; what is asked next goes by another one."""
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        own_mariadb.execute(f"KILL {number(own_mariadb, ours)}")
        own_mariadb.execute(f"KILL {number(own_mariadb, theirs)}")
        await lease.release()
        second = await asyncio.wait_for(waiting, 12)
        assert second.fence > lease.fence
        await second.release()


def test_open_of_a_second_connection_ends_the_first_of_the_same_client(
    mariadb_server: MariaDBServer,
) -> None:
    """It has the client's lock still, so it is ended when there is another one."""
    first, second = alone(mariadb_server, "twice"), alone(mariadb_server, "twice")
    first.open()
    second.open()
    assert isinstance(ask(second, asking("twice", "twice")), Granted)
    second.close()
    first.link.close()


async def test_heartbeat_of_an_idle_client_replaces_a_killed_connection(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks for nothing looks now and then whether the others take it for dead."""
    monkeypatch.setattr(_session, "HEARTBEAT", 0.1)
    async with aiolock.connect(own_mariadb.url("app", "?doorbell=poll")) as client:
        before = number(own_mariadb, client)
        own_mariadb.execute(f"KILL {before}")
        await until(lambda: number(own_mariadb, client) not in (None, before))


async def test_listener_replaces_a_killed_commands_connection_at_once(
    own_mariadb: MariaDBServer,
) -> None:
    """It waits for a lock of that connection, so it need not be looked for."""
    async with aiolock.connect(own_mariadb.url("app")) as client:
        before = number(own_mariadb, client)
        own_mariadb.execute(f"KILL {before}")
        await until(lambda: number(own_mariadb, client) not in (None, before), within=3)


async def test_commands_connection_that_cannot_be_made_is_tried_by_one_operation(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ear says so again and again; it is tried by one operation at a time."""
    async with aiolock.connect(own_mariadb.url("app")) as client:
        session = session_of(client)
        calls = list[Operation[Any]]()
        submit = session.submit

        def count(operation: Operation[Any]) -> asyncio.Future[Any]:
            calls.append(operation)
            return submit(operation)

        def refuse() -> None:
            raise pymysql.OperationalError(1040, "too many connections")

        monkeypatch.setattr(session, "submit", count)
        monkeypatch.setattr(session._database, "_connect", refuse)
        own_mariadb.execute(f"KILL {number(own_mariadb, client)}")
        await asyncio.sleep(2.0)
        assert 1 <= len(calls) <= 2
        monkeypatch.undo()
        await until(lambda: number(own_mariadb, client) is not None)


async def test_certificates_are_loaded_once_at_most_for_several_connections(
    mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none is looked at: that took longer than all else of an opening."""
    loaded = list[ssl.SSLContext]()
    create = ssl.create_default_context

    def counted(*args: Any, **options: Any) -> ssl.SSLContext:
        loaded.append(create(*args, **options))
        return loaded[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    for _ in range(3):
        async with aiolock.connect(mariadb_server.url("app")):
            pass
    assert len(loaded) <= 1


async def test_notifications_of_several_clients_at_once_lose_no_claim(
    own_mariadb: MariaDBServer,
) -> None:
    """Those who ring several at the same time do not wait for each other: no claim is lost."""
    url = own_mariadb.url("app")
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(aiolock.connect(url)) for _ in range(4)]
        entered = 0

        async def work(client: aiolock.LockClient, name: str) -> None:
            nonlocal entered
            for _ in range(25):
                async with client.lock(name, ttl=60):
                    await asyncio.sleep(0)
                entered += 1

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            for name in ("a", "b", "c"):
                for client in clients:
                    tasks.create_task(work(client, name))
    assert entered == 300


async def test_waiter_passed_over_while_its_connection_was_away_asks_again(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed over while its connection was away, it asks again, and has its old place."""
    await settled(own_mariadb)
    monkeypatch.setattr(_session, "HEARTBEAT", 1.0)
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x", ttl=60))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        link, released = session_of(theirs)._database.link, threading.Event()
        connect = link.connect

        def connect_later() -> None:
            released.wait(10)
            connect()

        monkeypatch.setattr(link, "connect", connect_later)
        own_mariadb.execute(f"KILL {number(own_mariadb, theirs)}")
        await until(lambda: number(own_mariadb, theirs) is None)  # else it is not passed over
        await lease.release()
        released.set()
        await (await asyncio.wait_for(waiting, 5)).release()


async def test_listening_connection_killed_by_the_server_misses_no_grant(
    own_mariadb: MariaDBServer,
) -> None:
    """It listens on another one; what was left for it meanwhile is not lost."""
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        for _ in range(2):
            lease = await take(ours.lock("x"))
            waiting = asyncio.create_task(take(theirs.lock("x")))
            await queued(ours.lock("x"), 1)
            before = number(own_mariadb, theirs, bell=True)
            own_mariadb.execute(f"KILL {before}")
            await lease.release()
            await (await asyncio.wait_for(waiting, 5)).release()
            await until(lambda: number(own_mariadb, theirs, bell=True) not in (None, before))  # noqa: B023


async def test_release_past_a_killed_waiter_grants_the_next_at_once(
    own_mariadb: MariaDBServer,
) -> None:
    """The lock of its commands' connection is gone at once, though its bell still sleeps."""
    url = own_mariadb.url("app")
    await settled(own_mariadb)
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
        me = theirs._engine.client
        await until(
            lambda: own_mariadb.execute(
                "SELECT 1 FROM aiolock_clients WHERE client NOT IN (%s, %s)"
                " AND IS_USED_LOCK(CONCAT('aiolock:', client)) IS NULL",
                *(me, ours._engine.client),
            ),
            within=2,
        )
        assert [each.alive for each in (await ours.lock("x").status()).waiters] == [False, True]
        await lease.release()
        await (await asyncio.wait_for(waiting, 1.4)).release()  # a claim is 3 s


async def test_fork_of_a_client_keeps_no_connection_of_its_dead_parent_open(
    own_mariadb: MariaDBServer,
) -> None:
    """A fork has let go of the parent's connections, which end with the parent."""
    async with parent_that_died(own_mariadb.url("app")):
        # The server looks every five seconds whether one that sleeps is still there.
        await until(lambda: not own_mariadb.connections(), within=20)


STOPPED = """
import asyncio, os, signal, sys, time, aiolock
from aiolock.stores.mysql._database import Database
from aiolock.stores.mysql._transaction import Transaction

url, prefix, step = sys.argv[1:]
where, name = (Transaction, "load") if step == "loaded" else (Database, "_commit")
carry_out = getattr(where, name)


def stop():
    setattr(where, name, carry_out)
    print("stopped", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)  # until all its threads stand still


def stopping(*arguments):
    if step == "to be committed":
        stop()
    carry_out(*arguments)
    if step != "to be committed":
        stop()


async def main():
    async with aiolock.connect(url, prefix=prefix) as client:
        setattr(where, name, stopping)
        async with client.lock("x", ttl=60, timeout=20):
            print("in", flush=True)


asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def stopped(url: str, prefix: str, step: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that stands still at this step of the transaction in which it gets a lock.

    At the end it goes on, has the lock, and gives it back.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", STOPPED, url, prefix, step], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"stopped\n"
        yield process
        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(process.stdout.readline) == b"in\n"
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("step", ["loaded", "to be committed"])
async def test_process_stopped_in_a_transaction_keeps_no_row_locked(
    mariadb_server: MariaDBServer, prefix: str, step: str
) -> None:
    """Stopped in the middle of a transaction, it is ended by the server, and tries again."""
    url = mariadb_server.url("app")
    async with (
        stopped(url, prefix, step),
        aiolock.connect(url, prefix=prefix) as client,
        client.lock("x", timeout=6),
    ):
        pass


async def test_process_stopped_after_its_commit_holds_the_lock_and_no_row(
    mariadb_server: MariaDBServer, prefix: str
) -> None:
    """It holds the lock, unheard, and no row: who asks is answered, and is next."""
    url = mariadb_server.url("app")
    async with aiolock.connect(url, prefix=prefix) as client:
        async with stopped(url, prefix, "committed") as process:
            (holder,) = (await client.lock("x").status()).holders
            assert holder.pid == process.pid
            waiting = asyncio.create_task(take(client.lock("x")))
            await queued(client.lock("x"), 1)
        await (await asyncio.wait_for(waiting, 12)).release()


async def test_idle_transaction_on_mysql_is_ended_and_an_idle_connection_is_not(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL has a limit for idle connections only, which is set for each transaction."""
    monkeypatch.setattr(Link, "is_mariadb", _no)
    monkeypatch.setattr(_database, "IDLE", 1)
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        before = number(own_mariadb, ours)
        await asyncio.sleep(2.2)  # between transactions, it may be idle for longer
        assert number(own_mariadb, ours) == before
        await lease.release()
        await (await soon(waiting, within=5)).release()
    database = alone(own_mariadb)
    database.open()
    guard, _ = database._guard
    database.link.run(*guard, "START TRANSACTION", "SELECT * FROM aiolock_names FOR UPDATE")
    await asyncio.sleep(2.2)
    with pytest.raises(pymysql.Error):
        database.link.run("COMMIT")
    database.open()
    own_mariadb.execute("INSERT INTO aiolock_names (id, name, state) VALUES ('test\0n', '', '{')")
    (outcome,) = database.carry_out([asking("ada", "n")], time.monotonic()).outcomes
    assert outcome.failure is not None
    await asyncio.sleep(2.2)  # what has failed leaves no limit behind
    assert database.link.run("SELECT 1")
    database.close()


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_server_restart_keeps_holder_and_queue(own_mariadb: MariaDBServer, how: str) -> None:
    """All that it knew it knows again: who holds goes on, who waits is next."""
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        async with ours.lock("x", ttl=60) as lease:
            waiting = asyncio.create_task(take(theirs.lock("x", ttl=60)))
            await queued(ours.lock("x"), 1)
            await asyncio.to_thread(own_mariadb.restart, how)
            await lease.extend(60)
        second = await asyncio.wait_for(waiting, 15)
        assert second.fence > lease.fence
        await second.release()


async def test_waiter_that_was_killed_counts_as_alive_just_after_a_restart(
    own_mariadb: MariaDBServer,
) -> None:
    """Who has not said good-bye has had no time to come back, so its place is not passed over."""
    async with aiolock.connect(own_mariadb.url("app")) as ours:
        lease = await take(ours.lock("x", ttl=60))
        process = start_waiter(own_mariadb.url("app"))
        try:
            await queued(ours.lock("x"), 1)
        finally:
            process.kill()
            process.wait()
        await asyncio.to_thread(own_mariadb.restart)
        await until(lambda: number(own_mariadb, ours) is not None)
        (waiter,) = (await ours.lock("x").status()).waiters
        assert waiter.alive
        await lease.release()


async def test_acquire_on_a_stopped_server_raises_store_error_naming_it(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in time, that says where; and the next one is served when it goes on."""
    monkeypatch.setattr(_session, "_WATCH", 0.1)
    async with aiolock.connect(own_mariadb.url("app")) as client:
        where = f"127.0.0.1:{own_mariadb.port}"
        with own_mariadb.stopped(), monkeypatch.context() as patched:
            patched.setattr(_session, "_LONGEST", 0.5)
            patched.setattr(_database, "_PATIENCE", 0.3)
            began = time.monotonic()
            with pytest.raises(aiolock.StoreError, match=where):
                await client.lock("x").acquire()
            assert time.monotonic() - began < 4
        async with client.lock("x"):
            assert await client.lock("x").locked()


async def test_open_on_a_stopped_server_ends_at_its_limit_or_when_cancelled(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that greets nobody is an error in time, or a cancellation at once."""
    client = aiolock.connect(own_mariadb.url("app"))
    with own_mariadb.stopped(), monkeypatch.context() as patched:
        patched.setattr(_session, "_GIVES_UP", 0.5)
        async with asyncio.timeout(3):
            with pytest.raises(aiolock.StoreError):
                await client.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await aiolock.connect(own_mariadb.url("app")).open()
    async with client, client.lock("x"):
        pass


async def test_command_whose_thread_is_held_up_raises_store_error_in_time(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever that is, a network without names, say: nobody waits for longer than so."""
    monkeypatch.setattr(_session, "_WATCH", 0.1)
    go_on = threading.Event()
    run_until = Link.run_until

    def held_up(link: Link, *statements: str) -> Any:
        if threading.current_thread().name == "aiolock mysql":
            go_on.wait()
        return run_until(link, *statements)

    client = aiolock.connect(own_mariadb.url("app"))
    await client.open()
    store = store_of(client)
    monkeypatch.setattr(_session, "_GIVES_UP", 0.5)  # not before: opening may take as long
    monkeypatch.setattr(Link, "run_until", held_up)
    assert store._session is not None
    broken = pymysql.OperationalError(1045, "Access denied")
    try:
        async with asyncio.timeout(3):
            with pytest.raises(aiolock.StoreError, match=r"does not answer$") as told:
                await store.submit(ReadPosted("x"))
            assert not told.value.refused
            store._session._links.down("listening", broken)
            with pytest.raises(aiolock.StoreError, match=r"answer \(.*Access denied") as told:
                await store.submit(ReadPosted("x"))
            assert told.value.misconfigured
            assert told.value.__cause__ is broken
            await client.aclose()
    finally:
        go_on.set()


async def test_open_that_fails_leaves_no_thread_and_no_timer(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread, no timer: it may be tried again for as long as one likes."""
    watched = list[Session]()
    monkeypatch.setattr(Session, "_keep_watch", watched.append)
    await asyncio.to_thread(own_mariadb.stop)
    for _ in range(5):
        with pytest.raises(aiolock.StoreError):
            await aiolock.connect(own_mariadb.url("app")).open()
    await until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("aiolock my")]
    )
    await asyncio.sleep(2 * _session._WATCH)
    assert not watched


async def test_read_only_server_is_refused_at_open_and_acquire_until_writable(
    own_mariadb: MariaDBServer,
) -> None:
    """A replica, say: an error that says so, at open and later; once it may write, it does."""
    async with aiolock.connect(own_mariadb.url("app")) as client:
        own_mariadb.execute("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(aiolock.StoreError, match="connect to the primary"):
                await client.lock("x").acquire()
            with pytest.raises(aiolock.StoreError, match="connect to the primary"):
                await aiolock.connect(own_mariadb.url("app")).open()
        finally:
            own_mariadb.execute("SET GLOBAL read_only = 0")
        async with client.lock("x"):
            pass


async def test_release_blocked_by_a_foreign_row_lock_is_tried_again(
    own_mariadb: MariaDBServer,
) -> None:
    """A lock that somebody has on our rows is no error: it is tried again."""
    async with aiolock.connect(own_mariadb.url("app")) as client:
        lease = await take(client.lock("x"))
        with contextlib.closing(own_mariadb.connect()) as other:
            other.begin()
            with other.cursor() as cursor:
                cursor.execute("SELECT * FROM aiolock_names FOR UPDATE")
            releasing = asyncio.create_task(lease.release())
            await asyncio.sleep(2.5)  # longer than one attempt waits
            assert not releasing.done()
        assert await releasing
        assert not await client.lock("x").locked()


# --- Bells


async def test_doorbell_poll_finds_a_grant_soon_while_a_waiter_is_queued(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody rings, a client looks: soon while one of its waiters is queued."""
    monkeypatch.setattr(_listener, "_IDLE_POLL", 60.0)
    url = own_mariadb.url("app", "?doorbell=poll&poll=0.02")
    async with pair(url) as (ours, theirs):
        for _ in range(3):
            lease = await take(ours.lock("x"))
            waiting = asyncio.create_task(take(theirs.lock("x")))
            await queued(ours.lock("x"), 1)
            await lease.release()
            await (await soon(waiting, within=20)).release()


@pytest.mark.parametrize(("rings", "polls"), [(True, False), (False, True)])
async def test_listener_polls_if_kill_query_does_not_reach_it(
    own_mariadb: MariaDBServer,
    monkeypatch: pytest.MonkeyPatch,
    rings: bool,
    polls: bool,
) -> None:
    """Where `KILL QUERY` does not arrive, behind a proxy, say, a client looks by itself."""
    run_until = Link.run_until

    def misdirected(link: Link, *statements: str) -> Any:
        passed = [each for each in statements if rings or not each.startswith("KILL QUERY")]
        return run_until(link, *passed) if passed else ([[]], None)

    monkeypatch.setattr(Link, "run_until", misdirected)
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        assert session_of(theirs)._listener._polls is polls
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        await (await asyncio.wait_for(waiting, 5)).release()


async def test_open_whose_listener_is_lost_in_its_trial_raises_store_error(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the client does not open: it would be deaf."""
    can_be_notified, notifies, tried = Listener._can_be_notified, Listener._try, threading.Event()

    def tries(listener: Listener, commands: Link) -> None:
        tried.set()
        notifies(listener, commands)

    def breaks(listener: Listener) -> bool:
        tried.wait(5)
        listener._link.break_()
        return can_be_notified(listener)

    monkeypatch.setattr(Listener, "_try", tries)
    monkeypatch.setattr(Listener, "_can_be_notified", breaks)
    client = aiolock.connect(own_mariadb.url("app"))
    with pytest.raises(aiolock.StoreError, match=r"gone away|Lost connection"):
        await client.open()
    monkeypatch.undo()
    async with client, client.lock("x"):
        assert session_of(client)._listener._thread.is_alive()


async def test_notification_without_mariadbs_statement_blocks_arrives(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no block of statements there; a sleep that is ended may be an error."""
    monkeypatch.setattr(Link, "is_mariadb", _no)
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        for _ in range(5):
            lease = await take(ours.lock("x"))
            waiting = asyncio.create_task(take(theirs.lock("x")))
            await queued(ours.lock("x"), 1)
            began = time.monotonic()
            await lease.release()
            await (await soon(waiting, within=5)).release()
            assert time.monotonic() - began < 5


async def test_alter_table_while_listeners_sleep_succeeds_and_pushes_go_on(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does that waits for a sleep, which is short; then others hear of pushes as before."""
    monkeypatch.setattr(_listener, "SLEEP", SLEEP)
    asleep = "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
    change = "ALTER TABLE aiolock_inbox COMMENT 'changed'"
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        await until(lambda: len(own_mariadb.execute(asleep)) == 2)
        await asyncio.to_thread(
            own_mariadb.execute, f"SET STATEMENT lock_wait_timeout = 4 FOR {change}"
        )
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        await (await soon(waiting, within=5)).release()


async def test_notifications_lost_after_their_commit_follow_with_the_next(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, unheard: all for whom something was left are rung after the next one."""
    await settled(own_mariadb)
    run_until = Link.run_until

    def lose(link: Link, *statements: str) -> Any:
        if any(each.startswith("KILL QUERY") for each in statements):
            monkeypatch.setattr(Link, "run_until", run_until)
            written = [each for each in statements if not each.startswith("KILL QUERY")]
            run_until(link, *written)
            link.break_()
            return [], pymysql.OperationalError(2013, "lost")
        return run_until(link, *statements)

    url = own_mariadb.url("app")
    async with pair(url) as (ours, one), pair(url) as (two, three):
        readers = [one, two, three]
        writer = ours.rwlock("x").write()
        async with writer:
            waiting = [
                asyncio.create_task(reader.rwlock("x").read().acquire()) for reader in readers
            ]
            async with asyncio.timeout(10):
                while len((await ours.rwlock("x").status()).waiters) != 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            monkeypatch.setattr(Link, "run_until", lose)
        leases = await asyncio.wait_for(asyncio.gather(*waiting), 2.5)  # a claim is 3 s
        for lease in leases:
            assert lease is not None
            await lease.release()


async def test_listener_that_connects_but_cannot_read_retries_less_and_less_often(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It connects less and less often, where it can, but not listen."""
    async with aiolock.connect(own_mariadb.url("app")) as client:
        listener = session_of(client)._listener
        connects = list[float]()

        def count() -> None:  # at once: however slow the machine is, it is not what keeps them few
            connects.append(time.monotonic())

        def fail() -> str:
            raise pymysql.OperationalError(1142, "no right any more")

        monkeypatch.setattr(listener, "_connect", count)
        monkeypatch.setattr(listener, "_reading", fail)
        own_mariadb.execute(f"KILL {number(own_mariadb, client, bell=True)}")
        await asyncio.sleep(2.0)
        assert 2 <= len(connects) <= 9
        monkeypatch.undo()
        await until(lambda: number(own_mariadb, client, bell=True) is not None)


async def test_handoff_to_another_database_user_is_logged_and_arrives_by_poll(
    own_mariadb: MariaDBServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Two users share a lock: the log says what to do, and what is left is read all the same."""
    own_mariadb.execute("CREATE USER other")
    for grant in mysql.schema("other").split(";\n"):
        if grant.startswith("GRANT"):
            own_mariadb.execute(grant)
    async with (
        aiolock.connect(own_mariadb.url("other")) as ours,
        aiolock.connect(own_mariadb.url("app", "?doorbell=poll")) as theirs,
    ):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        await (await asyncio.wait_for(waiting, 5)).release()
    assert "connect as one user" in caplog.text


async def test_push_that_was_read_is_delivered_once_and_removed(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is delivered once, and does not stay in the database."""
    heard = list[object]()
    deliver = Session._on_pushes

    def count(session: Session, told: Sequence[Push]) -> None:
        heard.append(told)
        deliver(session, told)

    monkeypatch.setattr(Session, "_on_pushes", count)
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        lease = await asyncio.wait_for(waiting, 5)
        await until(lambda: not own_mariadb.execute("SELECT * FROM aiolock_inbox"))
        await until(lambda: not session_of(theirs)._read.to_remove())  # it hears of that later
        assert len(heard) == 1
        await lease.release()


async def test_push_and_state_of_a_later_version_do_not_disturb_other_names(
    own_mariadb: MariaDBServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A push that cannot be read is no reason to hear no more; a state, to serve no other name."""
    async with pair(own_mariadb.url("app")) as (ours, theirs):
        me = theirs._engine.client
        own_mariadb.execute(
            "INSERT INTO aiolock_inbox (client, name, push) VALUES (%s, 'x', 'new')", me
        )
        own_mariadb.execute(
            "INSERT INTO aiolock_names (id, name, state) "
            " VALUES ('aiolock\0lock:n', 'aiolock\0lock:n', '{')"
        )
        with pytest.raises(aiolock.StoreError):
            await ours.lock("n").acquire()
        lease = await take(ours.lock("x"))
        assert await ours.names() == ["x"]
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        await (await asyncio.wait_for(waiting, 5)).release()
    assert "not a push of this version's" in caplog.text


# --- Transactions


def alone(server: MariaDBServer, client: str = "ada", prefix: str = "test") -> Database:
    """A client's database, without its threads."""
    settings = _settings.from_url(server.url("app"))
    return Database(settings, prefix, client, Read(), lost=lambda _: None, back=lambda: None)


def asking(client: str, name: str, seq: int = 1, *, shared: bool = False) -> Acquire:
    """A waiter of it asks for a name."""
    return Acquire(name, WaiterId(client, seq), Form(3000, shared=shared), 9000)


def ask(database: Database, operation: Operation[Any]) -> Any:
    """The answer to one operation."""
    (outcome,) = database.carry_out([operation], time.monotonic()).outcomes
    assert outcome.failure is None
    return outcome.answer


def test_operation_whose_commit_answer_is_lost_is_done_once(
    mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed, unheard, is done once: who asked has it, who gave back is told so."""
    database = alone(mariadb_server)
    database.open()
    run_until = Link.run_until

    def lose(link: Link, *statements: str) -> Any:
        answer = run_until(link, *statements)
        if "COMMIT" in statements:
            monkeypatch.setattr(Link, "run_until", run_until)
            link.break_()
            return [], pymysql.OperationalError(2013, "lost")
        return answer

    monkeypatch.setattr(Link, "run_until", lose)
    first = ask(database, asking("ada", "lost"))
    assert isinstance(first, Granted)
    again = ask(database, asking("ada", "lost"))
    assert isinstance(again, Granted)
    assert again.fence == first.fence
    monkeypatch.setattr(Link, "run_until", lose)
    assert ask(database, releasing("ada", "lost", first.fence)) == WAS_UNKNOWN
    held = ask(database, asking("ada", "lost", 2))
    monkeypatch.setattr(Link, "run_until", lose)
    assert ask(database, Break("lost", [held.fence])) == BREAK_UNKNOWN
    assert ask(database, Break("lost", [held.fence])) == 0
    database.close()


def test_connection_lost_while_notifying_repeats_no_committed_operation(
    mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done then, ringing somebody, is no reason to do anything twice."""
    database = alone(mariadb_server, "behind")
    database.open()
    grant = ask(database, asking("behind", "behind"))
    database._to_notify["somebody"] = None
    run_until = Link.run_until

    def lose(link: Link, *statements: str) -> Any:
        if statements == ("SELECT IS_USED_LOCK('aiolock:somebody:bell')",):
            link.break_()
        return run_until(link, *statements)

    monkeypatch.setattr(Link, "run_until", lose)
    assert ask(database, releasing("behind", "behind", grant.fence)) == WAS_HOLDER
    monkeypatch.undo()
    assert database._to_notify
    assert isinstance(ask(database, asking("behind", "behind")), Granted)
    assert not database._to_notify
    database.close()


def releasing(client: str, name: str, fence: int, seq: int = 1) -> Release:
    """It gives the name back."""
    return Release(name, WaiterId(client, seq), Form(3000), fence)


def test_snapshot_between_operations_of_a_batch_shows_those_before_it(
    mariadb_server: MariaDBServer,
) -> None:
    """It shows what those before it have done, and those behind it are saved as well."""
    database = alone(mariadb_server, prefix="snapshot")
    page = ReadPage()
    database.open()
    grant = ask(database, asking("ada", "seen"))
    waits = asking("ada", "seen", 2)
    gives_up = releasing("ada", "seen", 0, 2)
    done = database.carry_out([waits, page, gives_up, page], time.monotonic()).outcomes
    pages = [done[1].answer, done[3].answer, ask(database, page)]
    seen = [status for page in pages for status in page.statuses]
    assert [(len(each.holders), len(each.waiters)) for each in seen] == [(1, 1), (1, 0), (1, 0)]
    assert ask(database, releasing("ada", "seen", grant.fence)) == WAS_HOLDER
    database.close()


def small_packets(server: MariaDBServer) -> Database:
    """A client whose server takes messages of up to 64 KiB."""
    server.execute("SET GLOBAL max_allowed_packet = 65536")
    database = alone(server)
    database.open()
    return database


def posting(name: str, value: str) -> Post:
    """A value is left by that name."""
    return Post(name, 1, token="", declared=0, value=value, remember=60_000)


def test_batch_longer_than_a_packet_refuses_only_the_value_too_long_alone(
    own_mariadb: MariaDBServer,
) -> None:
    """All of it is done, by the same connection, but for what is too long alone, which is told."""
    database = small_packets(own_mariadb)
    connection = database.link.number()
    names = [f"n{number}" for number in range(30)]
    rows = "SELECT COUNT(*) FROM aiolock_names WHERE LENGTH(state) > 4000"
    done = database.carry_out([posting(each, "x" * 4000) for each in names], time.monotonic())
    assert not [each for each in done.outcomes if each.failure]
    assert own_mariadb.execute(rows) == [(30,)]
    values = dict.fromkeys(names, 4500 * "y") | {"n7": 40_000 * "y"}
    operations = [posting(name, value) for name, value in values.items()]
    done = database.carry_out(operations, time.monotonic())
    failures = {name: each.failure for name, each in zip(names, done.outcomes, strict=True)}
    refused = failures.pop("n7")
    assert refused is not None
    assert refused.refused
    assert "one name, its queue perhaps or a value, is longer" in str(refused)
    assert set(failures.values()) == {None}
    assert own_mariadb.execute(rows.replace("4000", "4500")) == [(29,)]
    assert database.link.number() == connection
    database.close()


def test_link_refuses_a_message_longer_than_max_allowed_packet(own_mariadb: MariaDBServer) -> None:
    """As long as the server takes; one that is a byte longer does not end the connection."""
    link = small_packets(own_mariadb).link
    longest = "SELECT '" + "x" * (65534 - 9) + "'"
    assert len(longest) == 65534
    ((text,),) = link.run("SELECT 1", longest, "SELECT 2")[1]
    assert len(text) == 65525
    connection = link.number()
    with pytest.raises(pymysql.OperationalError, match=r"65,535 bytes .* max_allowed_packet, 65,5"):
        link.run("SELECT 1", longest + " ")
    assert link.number() == connection
    link.close()


def test_release_to_more_waiters_than_a_packet_holds_leaves_all_pushes(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are left for them: so many enter in one step as a group does, which enters as a whole."""
    monkeypatch.setattr(protocol, "GRANTS", 400)
    database, other = small_packets(own_mariadb), alone(own_mariadb, "bob")
    other.open()
    writer = ask(database, asking("ada", "many"))
    readers = [asking("bob", "many", seq, shared=True) for seq in range(400)]
    done = other.carry_out(readers, time.monotonic()).outcomes
    assert {type(each.answer) for each in done} == {Queued}
    assert ask(database, releasing("ada", "many", writer.fence)) == WAS_HOLDER
    pushes = "SELECT COUNT(*), SUM(2 * LENGTH(push)) > 65536 FROM aiolock_inbox"
    assert own_mariadb.execute(pushes) == [(400, 1)]
    other.close()
    database.close()


def test_batches_of_names_in_opposite_orders_fail_nowhere(mariadb_server: MariaDBServer) -> None:
    """Several names at once, by two clients in opposite orders, new ones too: nobody is refused."""
    ann, bob = alone(mariadb_server, "ann"), alone(mariadb_server, "bob")
    names = [f"opposite-{number}" for number in range(30)]
    failures: list[object] = []

    def run(database: Database, order: list[str]) -> None:
        database.open()
        for each in range(20):
            operations = [asking(database._client, f"{name}-{each % 5}") for name in order]
            done = database.carry_out(operations, time.monotonic())
            failures.extend(each.failure for each in done.outcomes if each.failure)
        database.close()

    other = threading.Thread(target=run, args=(bob, names[::-1]))
    other.start()
    run(ann, names)
    other.join()
    assert not failures


def before_the_dead(server: MariaDBServer, name: str) -> Database:
    """A client that has the name, for which another waits that has died."""
    ours, theirs = alone(server, "ada"), alone(server, "bob")
    ours.open()
    theirs.open()
    assert isinstance(ask(ours, asking("ada", name)), Granted)
    assert isinstance(ask(theirs, asking("bob", name)), Queued)
    theirs.link.close()
    server.execute("SELECT GET_LOCK('aiolock:bob', 5), RELEASE_LOCK('aiolock:bob')")
    return ours


def living(client: Database, name: str) -> list[bool]:
    """Of each waiter for the name: whether that client takes it for alive."""
    return [waiter.alive for waiter in ask(client, ReadStatus(name)).waiters]


def test_dead_clients_stay_dead_and_are_swept_after_the_clock_is_set_back(
    mariadb_server: MariaDBServer,
) -> None:
    """The dead are passed over and forgotten as before, and not only when it has caught up."""
    database = before_the_dead(mariadb_server, "set-back")
    mariadb_server.execute("INSERT INTO aiolock_clients VALUES ('set-back', 'host', 7, 0)")
    database.link.run("SET timestamp = UNIX_TIMESTAMP() - 3600")
    assert living(database, "set-back") == [False]
    database._set_up()  # as with each other connection: nor is that a start of the server
    assert living(database, "set-back") == [False]
    database.sweep()
    gone = "SELECT * FROM aiolock_clients WHERE client = 'set-back'"
    assert mariadb_server.execute(gone) == []
    database.close()


def test_waiter_counts_as_alive_after_a_restart_with_an_earlier_clock(
    own_mariadb: MariaDBServer,
) -> None:
    """Then, too, nobody is dead just after it."""
    database = before_the_dead(own_mariadb, "earlier")
    hour = 3_600_000_000
    assert database._started is not None
    database._started, database._grace = database._started + hour, database._grace + hour
    own_mariadb.restart()
    assert living(database, "earlier") == [True]
    database.close()


async def test_names_of_unusual_characters_and_long_values_are_kept_apart(
    mariadb_server: MariaDBServer, prefix: str
) -> None:
    """Names and values are bytes to the database: blanks at the end, case, NUL are their own."""
    names = ["a", "A", "a ", "a\0", "a\0b", "\0a", "ü" * 512, "ü" * 511 + "u", "🙂" * 512]
    names.append("'; DROP TABLE aiolock_names")
    async with aiolock.connect(mariadb_server.url("app"), prefix=prefix) as client:
        leases = [await take(client.lock(name, timeout=1)) for name in names]
        for lease in leases:
            holders = (await client.lock(lease.name).status()).holders
            assert [each.fence for each in holders] == [lease.fence]
            await lease.release()
        async with client.election("e").campaign(value := "\0 Ab" * 2_500):
            leader = await client.election("e").leader()
            assert leader is not None
            assert leader.value == value


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("ADD CONSTRAINT brief CHECK (LENGTH(name) < 50)", "brief"),
        # The server shortens the name and keeps that, which is the name of another row.
        ("MODIFY id VARBINARY(50) NOT NULL", "no row of this name in aiolock_names: .*'id'"),
    ],
    ids=["it_refuses", "it_shortens_the_name"],
)
async def test_acquire_of_a_name_whose_row_cannot_be_made_fails_alone(
    own_mariadb: MariaDBServer, change: str, why: str
) -> None:
    """Who asks for that name is told at once, and why; others at that time get their locks."""
    own_mariadb.execute(f"ALTER TABLE aiolock_names {change}")
    async with aiolock.connect(own_mariadb.url("app")) as client:
        asked = [client.lock(name, timeout=5).acquire() for name in ("a", "long" * 20, "b")]
        first, refused, last = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(refused, aiolock.StoreError)
        assert re.search(why, str(refused))
        for lease in (first, last):
            assert isinstance(lease, aiolock.Lease)
            await lease.release()


async def test_sweep_removes_unused_names_and_rows_of_dead_clients_only(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody needs is forgotten: unused names, inboxes and clients of the dead."""
    await settled(own_mariadb)
    monkeypatch.setattr(_database, "_SWEPT", 2)
    monkeypatch.setattr(_database, "_FORGOTTEN", 0)
    async with aiolock.connect(own_mariadb.url("app")) as client:
        held = await take(client.lock("held"))
        for each in range(5):
            async with client.lock(f"free-{each}"):
                pass
        age(own_mariadb)
        own_mariadb.execute("INSERT INTO aiolock_inbox (client, name, push) VALUES ('d', '', '')")
        own_mariadb.execute("INSERT INTO aiolock_clients VALUES ('d', 'host', 7, 0)")
        database = session_of(client)._database
        for _ in range(4):
            await asyncio.to_thread(database.sweep)
        rows = own_mariadb.execute("SELECT id FROM aiolock_names")
        assert rows == [(b"aiolock\0lock:held",)]
        assert own_mariadb.execute("SELECT * FROM aiolock_inbox") == []
        assert len(own_mariadb.execute("SELECT * FROM aiolock_clients")) == 1
        await held.release()


async def test_aclose_of_a_client_open_for_a_moment_sweeps(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they close, now and then: here, always."""
    await settled(own_mariadb)
    monkeypatch.setattr(_session, "SWEEP", 1e-9)
    monkeypatch.setattr(Session, "look_after", lambda _: None)
    for _ in range(2):
        async with aiolock.connect(own_mariadb.url("app")) as client:
            async with client.lock("x"):
                pass
            age(own_mariadb)
    assert own_mariadb.execute("SELECT * FROM aiolock_names") == []


def age(server: MariaDBServer) -> None:
    """Let all that is known have been written down 20 minutes earlier."""
    server.execute("UPDATE aiolock_names SET changed_at = changed_at - 1200000000")


IDLE = '{"holders":[],"queue":[],"forms":[]}'
"""A state of which nothing is kept any more, as of a semaphore that was used long ago."""


def fill(server: MariaDBServer, names: Sequence[str], state: str = "") -> None:
    """Leave rows of names that were used long ago."""
    for name in names:
        server.execute(
            "INSERT INTO aiolock_names (id, name, state) VALUES (%s, %s, %s)", name, name, state
        )


def names(server: MariaDBServer) -> list[bytes]:
    """The names that have a row."""
    return [name for (name,) in server.execute("SELECT id FROM aiolock_names ORDER BY id")]


async def test_sweeps_follow_at_once_until_no_unused_name_is_left(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without a state, however many there are; and none of them waits for a minute."""
    monkeypatch.setattr(_database, "_GRACE", 0)
    monkeypatch.setattr(_database, "_SWEPT", 3)
    monkeypatch.setattr(_session, "_SOON", 0.01)
    at_once = SimpleNamespace(uniform=lambda *_: 0.0, random=lambda: 1.0)
    monkeypatch.setattr(_session, "random", at_once)
    fill(own_mariadb, [f"a{number}" for number in range(9)], IDLE)
    fill(own_mariadb, [f"b{number}" for number in range(9)])
    async with aiolock.connect(own_mariadb.url("app")) as client:
        await client.lock("x").status()  # the first sweep comes behind it
        await until(lambda: not names(own_mariadb))
        session = session_of(client)
        await until(lambda: session.rest == _session.HEARTBEAT)


def test_sweep_removes_a_hundred_dead_clients_in_two_commits(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And as many pushes for them, in two commits; the next sweep comes soon if there are more."""
    monkeypatch.setattr(_database, "_GRACE", 0)
    monkeypatch.setattr(_database, "_SWEPT", 100)
    database, many = alone(own_mariadb), "FROM seq_1_to_150"
    database.open()
    own_mariadb.execute(f"INSERT INTO aiolock_clients SELECT CONCAT('d', seq), '', 7, 1 {many}")
    own_mariadb.execute(
        f"INSERT INTO aiolock_inbox (client, name, push) SELECT CONCAT('d', seq), '', '' {many}"
    )
    counts = "SELECT (SELECT COUNT(*) FROM aiolock_clients), (SELECT COUNT(*) FROM aiolock_inbox)"
    before = commits(own_mariadb)
    assert database.sweep()
    assert commits(own_mariadb) - before <= 2
    assert own_mariadb.execute(counts) == [(51, 50)]  # and that client itself
    assert not database.sweep()
    assert own_mariadb.execute(counts) == [(1, 0)]
    database.close()


def commits(server: MariaDBServer) -> int:
    """How many statements have removed something, each of which is a commit."""
    return int(server.execute("SHOW GLOBAL STATUS LIKE 'Com_delete'")[0][1])


def test_sweep_keeps_a_dead_client_that_comes_back_meanwhile(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dead when a sweep looked, and is alive when that removes what it has found."""
    monkeypatch.setattr(_database, "_GRACE", 0)
    database = alone(own_mariadb)
    database.open()
    own_mariadb.execute("INSERT INTO aiolock_clients VALUES ('back', '', 7, 1), ('dead', '', 7, 1)")
    run = database.link.run

    def comes_back(*statements: str) -> Any:
        if statements[0].startswith("DELETE"):
            own_mariadb.execute("UPDATE aiolock_clients SET seen = 2 WHERE client = 'back'")
        return run(*statements)

    monkeypatch.setattr(database.link, "run", comes_back)
    database.sweep()
    left = own_mariadb.execute("SELECT client FROM aiolock_clients ORDER BY client")
    assert left == [("ada",), ("back",)]
    database.close()


def test_sweep_removes_the_oldest_names_first_and_some_at_a_time(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many that are in use have names before them."""
    monkeypatch.setattr(_database, "_GRACE", 0)
    monkeypatch.setattr(_database, "_SWEPT", 10)
    database = alone(own_mariadb)
    database.open()
    fill(own_mariadb, [f"a{number:03}" for number in range(300)])
    own_mariadb.execute(f"UPDATE aiolock_names SET changed_at = {NOW}")
    fill(own_mariadb, [f"b{number:02}" for number in range(7)], IDLE)
    fill(own_mariadb, [f"c{number:02}" for number in range(7)])
    own_mariadb.execute("UPDATE aiolock_names SET changed_at = 60000000 WHERE id LIKE 'c%'")
    assert database.sweep()
    assert [*names(own_mariadb)[300:]] == [b"c03", b"c04", b"c05", b"c06"]
    assert not database.sweep()
    assert len(names(own_mariadb)) == 300
    database.close()


async def test_sweep_skips_awaited_and_unreadable_names_and_removes_all_behind(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those that cannot be read: they have their turn again, later."""
    await settled(own_mariadb)
    monkeypatch.setattr(_database, "_SWEPT", 4)
    monkeypatch.setattr(Session, "look_after", lambda _: None)
    async with aiolock.connect(own_mariadb.url("app")) as client:
        database = session_of(client)._database
        waited = encode(queue_of(client.id))
        fill(own_mariadb, [f"a{number}" for number in range(3)], waited)
        fill(own_mariadb, ["a3"], "later")
        fill(own_mariadb, [f"b{number}" for number in range(3)], encode(queue_of("dead")))
        fill(own_mariadb, ["c"])
        assert await asyncio.to_thread(database.sweep)
        assert await asyncio.to_thread(database.sweep)
        assert not await asyncio.to_thread(database.sweep)
        assert names(own_mariadb) == [b"a0", b"a1", b"a2", b"a3"]


def queue_of(client: str) -> NameState:
    """The state of a name for which a client waits."""
    state = NameState()
    state.enqueue(1, WaiterId(client, 1), Form(1000))
    return state


# --- The URL, the tables, rights


def test_url_parts_are_percent_decoded_and_repr_hides_the_password() -> None:
    """The parts of it, percent-encoded; no password is ever shown."""
    settings = _settings.from_url("mariadb://a%40b:p%2Fw@[::1]/d?poll=0.5&unix_socket=/s&create=1")
    assert (settings.user, settings.password, settings.database) == ("a@b", "p/w", "d")
    assert (settings.host, settings.port, settings.poll) == ("::1", 3306, 0.5)
    assert settings.create
    assert "p/w" not in repr(mysql.from_url("mysql://a:p%2Fw@h/d", "x"))
    assert "p/w" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("mysql://h", "the name of the database"),
        ("mysql://h/a/b", "the name of the database"),
        ("mysql://h:port/d", "address 1 in this URL is no host and port"),
        ("mysql://u:p@w/x@h/d", "percent-encode .* / as %2F"),
        ("mysql://h/d?durable=0", "there is no option 'durable'"),
        ("mysql://h/d?create=0&create=1", "'create' is in this URL twice"),
        ("mysql://h/d?create=yes", "create must be 0 or 1"),
        ("mysql://h/d?doorbell=ring", "one of auto, kill, poll"),
        ("mysql://h/d?poll=0", "from 0.001 to 10"),
        ("mysql://h/d?poll", "each option of this URL is name=value"),
        ("mysql://h/d?ssl_cert=/c", "go with ssl=1"),
        ("mysql://h/d?ssl_ca=/nowhere", "ssl_ca= in this URL is not there"),
    ],
)
def test_connect_with_an_invalid_url_raises_value_error_without_the_password(
    url: str, what: str
) -> None:
    """It is told before anything is connected."""
    with pytest.raises(ValueError, match=what) as told:
        aiolock.connect(url)
    assert "w/x" not in str(told.value)


async def test_url_with_unix_socket_connects_without_a_port(own_mariadb: MariaDBServer) -> None:
    """A server on the same machine needs no port."""
    url = f"mysql://root@localhost/shop?unix_socket={own_mariadb.socket}"
    async with pair(url) as (ours, theirs):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        await (await soon(waiting, within=5)).release()


async def test_open_without_a_server_raises_store_error_with_its_address() -> None:
    """An error that says where."""
    port = databases.free_port()
    with pytest.raises(aiolock.StoreError, match=f"MySQL at 127.0.0.1:{port}/x"):
        await aiolock.connect(f"mysql://app@127.0.0.1:{port}/x").open()


async def test_open_without_tables_or_rights_raises_store_error_with_the_remedy(
    own_mariadb: MariaDBServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that says which command makes them; and after that command it works."""
    own_mariadb.execute("CREATE DATABASE other")
    owner, url = (own_mariadb.url(user).replace("/shop", "/other") for user in ("root", "app"))
    with pytest.raises(aiolock.StoreError, match="may not use the database"):
        await aiolock.connect(url).open()
    with pytest.raises(aiolock.StoreError, match="run `aiolock init-db URL`"):
        await aiolock.connect(owner).open()
    assert await asyncio.to_thread(main, ["init-db", owner]) == 0
    assert "Only its owner may use it" in capsys.readouterr().out
    own_mariadb.execute("GRANT SELECT ON other.aiolock_meta TO app")
    with pytest.raises(aiolock.StoreError, match="GRANT SELECT, INSERT, UPDATE, DELETE ON aiolock"):
        await aiolock.connect(url).open()
    assert await asyncio.to_thread(main, ["init-db", owner, "--role", "app"]) == 0
    assert "app may use it" in capsys.readouterr().out
    async with aiolock.connect(url) as client, client.lock("x"):
        pass


async def test_create_1_by_several_clients_at_once_makes_the_tables(
    own_mariadb: MariaDBServer,
) -> None:
    """`create=1` makes them, by as many as come at once, and again."""
    own_mariadb.execute("CREATE DATABASE other")
    url = own_mariadb.url(query="?create=1").replace("/shop", "/other")
    clients = [aiolock.connect(url) for _ in range(4)]
    await asyncio.gather(*(client.open() for client in clients))
    for client in clients:
        async with client.lock("x"):
            pass
        await client.aclose()


def test_init_db_print_mysql_prints_the_schema_with_the_quoted_role(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For an owner who wants to read them first; without a server."""
    assert main(["init-db", "--print", "mysql", "--role", "we'ird@10.%"]) == 0
    text = capsys.readouterr().out
    assert text == mysql.schema("we'ird@10.%")
    assert "TO 'we''ird'@'10.%'" in text


async def test_open_accepts_tables_one_protocol_later_and_refuses_later_ones(
    own_mariadb: MariaDBServer,
) -> None:
    """Tables of the next version serve this one as well; of one later they are an error."""
    own_mariadb.execute("INSERT INTO aiolock_meta VALUES (2)")
    async with aiolock.connect(own_mariadb.url("app")) as client, client.lock("x"):
        assert client.protocols == (1, 2)
    own_mariadb.execute("INSERT INTO aiolock_meta VALUES (3)")
    text = r"run `aiolock init-db URL`.*protocol 3 is spoken there.*speaks protocol 1,"
    with pytest.raises(aiolock.StoreError, match=text):
        await aiolock.connect(own_mariadb.url("app")).open()


async def test_open_on_tables_of_an_earlier_protocol_suggests_init_db(
    mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is to bring them up to date first."""
    monkeypatch.setattr("aiolock.stores.mysql._schema.PROTOCOL", 2)
    text = r"run `aiolock init-db URL`.*protocol 1 is spoken there.*speaks protocol 2,"
    with pytest.raises(aiolock.StoreError, match=text):
        await aiolock.connect(mariadb_server.url("app")).open()


async def test_tls_with_ssl_ca_verifies_the_certificate_and_refuses_an_unknown_one(
    own_mariadb: MariaDBServer, tmp_path: Path
) -> None:
    """TLS, by a certificate that is looked at."""
    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    folder = own_mariadb.folder
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    (folder / "key.pem").chmod(0o644)
    own_mariadb._settings += (f"--ssl-cert={folder}/cert.pem", f"--ssl-key={folder}/key.pem")
    await asyncio.to_thread(own_mariadb.restart)
    own_mariadb.execute("ALTER USER app REQUIRE SSL")
    async with pair(own_mariadb.url("app", f"?ssl_ca={tmp_path}/ca.pem")) as (ours, theirs):
        lease = await take(ours.lock("x"))
        waiting = asyncio.create_task(take(theirs.lock("x")))
        await queued(ours.lock("x"), 1)
        await lease.release()
        await (await asyncio.wait_for(waiting, 5)).release()
    with pytest.raises(aiolock.StoreError, match="certificate"):
        await aiolock.connect(own_mariadb.url("app", "?ssl=1")).open()


async def test_open_with_an_invalid_client_id_raises_value_error(
    mariadb_server: MariaDBServer,
) -> None:
    """A client's id is part of names of the server's locks: what cannot be, is told."""
    store = mysql.from_url(mariadb_server.url("app"), "x")
    with pytest.raises(ValueError, match="up to 48 letters"):
        await store.open("it's", None)  # type: ignore[arg-type]


def test_connect_without_pymysql_raises_import_error_with_the_extra() -> None:
    """The error says which extra to install."""
    program = (
        "import sys; sys.modules['pymysql'] = None\n"
        "import aiolock\n"
        "try:\n    aiolock.connect('mysql://x/y')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    printed = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install 'aiolock-redis[mysql]'" in printed


def test_listener_trial_is_limited_to_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps for a second at most, so that opening is not slow where nobody rings."""
    asked = list[str]()

    def nobody_rings(_: Link, *statements: str) -> Any:
        asked.extend(statements)
        return [[(0,)]], None

    monkeypatch.setattr(Link, "run_until", nobody_rings)
    settings = _settings.from_url("mysql://app@x/y")
    no: Any = None  # it calls none of them
    listener = Listener(settings, "x", "me", Read(), on_pushes=no, lost=no, failing=no, back=no)
    assert not listener._can_be_notified()
    (statement,) = asked
    (seconds,) = re.findall(r"GET_LOCK\('[^']*', ([0-9.]+)\)", statement)
    assert 0 < float(seconds) <= 1
