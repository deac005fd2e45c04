"""The embedded store: where its file may lie, who lives, what is fetched, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiolock
import aiolock.store
from aiolock._engine.diagnostics import slow_monitor
from aiolock._engine.waiters import _PROCESS
from aiolock.protocol import (
    Acquire,
    Form,
    Granted,
    Operation,
    ReadPage,
    ReadPosted,
    ReadStatus,
    Release,
    ReleaseRequested,
    Renew,
    Renewal,
    RequestRelease,
    Resize,
    Rule,
    WaiterId,
)
from aiolock.stores import machine
from aiolock.stores._codec import decode, encode
from aiolock.stores._holders import Grant, Holder
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.sqlite import (
    SQLiteStore,
    _clock,
    _database,
    _filelock,
    _files,
    _notifier,
    _places,
    _presence,
    _session,
    _transaction,
    from_url,
)
from aiolock.stores.sqlite._connection import Connection
from aiolock.stores.sqlite._database import Database
from aiolock.stores.sqlite._session import Session
from aiolock.stores.sqlite._transaction import Transaction
from tests.support.failures import queued, take, until


@pytest.fixture(autouse=True)
def no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever puts one up fetches what was left for it, bell or no bell."""
    monkeypatch.setattr(slow_monitor, "_EVERY", 3600.0)


@pytest.fixture
def path() -> Iterator[Path]:
    """Where the locks of a test are, near enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="aiolock-") as directory:
        yield Path(directory) / "locks.db"


@pytest.fixture
def url(path: Path) -> str:
    """The same, for `connect`."""
    return f"sqlite:///{path}"


def clients(path: Path) -> list[str]:
    """The files that clients have left beside the database."""
    beside = Path(f"{path}.clients").iterdir()
    return sorted(entry.name for entry in beside if entry.suffix in {".lock", ".sock"})


def session_of(client: aiolock.LockClient) -> Session:
    """What is behind a client that is open."""
    store = client._engine.store
    assert isinstance(store, SQLiteStore)
    assert store._session is not None
    return store._session


# --- Where it is


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "url",
    [
        "sqlite://locks.db",
        "sqlite:///locks.db",
        "sqlite:///tmp/locks.db",
        "sqlite://///tmp/locks.db",
        "sqlite:////",
        "sqlite:////tmp/",
        "sqlite:///./",
        "sqlite:////tmp/a%00b",
        "sqlite:////tmp/locks.db?mode=ro",
        "sqlite:////tmp/locks.db#locks",
    ],
)
def test_connect_with_an_invalid_sqlite_url_suggests_both_spellings(url: str) -> None:
    """A URL is refused before anything is opened, with what it should be."""
    with pytest.raises(ValueError, match=r"sqlite:////absolute/.* sqlite:///\./locks\.db"):
        aiolock.connect(url)


@pytest.mark.one_loop
@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_connect_with_an_in_memory_sqlite_url_suggests_memory(url: str) -> None:
    """A database in memory is not shared by processes, so it is no store for them."""
    with pytest.raises(ValueError, match="use memory://"):
        aiolock.connect(url)


@pytest.mark.one_loop
@pytest.mark.parametrize("path", ["./locks.db", "../app/locks.db"])
async def test_relative_path_is_resolved_when_the_client_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The working directory may change afterwards: the file stays the same one."""
    (tmp_path / "app").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    client = aiolock.connect(f"sqlite:///{path}")
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with client, client.lock("x"):
        pass
    assert (tmp_path / "app" / "locks.db").exists()


async def test_path_with_percent_encoded_characters_is_decoded(tmp_path: Path) -> None:
    """Blanks and other letters are written as in any URL."""
    (tmp_path / "a b").mkdir()
    url = f"sqlite:///{tmp_path}/a%20b/l%C3%B6cks.db"
    async with aiolock.connect(url) as client, client.lock("x"):
        pass
    assert (tmp_path / "a b" / "löcks.db").exists()


async def test_open_in_a_missing_directory_raises_store_error_naming_it(tmp_path: Path) -> None:
    """The error says what is to be made."""
    with pytest.raises(aiolock.StoreError, match=r"there is no directory .*/nowhere: make it"):
        async with aiolock.connect(f"sqlite:///{tmp_path}/nowhere/locks.db"):
            pass


async def test_open_of_a_foreign_file_raises_store_error_and_leaves_nothing(
    path: Path, url: str
) -> None:
    """A file that is not ours is left alone, whatever it is."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (x)")
    with pytest.raises(aiolock.StoreError, match=r"holds something else.*a file of their own"):
        async with aiolock.connect(url):
            pass
    path.write_text("no database, and longer than the header of one" * 10)
    with pytest.raises(aiolock.StoreError, match=r"is no database.*a file of their own"):
        async with aiolock.connect(url):
            pass
    path.unlink()
    path.mkdir()
    with pytest.raises(aiolock.StoreError, match="cannot be opened"):
        async with aiolock.connect(url):
            pass
    assert list(path.parent.iterdir()) == [path]  # and nothing lies about beside it


async def test_open_of_a_foreign_file_by_several_clients_is_one_at_a_time(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removes what it made, and who waits for it makes that anew: one works at a time."""
    path.write_text("no database, and longer than the header of one" * 10)
    at_work, most = list[int](), list[int]()
    is_opened = Connection._is_opened

    def look(connection: Connection, guard: int) -> bool:
        at_work.append(1)
        most.append(len(at_work))
        try:
            time.sleep(0.02)
            return is_opened(connection, guard)
        finally:
            at_work.pop()

    monkeypatch.setattr(Connection, "_is_opened", look)

    async def open_it() -> None:
        with pytest.raises(aiolock.StoreError, match="is no database"):
            await aiolock.connect(url).open()

    await asyncio.gather(*(open_it() for _ in range(5)))
    assert most == [1] * 5
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    async with aiolock.connect(url) as client, client.lock("x"):
        pass


@pytest.mark.one_loop
async def test_file_of_a_later_protocol_is_refused_at_open_and_while_open(
    path: Path, url: str
) -> None:
    """What a later version has written is not touched, also if that came to an open file."""
    refused = (
        "locks of another version of aiolock: upgrade.*protocol 9 is spoken.*speaks protocol 1"
    )
    async with aiolock.connect(url) as client:
        assert client.protocols == (1,)
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 9")
        with pytest.raises(aiolock.StoreError, match=refused):
            await client.lock("a").acquire()
    with pytest.raises(aiolock.StoreError, match=refused):
        await aiolock.connect(url).open()


@pytest.mark.one_loop
async def test_file_is_shared_with_the_next_protocol_and_refused_beyond_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It and this one share a file; so programs may be replaced one by one."""
    async with aiolock.connect(url) as older:
        async with older.lock("a"):
            pass
        monkeypatch.setattr("aiolock.stores.sqlite._connection.VERSION", 2)
        monkeypatch.setattr("aiolock.stores.sqlite._store.VERSION", 2)
        async with aiolock.connect(url) as newer, newer.lock("a"):
            assert newer.protocols == (2,)
        monkeypatch.undo()
        async with older.lock("a"), aiolock.connect(url) as another:
            assert older.protocols == another.protocols == (1, 2)
        monkeypatch.setattr("aiolock.stores.sqlite._connection.VERSION", 4)
        with pytest.raises(aiolock.StoreError, match=r"protocol 2 is spoken.*speaks protocol 4"):
            await aiolock.connect(url).open()


@pytest.mark.one_loop
def test_check_place_on_a_network_file_system_raises_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on one of them is refused, and one on a disk below it is not."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "disk / ext4 rw 0 0\nserver:/x /srv nfs4 rw 0 0\n"
        "disk /srv/a\\040disk xfs rw 0 0\nother /srvx fuse.sshfs rw 0 0\n"
    )

    def kind(directory: str) -> str:
        return _places._kind(directory, str(mounts))

    assert kind("/srv/app") == "nfs4"
    assert kind("/srv") == "nfs4"
    assert kind("/srv/a disk/app") == "xfs"
    assert kind("/srvx/app") == "fuse.sshfs"
    assert kind("/home/app") == "ext4"
    assert _places._kind("/srv", str(tmp_path / "nothing")) == ""
    monkeypatch.setattr(_places, "_kind", lambda _: "nfs4")
    with pytest.raises(aiolock.StoreError, match=r"network file system \(nfs4\)"):
        _places.check_place(tmp_path / "locks.db")


async def test_prefixes_that_differ_keep_locks_in_one_file_apart(url: str) -> None:
    """Locks of one name and of two prefixes are two locks, in one file."""
    async with (
        aiolock.connect(url, prefix="a") as a,
        aiolock.connect(url, prefix="b") as b,
        a.lock("x"),
        b.lock("x"),
    ):
        assert await a.lock("x").locked()


async def test_open_of_a_foreign_database_does_not_change_it(path: Path, url: str) -> None:
    """Not by a byte."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(aiolock.StoreError, match="something else"):
        await aiolock.connect(url).open()
    assert path.read_bytes() == before


async def test_symbolic_link_to_the_file_shares_its_locks_and_clients(path: Path, url: str) -> None:
    """Whoever comes by another path finds the same locks, and the same clients."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    async with aiolock.connect(url) as ours, aiolock.connect(f"sqlite:///{link}") as theirs:
        lease = await take(ours.lock("x", ttl=30))
        waiting = await waits(theirs, "x")
        assert [party.alive for party in (await ours.lock("x").status()).waiters] == [True]
        await lease.release()
        await (await asyncio.wait_for(waiting, 2)).release()


def opened(path: Path) -> list[str]:
    """What this process has open of the database and what is beside it."""
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return [each for each in found if each.startswith(str(path))]


LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


@LINUX
@pytest.mark.parametrize("step", ["_list", "enter", "others"])
async def test_open_that_fails_leaves_no_file_open_or_beside_the_database(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Not open, nor lying about, and the error says what it was."""

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with aiolock.connect(url):
        pass
    monkeypatch.setattr(_clock, "boot", lambda: "another start")  # so that others are looked for
    monkeypatch.setattr(_presence.Presence, step, fails)
    with pytest.raises(aiolock.StoreError, match="No space left on device"):
        await aiolock.connect(url).open()
    assert not opened(path)
    assert not clients(path)


# --- Its thread


def threads() -> int:
    """How many threads of such stores there are."""
    return sum(thread.name == "aiolock sqlite" for thread in threading.enumerate())


def test_thread_of_a_client_whose_loop_was_closed_ends_by_itself(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread ends by itself, with all that it has open; and a second loop has its own."""
    monkeypatch.setattr("aiolock.stores.sqlite._session.HEARTBEAT", 0.2)
    client = aiolock.connect(url)

    async def use() -> None:
        await client.open()
        async with client.lock("x"):
            pass

    for _ in range(2):
        with asyncio.Runner() as runner:
            runner.run(use())
        with asyncio.Runner() as runner:
            runner.run(until(lambda: not threads()))
    assert not clients(path)
    with asyncio.Runner() as runner:
        runner.run(use())
        runner.run(client.aclose())
        runner.run(until(lambda: not threads()))


async def test_open_cancelled_while_the_file_is_locked_ends_at_once(path: Path, url: str) -> None:
    """It is over at once, also where the file is locked; its thread ends by itself."""
    async with aiolock.connect(url):
        pass
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aiolock.connect(url).open(), 0.2)
        assert time.monotonic() - began < 2
    await until(lambda: not threads())
    assert not clients(path)


async def test_aclose_that_is_cancelled_carries_out_pending_operations_and_ends(
    path: Path, url: str
) -> None:
    """What was asked is carried out all the same, and nothing is left open."""
    store = from_url(url, "aiolock")
    deliver: Any = object()
    await store.open("ada", deliver)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        asked = store.submit(ReadPosted("x"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.aclose(), 0.2)
    await asked
    await until(lambda: not threads())
    assert not clients(path)


async def test_thread_that_ends_by_a_fault_fails_pending_and_later_operations(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has asked is told, and whoever asks after that; and closing waits for nothing."""
    monkeypatch.setattr("aiolock.stores.sqlite._session.HEARTBEAT", 0.05)
    fails = threading.Event()
    asked = threading.Event()

    def is_there(_: _presence.Presence) -> bool:
        fails.set()
        asked.wait(5)
        raise LookupError

    async with asyncio.timeout(10), aiolock.connect(url) as client:
        store = client._engine.store
        monkeypatch.setattr(_presence.Presence, "is_there", is_there)
        await asyncio.to_thread(fails.wait)
        question = store.submit(ReadPosted("x"))
        asked.set()
        with pytest.raises(aiolock.StoreError, match="LookupError") as before:
            await question
        with pytest.raises(aiolock.StoreError, match="LookupError") as after:
            await store.submit(ReadPosted("x"))
        assert before.value is not after.value
        assert after.value.refused


async def test_aclose_whose_cleanup_fails_ends_without_an_error(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for nothing, whatever its directory has become meanwhile."""
    leave = _presence.Presence.leave

    def fails(self: _presence.Presence) -> None:
        leave(self)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with asyncio.timeout(10):
        async with aiolock.connect(url):
            path.parent.rename(f"{path.parent}.old")
            path.parent.touch()
        await until(lambda: not threads())
        path.parent.unlink()
        Path(f"{path.parent}.old").rename(path.parent)
        faults: list[object] = []
        monkeypatch.setattr("threading.excepthook", faults.append)
        monkeypatch.setattr(_presence.Presence, "leave", fails)
        async with aiolock.connect(url):
            pass
        await until(lambda: not threads())
        assert not faults


async def test_operations_on_a_locked_file_all_fail_within_the_busy_timeout(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, where the file is locked: what has waited as long is told, too."""
    monkeypatch.setattr("aiolock.stores.sqlite._connection.BUSY", 0.3)
    # A hundred batches, each of which would wait as long.
    monkeypatch.setattr("aiolock.stores._worker._TOGETHER", 10)
    async with aiolock.connect(url) as client:
        store = client._engine.store
        await store.submit(ReadPosted("x"))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            asked = [store.submit(ReadPosted(str(number))) for number in range(1000)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert time.monotonic() - began < 4
        assert {type(answer) for answer in answers} == {aiolock.StoreError}
        assert len({id(answer) for answer in answers}) == 1000
        await store.submit(ReadPosted("x"))


async def test_batch_repeated_one_by_one_on_a_locked_file_waits_only_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that are carried out by themselves after that, the first waits for all."""
    async with aiolock.connect(url) as client:
        store = client._engine.store
        database = session_of(client)._database
        first, times = database._connection.begin, list[None]()

        def begins() -> Transaction:
            """The first time as ever; after that somebody has it locked."""
            times.append(None)
            if len(times) == 1:
                return first()
            raise sqlite3.OperationalError("database is locked")

        def fails(*_: object) -> None:
            raise LookupError

        monkeypatch.setitem(machine._METHODS, RequestRelease, fails)
        monkeypatch.setattr(database._connection, "begin", begins)
        monkeypatch.setattr(database, "sweep", list)
        asked: list[asyncio.Future[Any]] = [store.submit(RequestRelease("x"))]
        asked += [store.submit(ReadPosted("x")) for _ in range(9)]
        await asyncio.gather(*asked, return_exceptions=True)
        assert len(times) == 2
        monkeypatch.undo()


async def test_release_whose_notification_fails_after_the_commit_is_answered(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed is answered: whoever could not be rung asks by itself."""

    def fails(*_: object) -> None:
        raise OverflowError

    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=30))
        waiting = await waits(theirs, "x")
        monkeypatch.setattr(_notifier, "notify", fails)
        assert await lease.release()
        holders = (await ours.lock("x").status()).holders
        assert [party.client for party in holders] == [theirs.id]
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_push_and_state_of_a_later_version_do_not_disturb_other_names(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a push nor a name that cannot be read keeps a client from anything."""
    monkeypatch.setattr("aiolock.stores.sqlite._session.SWEEP", 0.05)
    monkeypatch.setattr("aiolock.stores.sqlite._session._SOON", 0.05)
    monkeypatch.setattr("aiolock.stores.sqlite._session.HEARTBEAT", 0.05)
    async with aiolock.connect(url) as client:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            for push in ('["new", "a", 1]', '["granted"]', "{}", "null", "no JSON"):
                database.execute(
                    "INSERT INTO inbox (client, name, push) VALUES (?, 'x', ?)", (client.id, push)
                )
            idle = '{"holders":[],"queue":[],"forms":[]}'
            database.execute("INSERT INTO names VALUES (x'00', '{}', 0, 0)")
            database.execute("INSERT INTO names VALUES (x'01', ?, 0, 0)", (idle,))
            later = b"aiolock\0lock:later"
            database.execute("INSERT INTO names VALUES (?, '{}', 0, ?)", (later, 2**62))
            async with client.lock("x"):
                assert await client.names() == ["x"]
            database.execute("DELETE FROM names WHERE name = ?", (later,))
            assert database.execute("SELECT count(*) FROM inbox").fetchone() == (0,)
            names = "SELECT name FROM names"
            await until(lambda: database.execute(names).fetchall() == [(b"\0",)])


# --- A fork

_FORKS = """
import asyncio, os, sys
import aiolock

async def hold(url, writes):
    async with aiolock.connect(url) as client:
        async with client.lock("y"):
            os.write(writes, b"!")
        sys.stdin.readline()
        lease = await client.lock("x", ttl=30).acquire()
        print("child in", lease.fence, flush=True)
        sys.stdin.readline()
        print("child", await lease.verify(), flush=True)

async def main(url):
    client = aiolock.connect(url)
    await client.open()
    async with client.lock("y"):
        pass
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        mine = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        print("child has", sum(".db" in file for file in mine), flush=True)
        asyncio.run(hold(url, writes))
        os._exit(0)
    async with client.lock("y"):
        pass
    os.read(reads, 1)
    await client.aclose()
    print("closed", flush=True)
    os.waitpid(child, 0)

asyncio.run(main(sys.argv[1]))
"""


@LINUX
async def test_forked_child_opens_the_file_anew_and_shares_its_locks(url: str) -> None:
    """What its parent had locked in it is not its own, and it has its locks with everybody."""
    forks = subprocess.Popen(
        [sys.executable, "-P", "-c", _FORKS, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert forks.stdin is not None
    assert forks.stdout is not None
    try:
        assert await asyncio.to_thread(forks.stdout.readline) == "child has 0\n"
        assert await asyncio.to_thread(forks.stdout.readline) == "closed\n"
        forks.stdin.write("\n")
        forks.stdin.flush()
        assert (await asyncio.to_thread(forks.stdout.readline)).startswith("child in ")
        async with aiolock.connect(url) as client:
            assert await client.lock("x").try_acquire(timeout=0.3) is None
            forks.stdin.write("\n")
            forks.stdin.flush()
            assert await asyncio.to_thread(forks.stdout.readline) == "child True\n"
            async with client.lock("x", timeout=5):
                pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(forks.pid, signal.SIGKILL)
        forks.communicate()


def test_database_is_registered_only_while_no_fork_is_under_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is added to what the fork goes through, and so none is left out of it."""
    kept_out = list[bool]()

    class Known(set[Database]):
        def add(self, database: Database, /) -> None:
            kept_out.append(_database._one_fork.locked())
            super().add(database)

    monkeypatch.setattr(_database, "_all", Known())
    presence = _presence.Presence(path.with_name("locks.db.clients"), "ada")
    Database(path, "aiolock", "ada", presence, path, lost=list, replaced=bool)
    assert kept_out == [True]


async def test_presence_files_are_opened_only_while_forks_are_kept_out(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a child would have a file that it does not know, and its parent would count as alive."""
    monkeypatch.setattr(_session, "HEARTBEAT", 0.01)
    undisturbed = dict[str, list[bool]]()

    def watch(name: str) -> None:
        does = getattr(_presence.Presence, name)

        def watched(presence: _presence.Presence) -> None:
            (database,) = (each for each in _database._all if each._presence is presence)
            undisturbed.setdefault(name, []).append(database._mutex.locked())
            does(presence)

        monkeypatch.setattr(_presence.Presence, name, watched)

    for name in ("enter", "clean_up", "leave"):
        watch(name)
    async with aiolock.connect(url):
        for own in path.with_name("locks.db.clients").glob("*.lock"):
            own.unlink()
        await until(lambda: len(undisturbed["enter"]) == 2 and "clean_up" in undisturbed)
    assert undisturbed.keys() == {"enter", "clean_up", "leave"}
    assert all(map(all, undisturbed.values()))


@pytest.mark.one_loop
def test_fork_during_another_fork_waits_for_it(path: Path) -> None:
    """The second waits for the first."""
    ended = threading.Event()

    def forks() -> None:
        _database._before_fork()
        ended.set()

    presence = _presence.Presence(path.with_name("locks.db.clients"), "ada")
    database = Database(path, "aiolock", "ada", presence, path, lost=list, replaced=bool)
    database.open()
    try:
        _database._before_fork()
        second = threading.Thread(target=forks, daemon=True)
        second.start()
        assert not ended.wait(0.2)
        _database._after_fork()
        assert ended.wait(5)
        _database._after_fork()
    finally:
        database.close()


# --- Who lives


async def test_aclose_removes_the_presence_files_of_the_client(path: Path, url: str) -> None:
    """What a client needs is there while it is open, and goes with it."""
    async with aiolock.connect(url), aiolock.connect(url):
        assert len(clients(path)) == 4
    assert clients(path) == []


BELLS = ["path", "long path", "port"]


def have(bell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have bells of this sort."""
    if bell != "path":
        monkeypatch.setattr(_notifier, "LONGEST_PATH", 0)
    if bell == "port":
        monkeypatch.setattr(_notifier, "_DESCRIPTORS", Path("/nowhere"))


@pytest.mark.parametrize("bell", BELLS)
async def test_handoff_to_another_client_arrives_by_each_kind_of_notifier(
    url: str, monkeypatch: pytest.MonkeyPatch, bell: str
) -> None:
    """A waiter of another client is rung, whichever bell it has."""
    have(bell, monkeypatch)
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=30))
        waiting = asyncio.create_task(take(theirs.lock("x", ttl=30)))
        await until(lambda: theirs._engine.waiters._queues)
        await theirs.lock("x").status()  # its first sweep, which would fetch it, is over
        await lease.release()
        second = await asyncio.wait_for(waiting, 2)
        assert second.fence > lease.fence
        await second.release()


class Process:
    """Another process, that does what it is told in a few words."""

    _PROGRAM = """
import asyncio, json, sys
import aiolock

async def main(url):
    async with aiolock.connect(url) as client:
        lock = client.lock("x", ttl=float(sys.argv[2]))
        print("open", flush=True)
        async with lock as lease:
            print("in", lease.fence, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print("out", flush=True)

asyncio.run(main(sys.argv[1]))
"""

    def __init__(self, url: str, ttl: float = 30.0) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", self._PROGRAM, url, str(ttl)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def says(self) -> str:
        """Its next line."""
        assert self.popen.stdout is not None
        line = await asyncio.to_thread(self.popen.stdout.readline)
        return line.strip()

    def leave(self) -> None:
        """Let it release the lock."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    async def stop(self, path: Path) -> None:
        """Stop it between two transactions: in the midst of one it would stop everybody."""
        async with asyncio.timeout(30):
            while True:
                self.popen.send_signal(signal.SIGSTOP)
                _, status = os.waitpid(self.popen.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                with contextlib.closing(sqlite3.connect(path, timeout=0)) as database:
                    try:
                        database.execute("BEGIN IMMEDIATE")
                    except sqlite3.OperationalError:
                        self.go_on()
                        await asyncio.sleep(0.01)
                    else:
                        return

    def go_on(self) -> None:
        """Let it go on."""
        self.popen.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill it, if it lives, and wait for its end."""
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def process(url: str) -> Iterator[Process]:
    """Another process."""
    process = Process(url, ttl=1.5)
    yield process
    process.end()


async def swept(client: aiolock.LockClient) -> None:
    """Return when its first sweep is over, which might clean up what the test is about."""
    for _ in range(2):  # it comes behind the first operation, and before the second
        await client.lock("swept").status()


async def test_release_past_a_killed_waiter_grants_the_next_at_once(
    url: str, process: Process
) -> None:
    """The kernel has dropped its lock, so it is passed over in the step that hands on."""
    async with aiolock.connect(url) as client, aiolock.connect(url) as other:
        await swept(client)
        await swept(other)
        lock = client.lock("x", ttl=60)
        lease = await take(lock)
        assert await process.says() == "open"
        await queued(lock, 1, process=process.popen)
        waiting = asyncio.create_task(take(other.lock("x", ttl=60)))
        await queued(lock, 2, process=process.popen)
        process.end()
        assert [party.alive for party in (await lock.status()).waiters] == [False, True]
        await lease.release()
        await (await asyncio.wait_for(waiting, 1)).release()


async def test_break_of_the_lock_of_a_dead_client_leaves_no_push(
    path: Path, url: str, process: Process
) -> None:
    """What nobody would fetch is not written down."""
    async with aiolock.connect(url) as client:
        assert await process.says() == "open"
        assert (await process.says()).startswith("in ")
        await swept(client)
        process.end()
        assert await client.lock("x").break_()
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT count(*) FROM inbox").fetchone() == (0,)


async def test_acquire_after_its_holder_was_killed_waits_for_the_lease_to_end(
    url: str, process: Process
) -> None:
    """And what it has left is removed by the next one that opens."""
    assert await process.says() == "open"
    assert (await process.says()).startswith("in ")
    process.end()
    async with aiolock.connect(url) as client:
        lease = await take(client.lock("x", timeout=10))
        await lease.release()
    assert clients(Path(url.removeprefix("sqlite:///"))) == []


async def test_waiter_stopped_beyond_its_claim_asks_again_and_enters(
    path: Path, url: str, process: Process
) -> None:
    """It lies in the file; so it asks for its place, and enters."""
    async with aiolock.connect(url) as client:
        lock = client.lock("x", ttl=60)
        lease = await take(lock)
        assert await process.says() == "open"
        await queued(lock, 1, process=process.popen)
        await process.stop(path)
        await lease.release()
        second = await take(client.lock("x", ttl=60, timeout=10))  # after its claim, of 1.5 s
        process.go_on()
        await second.release()
        assert (await process.says()).startswith("in ")
        process.leave()
        assert await process.says() == "out"


async def test_forked_child_does_not_keep_its_closed_parent_listening(url: str, path: Path) -> None:
    """A fork lets go of the lock that tells that the parent lives, and changes nothing of it."""
    store = SQLiteStore(path, "aiolock")
    deliver: Any = object()
    await store.open("parent", deliver)
    assert store._session is not None
    presence = store._session._presence
    reads, writes = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover
        os.write(writes, json.dumps([presence._lock is None, not presence.notifiers]).encode())
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        assert json.loads(await asyncio.to_thread(os.read, reads, 100)) == [True, True]
        other = _presence.Presence(path.with_name("locks.db.clients"), "other")
        assert other.listens("parent")
        await store.aclose()
        assert not other.listens("parent")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)


@pytest.mark.one_loop
def test_filelock_is_taken_asked_by_two_at_once_is_false_for_both(tmp_path: Path) -> None:
    """Neither takes the other for the process whose file it is."""
    path = tmp_path / "ada.lock"
    path.touch()
    with path.open() as theirs, path.open() as ours:
        assert not _filelock.is_taken(theirs.fileno())
        assert not _filelock.is_taken(ours.fileno())
        assert not _filelock.take(ours.fileno()), "nor is it theirs who takes it meanwhile"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_presence_file_removed_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Whoever finds one that is not locked yet removes it: so it is made again."""
    took = iter([False, True])

    def take_file(file: int) -> bool:
        cleans_up = not next(took)
        if cleans_up and moment == "before":
            (tmp_path / "ada.lock").unlink()
        taken = _filelock.take(file)
        if cleans_up and moment == "after":
            (tmp_path / "ada.lock").unlink()
        return taken

    monkeypatch.setattr(_presence, "take", take_file)
    ada, bob = (_presence.Presence(tmp_path, client) for client in ("ada", "bob"))
    ada.enter()
    assert bob.listens("ada")
    assert bob.metadata("ada").pid == os.getpid()
    ada.leave()
    assert not bob.listens("ada")


# --- The time


@pytest.mark.skipif(not _clock.boot(), reason="the kernel does not tell when it was started")
@pytest.mark.parametrize("hours", [-5, 5])
async def test_lease_end_ignores_a_change_of_the_wall_clock(
    url: str, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """No lease ends before its time, nor after: nobody looks at it, until the next start."""
    async with aiolock.connect(url) as ours:
        began = time.monotonic()
        lease = await take(ours.lock("x", ttl=0.5, renew=False))
        wall = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: wall() + hours * 3600 * 10**9)
        async with aiolock.connect(url) as theirs:
            second = await take(theirs.lock("x", timeout=5))
            assert time.monotonic() - began > 0.5
            assert second.fence > lease.fence
            await second.release()


@pytest.mark.parametrize("forgotten", [False, True])
async def test_clock_after_a_restart_of_the_machine_goes_on_from_its_last_reading(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, *, forgotten: bool
) -> None:
    """The clock goes on from what it showed last, also where the wall clock is wrong then."""
    store = from_url(url, "aiolock")
    deliver: Any = object()
    await store.open("dead", deliver)
    before = await store.submit(
        Acquire(
            "lock:x", WaiterId("dead", 1), Form(claim=0), 300, ticket=0, wait=False, max_waiters=0
        )
    )
    assert isinstance(before, Granted)
    await store.aclose()  # which gives nothing back
    if forgotten:  # all but the last fence
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM names")
    monkeypatch.setattr(_clock, "boot", lambda: "the next")
    monkeypatch.setattr(_clock, "wall", lambda: 10**15)
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        after = await take(ours.lock("x", timeout=5))
        assert before.fence < after.fence < before.fence + 10 * 10**6
        assert await theirs.lock("x").locked()


async def test_lease_renewed_before_a_restart_of_the_machine_ends_within_its_ttl(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reading may be that of a renewal: the lease of the dead ends when it would have."""
    shown = _clock.since_boot()
    monkeypatch.setattr(_clock, "boot", lambda: "the first")
    monkeypatch.setattr(_clock, "since_boot", lambda: shown)
    store = from_url(url, "aiolock")
    deliver: Any = object()
    await store.open("dead", deliver)
    form, waiter = Form(claim=0), WaiterId("dead", 1)
    granted = await store.submit(
        Acquire("lock:x", waiter, form, 30_000, ticket=0, wait=False, max_waiters=0)
    )
    assert isinstance(granted, Granted)
    for _ in range(100):
        shown += 25_000_000
        again = Renewal("lock:x", waiter, form, granted.fence, 30_000)
        assert await store.submit(Renew([again])) == [True]
    await store.aclose()  # which gives nothing back
    monkeypatch.setattr(_clock, "boot", lambda: "the next")
    monkeypatch.setattr(_clock, "wall", lambda: 10**15)
    shown = 20_000_000
    async with aiolock.connect(url) as client:
        (holder,) = (await client.lock("x").status()).holders
        assert holder.remaining <= 30.0


@pytest.mark.parametrize(
    ("offsets", "known"),
    [
        ("monotonic 0 0\nboottime 0 0\n", True),
        ("monotonic 0 0\nboottime 5 0\n", False),
        (None, True),
    ],
)
def test_clock_boot_in_a_time_namespace_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offsets: str | None, *, known: bool
) -> None:
    """A process to which the kernel shows another time since the start does not go by that."""
    monkeypatch.setattr(_clock, "_BOOT", tmp_path / "boot_id")
    monkeypatch.setattr(_clock, "_OFFSETS", tmp_path / "offsets")
    (tmp_path / "boot_id").write_text("abc\n")
    if offsets is not None:
        (tmp_path / "offsets").write_text(offsets)
    assert _clock.boot() == ("abc" if known else "")


async def test_clock_with_another_boot_id_goes_on_while_a_client_lives(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody lives the machine has not been started again, whatever a container says."""
    async with aiolock.connect(url) as ours:
        await take(ours.lock("x", ttl=30))
        monkeypatch.setattr(_clock, "boot", lambda: "of the container")
        monkeypatch.setattr(_clock, "wall", lambda: 4 * 10**15)
        async with aiolock.connect(url) as theirs:
            assert await theirs.lock("x").locked()
            async with ours.lock("y") as lease:
                assert lease.fence < 4 * 10**15


async def test_open_without_the_boot_id_is_refused_while_another_client_has_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not let in, for it would have a time of its own."""
    async with aiolock.connect(url):
        monkeypatch.setattr(_clock, "boot", lambda: "")
        with pytest.raises(aiolock.StoreError, match="is not shown"):
            await aiolock.connect(url).open()
    async with aiolock.connect(url) as client, client.lock("x"):
        pass


async def test_clock_without_a_boot_id_is_the_wall_clock(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases end by the wall clock."""
    monkeypatch.setattr(_clock, "_BOOT", Path("/nowhere"))
    monkeypatch.setattr(_clock, "wall", lambda: 10**15)
    async with aiolock.connect(url) as client:
        assert (await take(client.lock("x"))).fence == 10**15


# --- What others remove


async def waits(client: aiolock.LockClient, name: str) -> asyncio.Task[aiolock.Lease]:
    """A task of this client that stands in the queue."""
    waiting = asyncio.create_task(take(client.lock(name, ttl=30)))
    await until(lambda: client._engine.waiters._queues)
    return waiting


@pytest.mark.parametrize("what", ["*.lock", "*.sock", "*"])
@pytest.mark.parametrize("bell", BELLS)
async def test_presence_files_that_are_removed_are_made_again_and_the_place_kept(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, what: str, bell: str
) -> None:
    """A client whose files are removed makes new ones, and takes its places in the queues again."""
    monkeypatch.setattr("aiolock.stores.sqlite._session.HEARTBEAT", 0.1)
    have(bell, monkeypatch)
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=30))
        waiting = await waits(theirs, "x")
        for _ in range(2):
            before = clients(path)
            directory = Path(f"{path}.clients")
            for file in directory.glob(what):
                file.unlink()
            if what == "*":
                directory.rmdir()
            await until(lambda: directory.exists() and clients(path) == before)  # noqa: B023
            # What is done after that goes through the thread that has made them.
            assert len((await ours.lock("x").status()).waiters) == 1
        seen = ours.lock("x")
        await until(lambda: not theirs._engine.waiters._queues["lock:x"].first.question)
        assert [party.alive for party in (await seen.status()).waiters] == [True]
        await lease.release()
        await (await asyncio.wait_for(waiting, 2)).release()


@pytest.mark.parametrize("bell", BELLS)
async def test_notifier_that_is_replaced_is_closed(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, bell: str
) -> None:
    """However often somebody removes it, a client has one."""
    monkeypatch.setattr("aiolock.stores.sqlite._session.HEARTBEAT", 0.05)
    have(bell, monkeypatch)
    async with aiolock.connect(url) as client:
        session = session_of(client)
        bells = session._presence.notifiers
        for _ in range(3):
            first = bells[0]
            for file in Path(f"{path}.clients").glob(f"{client.id}.*"):
                file.unlink()
            await until(lambda: session._presence.is_there() and len(bells) == 1)
            assert (bells[0] is first) == (bell == "port"), "which nobody can remove"
            assert (first._socket.fileno() < 0) == (bells[0] is not first)


async def test_waiter_passed_over_without_its_presence_files_asks_again(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is passed over, as if it were; and as soon as it notices, it asks again."""
    monkeypatch.setattr("aiolock.stores.sqlite._session.HEARTBEAT", 0.3)
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=30))
        waiting = await waits(theirs, "x")
        for file in Path(f"{path}.clients").glob(f"{theirs.id}.*"):
            file.unlink()
        await lease.release()
        await (await asyncio.wait_for(waiting, 2)).release()


async def test_removed_file_loses_the_lease_and_grants_the_waiter(path: Path, url: str) -> None:
    """All that it knew is forgotten, which its holder is told; whoever waited enters."""
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=0.6))
        waiting = await waits(theirs, "x")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink()
        second = await asyncio.wait_for(waiting, 5)
        assert second.fence > lease.fence
        await asyncio.wait_for(lease.lost.wait(), 2)
        await second.release()
        assert path.exists()


async def test_acquire_while_the_directory_is_gone_raises_store_error(tmp_path: Path) -> None:
    """As long as it is gone that is an error; and when it is back, all goes on."""
    directory = tmp_path / "run"
    directory.mkdir()
    async with aiolock.connect(f"sqlite:///{directory}/locks.db") as client:
        lock = client.lock("x")
        async with lock:
            pass
        directory.rename(tmp_path / "gone")
        for _ in range(2):
            with pytest.raises(aiolock.StoreError, match="there is no directory") as caught:
                await lock.acquire()
            assert caught.value.refused
        directory.mkdir()
        async with lock:
            pass


@pytest.mark.parametrize("parts", [("",), ("-wal",), ("-shm",), ("-wal", "-shm")], ids=str)
async def test_removed_part_of_the_file_loses_the_lease_and_all_share_a_new_file(
    path: Path, url: str, parts: tuple[str, ...]
) -> None:
    """Nobody goes on with what the others do not see: all begin anew, whoever is the first."""
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=0.6))
        for suffix in parts:
            # Who noticed that the first is gone has perhaps begun anew, without the others.
            Path(f"{path}{suffix}").unlink(missing_ok=suffix != parts[0])
        if parts != ("",):  # what a newcomer finds is the file, and it takes that for whole
            async with theirs.lock("y"):
                pass
        async with aiolock.connect(url) as newcomer:
            second = await take(newcomer.lock("x", ttl=30))
            await asyncio.wait_for(lease.lost.wait(), 2)
            assert await theirs.lock("x").try_acquire(timeout=1) is None
            await second.release()


async def test_file_reopened_by_a_newcomer_without_its_log_is_kept(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newcomer came after we noticed that the log is gone, and before we opened the files."""
    newcomers = list[sqlite3.Connection]()
    opened_by_one = _files.Files.opened_by_one

    @contextlib.contextmanager
    def after_a_newcomer(files: _files.Files, within: float) -> Generator[int]:
        with opened_by_one(files, within) as guard:
            if not newcomers:
                newcomers.append(sqlite3.connect(path, check_same_thread=False))
                newcomers[0].execute("CREATE TABLE newcomer (x)")
            yield guard

    async with aiolock.connect(url) as client:
        async with client.lock("x"):
            pass
        seen = path.stat().st_ino
        Path(f"{path}-wal").unlink()
        monkeypatch.setattr(_files.Files, "opened_by_one", after_a_newcomer)
        async with client.lock("x"):
            pass
        assert newcomers
        assert path.stat().st_ino == seen
    newcomers[0].close()


def no_such_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the kernel has no locks that belong to an open file."""
    fcntl = pytest.importorskip("fcntl", reason="this system has no such locks")

    def refuse(_file: int, command: int, *_: object) -> None:
        assert command in {fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK}
        raise OSError(errno.EINVAL, "there are none here")

    has_none = SimpleNamespace(**{**vars(fcntl), "fcntl": refuse})
    monkeypatch.setattr(_filelock, "fcntl", has_none)


PARTS = pytest.mark.parametrize("parts", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=str)


@PARTS
async def test_removed_log_with_one_client_loses_the_lease_and_frees_the_lock(
    path: Path, url: str, parts: tuple[str, ...]
) -> None:
    """What it held is lost, and is free: closing, it writes what is in its log into the file."""
    async with aiolock.connect(url) as client:
        lease = await take(client.lock("x", ttl=3600))
        for suffix in parts:
            Path(f"{path}{suffix}").unlink()
        async with client.lock("y"):
            pass
        await asyncio.wait_for(lease.lost.wait(), 5)
        assert await client.lock("x").try_acquire() is not None


@PARTS
async def test_removed_log_without_ofd_locks_loses_the_lease_without_a_wait(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...]
) -> None:
    """Nobody waits for the others to leave the file: who notices it first removes the rest."""
    no_such_locks(monkeypatch)
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=3600))
        for suffix in parts:
            Path(f"{path}{suffix}").unlink()
        assert await theirs.lock("x").try_acquire(timeout=5) is not None
        await asyncio.wait_for(lease.lost.wait(), 5)
        assert await ours.lock("x").try_acquire() is None


_LOOKS = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(*database.execute("SELECT count(*) FROM names").fetchone())
database.close()
"""


def looked_at(path: Path) -> str:
    """How many names another process finds in the file, which it opens and closes."""
    command = [sys.executable, "-P", "-c", _LOOKS, str(path)]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@LINUX
@pytest.mark.parametrize("another_client", [False, True])
async def test_file_read_or_closed_in_the_same_process_keeps_its_log(
    path: Path, url: str, *, another_client: bool
) -> None:
    """The kernel drops SQLite's lock then, but nobody takes himself for the last to close it."""
    async with aiolock.connect(url) as ours:
        lease = await take(ours.lock("x", ttl=30))
        if another_client:  # of this process: it closes the file as well
            async with aiolock.connect(url):
                pass
        else:
            path.read_bytes()
        assert await asyncio.to_thread(looked_at, path) == "1\n"
        async with aiolock.connect(url) as theirs:
            assert await theirs.lock("x").try_acquire() is None
        assert await lease.verify()
        async with ours.lock("y"):
            pass
    assert not path.with_name("locks.db-wal").exists()  # who is the last has removed it


@pytest.mark.parametrize("system", ["linux", "darwin"])
async def test_aclose_of_one_of_two_clients_without_ofd_locks_keeps_the_log(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """One of them closes it, and drops nothing of the other: it has opened nothing of its own."""
    no_such_locks(monkeypatch)
    monkeypatch.setattr(_filelock, "sys", SimpleNamespace(platform=system))
    async with aiolock.connect(url) as ours:
        lease = await take(ours.lock("x", ttl=30))
        async with aiolock.connect(url):
            pass
        assert await asyncio.to_thread(looked_at, path) == "1\n"
        assert path.with_name("locks.db-wal").exists(), "the other process took itself for the last"
        async with aiolock.connect(url) as theirs:
            assert await theirs.lock("x").try_acquire() is None
        assert await lease.verify()


_WRITES = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("CREATE TABLE more (x)")
database.execute("DROP TABLE more")
print("open", flush=True)
sys.stdin.readline()
"""


@pytest.mark.one_loop
async def test_open_beside_a_log_left_without_its_file_succeeds(path: Path, url: str) -> None:
    """It is nobody's, though another process has it open."""
    async with aiolock.connect(url):
        pass
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _WRITES, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == "open\n"
        path.unlink()
        async with aiolock.connect(url) as client, client.lock("x", timeout=5):
            pass
    finally:
        process.kill()
        process.communicate()


async def test_file_replaced_while_it_is_opened_is_opened_again(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened must be what is there then."""
    async with aiolock.connect(url):
        pass
    set_up = Connection._set_up
    others: list[sqlite3.Connection] = []

    def is_late(self: Connection, database: sqlite3.Connection) -> None:
        """As one that had to wait for the file, which was replaced meanwhile."""
        set_up(self, database)
        if not others:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").rename(f"{path}{suffix}.old")
            others.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
            set_up(self, others[0])

    monkeypatch.setattr(Connection, "_set_up", is_late)
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        await take(ours.lock("x", ttl=30))
        assert await theirs.lock("x").locked()
    others[0].close()


async def test_file_removed_while_it_is_opened_is_made_again(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is another one soon: that is no error yet."""
    set_up, removed = Connection._set_up, list[int]()

    def is_late(self: Connection, database: sqlite3.Connection) -> None:
        """As one that is interrupted at its end, when somebody removes the file."""
        set_up(self, database)
        if not removed:
            removed.append(path.stat().st_ino)
            path.unlink()

    monkeypatch.setattr(Connection, "_set_up", is_late)
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        assert removed
        await take(ours.lock("x", ttl=30))
        assert await theirs.lock("x").locked()


@pytest.mark.one_loop
def test_snapshot_between_operations_of_a_batch_shows_those_before_it(path: Path) -> None:
    """It shows what those before it have done, and those behind it are saved as well."""
    ada, form = WaiterId("ada", 1), Form(3000)
    presence = _presence.Presence(path.with_name("locks.db.clients"), "ada")
    database = Database(path, "aiolock", "ada", presence, path, lost=list, replaced=bool)
    database.open()

    acquire, page = Acquire("x", ada, form, 9000), ReadPage()
    give_up = Release("x", ada, form, 0)
    done = database.carry_out([acquire, page, give_up, page]).outcomes
    assert [len(done[place].answer.statuses) for place in (1, 3)] == [1, 0]
    assert database.carry_out([page]).outcomes[0].answer.statuses == []
    granted = database.carry_out([acquire, page, page]).outcomes[0].answer
    assert granted.fence > done[0].answer.fence
    database.close()


async def test_notifications_during_a_fetch_cause_one_more_fetch(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be about a push that came behind what is read, so there is one more fetch."""
    async with aiolock.connect(url) as client:
        session, loop = session_of(client), asyncio.get_running_loop()
        fetches = list[asyncio.Future[None]]()

        def submit(_: Operation[Any]) -> asyncio.Future[Any]:
            fetches.append(loop.create_future())
            return fetches[-1]

        monkeypatch.setattr(session, "submit", submit)
        for _ in range(3):
            session._notified()
        for fetched in (1, 2):
            assert len(fetches) == fetched
            fetches[-1].set_result(None)
            await asyncio.sleep(0)
        assert len(fetches) == 2
        monkeypatch.undo()


@pytest.mark.one_loop
def test_database_whose_connection_was_reopened_reports_replaced(path: Path) -> None:
    """What is known of it may be wrong, also where the new file has the number of the old one."""
    replaced: list[str] = []
    presence = _presence.Presence(path.with_name("locks.db.clients"), "ada")
    database = Database(
        *(path, "aiolock", "ada", presence, path),
        lost=list,
        replaced=lambda: replaced.append("!"),
    )
    database.open()
    database.sweep()
    assert not replaced
    database._connection.open()
    database.sweep()
    busy = database._connection.execute("PRAGMA busy_timeout").fetchone()
    assert busy == (100,), "it is done in passing by the new connection as well"
    database._connection.close()
    database.carry_out([])
    assert replaced == ["!"]
    database.close()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
async def test_status_that_cannot_open_a_presence_file_fails_and_drops_no_waiter(
    url: str, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Without a descriptor, or the right, nothing is done; and nobody loses a place."""
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(ours.lock("x", ttl=30))
        waiting = await waits(theirs, "x")
        really = os.open

        def opens(path: Any, *arguments: Any) -> int:
            if str(path).endswith(".lock"):
                raise OSError(error, os.strerror(error), str(path))
            return really(path, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(os, "open", opens)
            with pytest.raises(aiolock.StoreError, match=os.strerror(error)) as caught:
                await ours.lock("x").status()
            assert caught.value.refused
        await lease.release()
        await (await asyncio.wait_for(waiting, 2)).release()


async def test_open_removes_pushes_and_old_sockets_of_dead_clients(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever they died; and a socket that is nobody's."""
    orphan = Path(f"{path}.clients") / "dead.sock"
    async with aiolock.connect(url):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("INSERT INTO inbox (client, name, push) VALUES ('dead', 'x', '[]')")
        orphan.touch()
        async with aiolock.connect(url):
            pass
        assert orphan.exists(), "somebody may be about to enter"
        os.utime(orphan, (1, 1))
        async with aiolock.connect(url):
            await until(lambda: not orphan.exists(), after=5)
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT count(*) FROM inbox").fetchone() == (0,)


async def test_presence_files_can_be_read_and_notified_by_another_user(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one has made, another may read, and ring; more is not needed."""
    async with aiolock.connect(url) as theirs:
        directory = Path(f"{path}.clients")
        made = {file: file.stat().st_mode for file in directory.iterdir()}
        really = os.open

        def opens(path: Any, flags: int, *mode: Any, **where: Any) -> int:
            if Path(path) in made and flags & (os.O_WRONLY | os.O_RDWR):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return really(path, flags, *mode, **where)

        monkeypatch.setattr(os, "open", opens)
        assert made[directory / f"{theirs.id}.sock"] & 0o777 == 0o666
        assert made[directory / f"{theirs.id}.lock"] & 0o444 == 0o444
        async with aiolock.connect(url) as ours:
            lease = await take(ours.lock("x", ttl=30))
            waiting = await waits(theirs, "x")
            await lease.release()
            await (await asyncio.wait_for(waiting, 2)).release()


@pytest.mark.one_loop
async def test_open_of_a_new_file_by_several_processes_succeeds_for_all(url: str) -> None:
    """One of them makes it, and none of them is refused."""
    processes = [Process(url, ttl=5) for _ in range(6)]
    try:
        for process in processes:
            assert await process.says() == "open"
    finally:
        for process in processes:
            process.end()


# --- What is written


async def test_acquire_on_a_file_locked_for_too_long_raises_store_error(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is locked for too long is an error, after which nothing was done."""
    monkeypatch.setattr("aiolock.stores.sqlite._connection.BUSY", 0.2)
    async with aiolock.connect(url) as client:
        lock = client.lock("x")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            with pytest.raises(aiolock.StoreError, match=_LOCKED) as caught:
                await lock.acquire()
            assert caught.value.refused
            assert f"process {os.getpid()} has kept" in str(caught.value) or not _TELLS
        async with lock:
            pass
        assert not (await lock.status()).holders


_TELLS = Path("/proc/locks").exists()
_LOCKED = r"(process \d+|another process) has kept the SQLite file .* locked for 0.2 s, in one"


async def test_file_locked_by_others_in_turn_is_waited_for_beyond_busy(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They make progress: none of them keeps the file for long."""
    monkeypatch.setattr("aiolock.stores.sqlite._connection.BUSY", 0.4)
    monkeypatch.setattr("aiolock.stores.sqlite._connection._SLICE", 0.1)
    async with aiolock.connect(url) as client:
        store = client._engine.store
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            asked = store.submit(ReadPosted("x"))
            for _ in range(6):
                time.sleep(0.1)
                database.execute("UPDATE fence SET last = last + 1")
                database.execute("COMMIT")
                database.execute("BEGIN IMMEDIATE")  # sooner than who waits
            database.execute("ROLLBACK")
        await asked


async def test_open_while_others_open_waits_for_them_beyond_busy(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are, and however long all of them take."""
    monkeypatch.setattr("aiolock.stores.sqlite._connection.BUSY", 0.3)
    is_opened = Connection._is_opened

    def is_slow(connection: Connection, guard: int) -> bool:
        time.sleep(0.1)
        return is_opened(connection, guard)

    monkeypatch.setattr(Connection, "_is_opened", is_slow)
    clients = [aiolock.connect(url) for _ in range(12)]
    await asyncio.gather(*(client.open() for client in clients))
    await asyncio.gather(*(client.aclose() for client in clients))


@pytest.mark.one_loop
@pytest.mark.skipif(not _TELLS, reason="only Linux says who has locked a file")
@pytest.mark.parametrize("stopped", [False, True])
async def test_open_held_up_by_one_process_names_it_and_whether_it_is_stopped(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, *, stopped: bool
) -> None:
    """And says that it is stopped only if it is."""
    monkeypatch.setattr("aiolock.stores.sqlite._connection.BUSY", 0.2)
    async with aiolock.connect(url):
        pass
    program = (
        "import fcntl, os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program, path.with_name("locks.db.clients") / "opening"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"locked\n"
        if stopped:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
        with pytest.raises(aiolock.StoreError, match="one at a time can do that") as caught:
            await aiolock.connect(url).open()
        which = f"process {process.pid}, which is stopped," if stopped else f"process {process.pid}"
        assert str(caught.value).startswith(f"{which} has been opening")
    finally:
        process.kill()
        process.communicate()


async def test_operation_waits_for_a_foreign_transaction_and_sees_its_changes(
    path: Path, url: str
) -> None:
    """Whatever those change, it reads what is there when they are over."""
    async with aiolock.connect(url) as client:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("UPDATE fence SET last = 20000000000000000")
            resized = client._engine.store.submit(Resize("semaphore:x", 5, 5, 60_000))
            await asyncio.sleep(0.1)
            assert not resized.done()
            database.execute("COMMIT")
        assert await resized == 5
        async with client.lock("x") as lease:
            assert lease.fence == 20_000_000_000_000_001


async def test_lock_under_contention_has_one_holder_and_rising_fences(url: str) -> None:
    """Of many tasks of several clients one is inside, and nobody is refused."""
    inside = 0
    fences: list[int] = []

    async def work(client: aiolock.LockClient) -> None:
        nonlocal inside
        for _ in range(10):
            async with client.lock("x") as lease:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                fences.append(lease.fence)
                inside -= 1

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(aiolock.connect(url)) for _ in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for number in range(9):
                tasks.create_task(work(clients[number % 3]))
    assert fences == sorted(fences)
    assert len(set(fences)) == 90


async def test_operation_that_fails_in_a_batch_fails_alone(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails alone, of all that are in one transaction, and leaves nothing behind."""

    def fails(step: Step, _: RequestRelease) -> None:
        step.run(ReadStatus("y"))
        raise LookupError("a fault of ours")

    async with aiolock.connect(url) as client:
        monkeypatch.setitem(machine._METHODS, RequestRelease, fails)
        store = client._engine.store
        asked: list[asyncio.Future[Any]] = [
            store.submit(ReadStatus("x")),
            store.submit(RequestRelease("x")),
            store.submit(ReadPosted("x")),
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [
            aiolock.Status,
            aiolock.StoreError,
            aiolock.protocol.Posted,
        ]
        assert str(answers[1]) == (
            f"the SQLite file {path} could not carry that out: LookupError('a fault of ours')"
        )


async def test_fetch_of_pushes_that_fails_is_repeated_until_it_succeeds(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file cannot be read when the bell rings."""
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(theirs.lock("x", ttl=30))
        waiting = await waits(ours, "x")
        connection = session_of(ours)._database._connection
        left_for = connection.left_for
        rings = 0

        def unreadable(client: str, after: int) -> Any:
            nonlocal rings
            rings += 1
            if rings < 3:
                raise sqlite3.OperationalError("disk I/O error")
            return left_for(client, after)

        monkeypatch.setattr(connection, "left_for", unreadable)
        await lease.release()
        await (await asyncio.wait_for(waiting, 5)).release()
        assert rings >= 3


async def test_fetch_of_pushes_does_not_wait_for_a_foreign_transaction(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep out those who write; what was left for a client is there to be read."""
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        lease = await take(theirs.lock("x", ttl=30))
        waiting = await waits(ours, "x")
        presence = session_of(theirs)._presence
        notify = presence.notify
        with contextlib.closing(
            sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        ) as database:

            def lock_and_notify(client: str) -> None:
                database.execute("BEGIN IMMEDIATE")
                notify(client)

            monkeypatch.setattr(presence, "notify", lock_and_notify)
            await lease.release()
            second = await asyncio.wait_for(waiting, 3)
            assert database.in_transaction
            # Without the GIL, `close()` leaves it to the thread that began this to end it.
            database.execute("ROLLBACK")
        await second.release()


async def test_push_read_before_its_removal_is_delivered_once(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read when the bell rang is not told again by the transaction that removes it."""
    heard: list[str] = []
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        await swept(ours)
        lease = await take(ours.lock("x", ttl=30))
        monkeypatch.setitem(_PROCESS, ReleaseRequested, lambda _, event: heard.append(event.name))
        with contextlib.closing(sqlite3.connect(path)) as database:
            count = "SELECT count(*) FROM inbox"
            for times in (1, 2):
                assert await theirs.lock("x").request_release()
                await until(lambda: len(heard) == times)  # noqa: B023  # it has ended by then
                assert database.execute(count).fetchone() == (times,)
            # As at a fork: the file is opened again, and is the same.
            session_of(ours)._database.before_fork()
            session_of(ours)._database.after_fork()
            await ours.lock("y").status()
            assert database.execute(count).fetchone() == (0,)
        await lease.release()
    assert heard == ["lock:x"] * 2


async def test_fetch_of_pushes_that_keeps_failing_is_tried_less_and_less_often(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And as soon as ever after it could."""
    pauses: list[float] = []

    async with aiolock.connect(url) as client:
        session = session_of(client)
        loop = session._loop
        done: asyncio.Future[Any] = loop.create_future()
        done.set_result(None)
        failed: asyncio.Future[Any] = loop.create_future()
        failed.set_exception(aiolock.StoreError("locked"))
        noted = SimpleNamespace(
            call_later=lambda pause, _: pauses.append(pause),
            call_soon_threadsafe=loop.call_soon_threadsafe,
            is_closed=loop.is_closed,
        )
        with monkeypatch.context() as patched:
            patched.setattr(session, "_loop", noted)
            for future in (*[failed] * 8, done, failed):
                session._fetched(future)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0, 0.1]


async def test_release_leaves_no_row_and_no_push(path: Path, url: str) -> None:
    """An idle name has no row, and nothing waits to be fetched."""
    async with aiolock.connect(url) as client:
        for name in ("a", "b\0c", "ü" * 256, " trailing "):
            async with client.lock(name):
                pass
        async with client.semaphore("s", 2):
            pass
    with contextlib.closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM names")]
        assert names == [b"aiolock\0semaphore:s"], "the number of permits, for a minute"
        assert database.execute("SELECT count(*) FROM inbox").fetchone() == (0,)


class Clock:
    """The wall clock, for a machine that does not tell when it was started."""

    ahead = 0.0
    """Seconds."""

    def wall(self) -> int:
        """Microseconds."""
        return time.time_ns() // 1000 + int(self.ahead * 10**6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which leases end here."""
    clock = Clock()
    monkeypatch.setattr(_clock, "boot", lambda: "")
    monkeypatch.setattr(_clock, "wall", clock.wall)
    return clock


async def test_sweeps_of_clients_open_for_a_moment_remove_all_unused_names(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Also where all clients are open for a moment only."""
    monkeypatch.setattr("aiolock.stores.sqlite._transaction._SWEPT", 2)
    async with aiolock.connect(url) as client:
        for number in range(7):
            async with client.semaphore(f"s{number}", 2):
                pass
        await client.semaphore("a", 2).resize(3)
        await client.semaphore("b", 2).resize(3)
    clock.ahead = 900.0
    for _ in range(6):
        async with aiolock.connect(url):
            pass
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM names").fetchone() == (2,)


@pytest.fixture
def swept_alone(path: Path) -> Iterator[Database]:
    """A file that nobody else sweeps."""
    presence = _presence.Presence(path.with_name("locks.db.clients"), "ada")
    database = Database(path, "aiolock", "ada", presence, path, lost=list, replaced=bool)
    database.open()
    presence.enter()
    yield database
    presence.leave()
    database.close()


def fill(database: Database, names: Sequence[str], client: str, changed: int) -> None:
    """Leave names for which a client waits, changed at that time (µs)."""
    state = NameState()
    state.enqueue(1, WaiterId(client, 1), Form(1000))
    database._connection._database.executemany(  # type: ignore[union-attr]  # it is open
        "INSERT INTO names VALUES (?, ?, 0, ?)",
        [(name.encode(), encode(state), changed) for name in names],
    )


def kept(database: Database) -> list[str]:
    """The names that are kept."""
    rows = database._connection.execute("SELECT name FROM names ORDER BY name")
    return [name.decode() for (name,) in rows]


@pytest.mark.one_loop
def test_sweep_removes_the_oldest_names_first_and_some_at_a_time(
    swept_alone: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many that are in use have names before them."""
    monkeypatch.setattr("aiolock.stores.sqlite._transaction._SWEPT", 10)
    fill(swept_alone, [f"a{number:03}" for number in range(300)], "dead", _clock.wall())
    fill(swept_alone, [f"b{number:02}" for number in range(7)], "dead", 0)
    fill(swept_alone, [f"c{number:02}" for number in range(7)], "dead", 60_000_000)
    more: list[bool] = []
    swept_alone.sweep()
    more.append(swept_alone.more)
    assert kept(swept_alone)[300:] == ["c03", "c04", "c05", "c06"]
    swept_alone.sweep()
    more.append(swept_alone.more)
    assert more == [True, False]
    assert len(kept(swept_alone)) == 300
    explain = f"EXPLAIN QUERY PLAN {_transaction._OVER}"
    plan = str(swept_alone._connection.execute(explain, (0, 1)).fetchall())
    assert "USING INDEX names_over" in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.one_loop
def test_sweep_skips_awaited_names_and_removes_all_behind(
    swept_alone: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have their turn again, later."""
    monkeypatch.setattr("aiolock.stores.sqlite._transaction._SWEPT", 4)
    fill(swept_alone, [f"a{number}" for number in range(4)], "ada", 0)
    fill(swept_alone, [f"b{number}" for number in range(3)], "dead", 0)
    more: list[bool] = []
    for _ in range(2):
        swept_alone.sweep()
        more.append(swept_alone.more)
    assert more == [True, False]
    assert kept(swept_alone) == ["a0", "a1", "a2", "a3"]


@pytest.mark.one_loop
def test_sweep_removes_pushes_for_dead_clients_some_at_a_time(
    swept_alone: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several clients, and none that was left for a living one."""
    monkeypatch.setattr("aiolock.stores.sqlite._transaction._SWEPT", 4)
    for client in ("a", "a", "ada", "b", "b", "b", "c"):
        swept_alone._connection.execute(
            "INSERT INTO inbox (client, name, push) VALUES (?, '', '')", (client,)
        )
    left: list[int] = []
    for _ in range(2):
        swept_alone.sweep()
        (count,) = swept_alone._connection.execute("SELECT count(*) FROM inbox").fetchone()
        left.append(count)
    assert left == [2, 0]  # its own are read by the first sweep


async def test_sweeps_follow_at_once_until_no_unused_name_is_left(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """However many there are, none waits for a minute; nor does the thread wake for nothing."""
    monkeypatch.setattr("aiolock.stores.sqlite._transaction._SWEPT", 2)
    monkeypatch.setattr("aiolock.stores.sqlite._session._SOON", 0.01)
    async with aiolock.connect(url) as client:
        for number in range(8):
            async with client.semaphore(f"s{number}", 2):
                pass
    clock.ahead = 900.0
    async with aiolock.connect(url) as client:
        await client.lock("x").status()  # the first sweep comes behind it
        with contextlib.closing(sqlite3.connect(path)) as database:
            names = "SELECT count(*) FROM names"
            await until(lambda: database.execute(names).fetchone() == (0,))
        await until(lambda: session_of(client).rest == _session.HEARTBEAT)


async def test_sweep_of_an_idle_client_removes_expired_names_and_files_of_the_dead(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Also while nobody opens: what is over, some names at a time, and what the dead have left."""
    monkeypatch.setattr("aiolock.stores.sqlite._session.HEARTBEAT", 0.05)
    monkeypatch.setattr("aiolock.stores.sqlite._session.SWEEP", 0.1)
    monkeypatch.setattr("aiolock.stores.sqlite._session._SOON", 0.1)
    monkeypatch.setattr("aiolock.stores.sqlite._transaction._SWEPT", 2)
    async with aiolock.connect(url) as client:
        for number in range(5):
            async with client.semaphore(f"s{number}", 2):
                pass
        await take(client.lock("held", ttl=3600))
        with contextlib.closing(sqlite3.connect(path)) as database:
            names = "SELECT count(*) FROM names"
            assert database.execute(names).fetchone() == (6,)
            clock.ahead = 200.0
            await asyncio.sleep(0.5)
            assert database.execute(names).fetchone() == (6,), "they may be asked for again"
            (Path(f"{path}.clients") / "dead.lock").touch()
            clock.ahead = 900.0
            await until(lambda: database.execute(names).fetchone() == (1,))
            await until(lambda: "dead.lock" not in clients(path))
        assert (await client.lock("held").status()).holders


waiters = st.builds(WaiterId, st.sampled_from(["ada", "bob"]), st.integers(1, 10**9))
forms = st.builds(
    Form,
    claim=st.integers(0, 10**6),
    shared=st.booleans(),
    rule=st.sampled_from(Rule),
    number=st.integers(0, 10**9),
    declared=st.integers(0, 10**9),
    fixed=st.booleans(),
    once=st.booleans(),
    downgrades=st.booleans(),
    after_loss=st.integers(0, 10**9),
    after_grant=st.integers(0, 10**9),
    period=st.integers(0, 10**9),
    priority=st.integers(-9, 9),
)
moments = st.integers(0, 10**17)


@st.composite
def states(draw: st.DrawFn) -> NameState:
    """The state of some name."""
    state = NameState()
    for waiter, form, end, shared, claim in draw(
        st.lists(st.tuples(waiters, forms, moments, st.booleans(), st.booleans()))
    ):
        grant = Grant(waiter, draw(moments))
        state.holders.add(Holder(grant, form, end, shared=shared, claim=claim))
    for waiter, ticket, form in draw(
        st.lists(st.tuples(waiters, moments, forms), unique_by=lambda each: each[0])
    ):
        state.enqueue(ticket, waiter, form)
    state.tombstones = draw(st.dictionaries(waiters, moments))
    state.resized = draw(st.dictionaries(st.text(), st.tuples(st.integers(0), moments)))
    state.until = draw(moments)
    state.limit = draw(st.none() | st.integers(0, 10**9))
    state.declared = draw(st.integers(0, 10**9))
    state.count = draw(st.integers(0, 10**9))
    state.tokens = draw(st.sets(st.text()))
    state.value = draw(st.text())
    return state


def seen(state: NameState) -> dict[str, Any]:
    """All that is in a state."""
    holders = {
        grant: (it.grant, it.form, it.end, it.shared, it.claim)
        for grant, it in state.holders.items()
    }
    others = {name: getattr(state, name) for name in NameState.__slots__ if name != "holders"}
    return {"holders": holders, **others}


@pytest.mark.one_loop
@given(states())
def test_state_decoded_after_encoding_is_the_same(state: NameState) -> None:
    """Whatever it is, numbers that count only with each other included."""
    read = decode(encode(state))
    written = seen(state)
    if not (state.until or state.limit is not None or state.count or state.value or state.resized):
        written |= {"declared": 0, "tokens": set()}
    assert seen(read) == written


@pytest.mark.one_loop
def test_form_encoded_by_other_versions_is_read_by_its_known_fields() -> None:
    """What a later version adds behind it is passed over; what an earlier one lacks is absent."""
    form = Form(1, True, Rule.PERMITS, 2, 3, True, False, True, 4, 5, 6, -7)
    state = NameState()
    state.enqueue(8, ada := WaiterId("ada", 9), form)
    data = json.loads(encode(state))
    (written,) = data["forms"]
    assert written[:12] == [1, True, "*", 2, 3, True, False, True, 4, 5, 6, -7]
    later = json.dumps(data | {"forms": [[*written, "new", 10]]})
    assert decode(later).waiting[ada] == (8, form)
    earlier = json.dumps(data | {"forms": [written[:10]]})
    assert decode(earlier).waiting[ada] == (8, replace(form, period=0, priority=0))


@pytest.mark.one_loop
def test_from_url_makes_a_store_whose_repr_has_the_absolute_path() -> None:
    """The path of its repr is the absolute one."""
    store = from_url("sqlite:////run/app/locks.db", "aiolock")
    assert repr(store) == "<SQLiteStore /run/app/locks.db prefix='aiolock'>"
