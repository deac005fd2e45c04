"""Every store passes the contract, and the store that fails on purpose passes it too."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import fakeredis
import pytest
import redis.asyncio

import aiolock
from aiolock import StoreError
from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    Break,
    Busy,
    Granted,
    Participant,
    Queued,
    ReadPosted,
    ReadStatus,
    Renew,
    Status,
)
from aiolock.store import Store
from aiolock.stores import etcd, mysql, postgres
from aiolock.stores.authors import ByName, Part
from aiolock.stores.documents import Database, DocumentStore, NotDone
from aiolock.stores.etcd._attempt import SLACK
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.stores.redis import from_client, from_url
from aiolock.stores.sqlite import SQLiteStore
from aiolock.testing import (
    FaultyStore,
    Peer,
    RunsContract,
    SessionContract,
    StoreContract,
    SwapContract,
    SwapFaults,
)
from aiolock.testing._faulty import GIVES_UP
from aiolock.testing._peer import A_MOMENT, LONG, READER, Grant, fresh_name
from examples.document_store import Documents
from tests.support.clusters import SHARDS, Cluster
from tests.support.databases import MariaDBServer, PostgresServer
from tests.support.etcds import EtcdServer
from tests.support.servers import RedisServer
from tests.support.session_store import SessionDatabase, SessionStore
from tests.support.worlds import virtual

ROOT = Path(__file__).parents[2]

Contract = TypeVar("Contract", bound=StoreContract)

_EACH_COMMAND = frozenset(
    {
        "test_names_that_differ_in_any_character_are_different_locks",
        "test_acquire_without_waiting_of_a_held_lock_names_the_holder",
        "test_max_waiters_refuses_newcomers_but_no_queued_waiter",
        "test_handoff_follows_the_order_of_arrival_across_clients",
        "test_renew_many_leases_in_one_call_answers_each_in_its_order",
        "test_renew_of_anything_but_a_held_grant_is_refused",
        "test_lease_that_expired_frees_the_lock_and_notifies_its_client",
        "test_downgrade_keeps_the_grant_and_grants_the_readers_behind_it",
        "test_finish_notifies_the_waiters_and_answers_done_to_later_ones",
        "test_request_release_notifies_the_holder_and_changes_nothing",
        "test_break_notifies_the_holder_and_grants_the_next_waiter",
        "test_status_shows_holders_and_waiters_in_order_and_where_they_run",
        "test_snapshot_contains_every_held_name_with_its_status",
        "test_permits_are_granted_all_or_none_in_queue_order",
        "test_resize_to_more_grants_waiters_and_to_fewer_takes_none_away",
        "test_posted_value_is_replaced_only_with_an_equal_or_higher_count",
        "test_count_that_is_reached_grants_its_waiters_and_later_ones",
        "test_release_after_every_kind_of_use_leaves_nothing_at_the_server",
        "test_aclose_of_a_closed_store_is_harmless",
    }
)


def by_each_command(contract: type[Contract]) -> type[Contract]:
    """Of what the store promises, enough to see each command and each push.

    Where a store differs from another by how it is given, and what is sent by how that is read.
    """
    assert all(hasattr(StoreContract, name) for name in _EACH_COMMAND)
    for name in dir(StoreContract):
        if name.startswith("test_") and name not in _EACH_COMMAND | vars(contract).keys():
            setattr(contract, name, None)
    return contract


class TestMemory(StoreContract, RunsContract):
    """The store in plain Python."""

    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        self._memory = MemoryServer()

    def store(self) -> Store:
        """Another link to the test's own server."""
        return MemoryStore(self._memory)

    async def left_behind(self, name: str) -> object:
        """Whether the server keeps anything of the name."""
        return name in self._memory.names()


class _Uncounted(MemoryServer):
    """A server that cannot count who listens."""

    def listens(self, client: str) -> bool:
        """As far as it can tell, everybody does."""
        return True


@pytest.mark.one_loop
class TestMemoryUncounted(TestMemory):
    """The same, where nobody is taken for dead."""

    counts_who_listens = False

    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        self._memory = _Uncounted()


@pytest.mark.one_loop
@by_each_command
class TestMemoryByUrl(StoreContract, RunsContract):
    """The same, found by a URL."""

    @pytest.fixture(autouse=True)
    def _prefix(self, prefix: str) -> None:
        self._store_prefix = prefix

    def store(self) -> Store:
        """Another link to the event loop's own server."""
        client = aiolock.connect("memory://", prefix=self._store_prefix)
        return client._engine.store


@pytest.mark.one_loop
class TestFaulty(TestMemory):
    """A store that fails on purpose, but has not been told to."""

    def store(self) -> Store:
        """A link through which nothing fails."""
        return FaultyStore(super().store())


class TestSQLite(StoreContract, RunsContract):
    """A file, in which the state machine's states are kept."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path, prefix: str) -> None:
        self._path, self._prefix = tmp_path / "locks.db", prefix

    def store(self) -> Store:
        """Another link to the test's own file."""
        return SQLiteStore(self._path, self._prefix)

    async def spoil(self, name: str) -> bool:
        """A state that is none."""
        key = f"{self._prefix}\0{name}".encode()
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            database.execute("UPDATE names SET state = 'theirs' WHERE name = ?", (key,))
            database.commit()
        return True

    async def left_behind(self, name: str) -> object:
        """The row of the name."""
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            key = f"{self._prefix}\0{name}".encode()
            return database.execute("SELECT * FROM names WHERE name = ?", (key,)).fetchone()


class TestPostgres(StoreContract):
    """Functions in a PostgreSQL database; it tells nobody who stands before it."""

    @pytest.fixture(autouse=True)
    def _database(self, postgres_server: PostgresServer, prefix: str) -> None:
        self._server, self._prefix = postgres_server, prefix

    def store(self) -> Store:
        """Another link to the server, which serves all tests."""
        return postgres.from_url(self._server.url("app"), self._prefix)

    async def test_busy_after_one_of_two_leases_ended_tells_when_the_other_ends(self) -> None:
        """What has ended is removed first, and does not count."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := fresh_name(), ann.waiter(READER))
            second = await ann.take(name, ann.waiter(READER))
            await ann.expire(name, second)
            busy = await bob.ask(name, wait=False)
            assert isinstance(busy, Busy)
            assert LONG / 2 < busy.until <= LONG

    async def left_behind(self, name: str) -> object:
        """Rows of holders and waiters; that of the last fence stays for a while."""
        key = f"{self._prefix}\0{name}".encode()
        return self._server.execute(
            "SELECT client FROM aiolock.grants WHERE name = %s"
            " UNION ALL SELECT client FROM aiolock.waiters WHERE name = %s",
            *(key, key),
        )


class TestMySQL(StoreContract, RunsContract):
    """Tables in MariaDB, in which the state machine's states are kept."""

    @pytest.fixture(autouse=True)
    def _database(self, mariadb_server: MariaDBServer, prefix: str) -> None:
        self._server, self._prefix = mariadb_server, prefix

    def store(self) -> Store:
        """Another link to the server, which serves all tests."""
        return mysql.from_url(self._server.url("app"), self._prefix)

    async def left_behind(self, name: str) -> object:
        """The state of the name; its row stays for a while, for its fence."""
        key = f"{self._prefix}\0{name}".encode()
        return self._server.execute(
            "SELECT state FROM aiolock_names WHERE id = %s AND state <> ''", key
        )


class TestEtcd(StoreContract, RunsContract):
    """Documents in etcd, and holds that live with leases."""

    holds_end_with_client = True
    max_skew = SLACK / 1_000_000

    @pytest.fixture(autouse=True)
    def _servers(self, etcd_server: EtcdServer, prefix: str) -> None:
        self._etcd, self._prefix = etcd_server, prefix

    def store(self) -> Store:
        """Another link to the server, which serves all tests."""
        return etcd.from_url(self._etcd.url(), self._prefix)

    async def spoil(self, name: str) -> bool:
        """A document that is none."""
        self._etcd.ctl("put", f"{self._prefix}/v1/n/{name}", "theirs")
        return True

    async def test_renew_with_one_unreadable_name_answers_for_the_others(self) -> None:
        """Where documents are looked at: a hold that only goes on living needs none."""
        async with self.peers(1) as (ann,):
            names = [fresh_name() for _ in range(3)]
            grants = [await ann.take(name) for name in names]
            await self.spoil(names[1])
            renewals = [
                ann.renewal(name, grant, 2 * LONG)
                for name, grant in zip(names, grants, strict=True)
            ]
            assert await ann.store.submit(Renew(renewals)) == [True, None, True]

    async def left_behind(self, name: str) -> object:
        """The state in the document, which stays for a while, for its fence."""
        _, text = self._etcd.ctl("get", f"{self._prefix}/v1/n/{name}").splitlines()
        return json.loads(text.partition(" ")[2])[1]


class OnFakeRedis(StoreContract, RunsContract):
    """The scripts on fakeredis; all of it is in `tests/proof/test_lua.py`."""

    decode_responses = False

    @pytest.fixture(autouse=True)
    def _server(self, prefix: str) -> None:
        self._prefix = prefix
        self._client = fakeredis.FakeAsyncRedis(
            server=fakeredis.FakeServer(), decode_responses=self.decode_responses
        )

    async def spoil(self, name: str) -> bool:
        """A key of ours that has a text."""
        await self._client.set(f"{self._prefix}:{{{name}}}:holders", "theirs", ex=60)
        return True

    def store(self) -> Store:
        """Another store that connects as the same fake client does."""
        return from_client(self._client, self._prefix)


@by_each_command
class TestFakeRedis(OnFakeRedis):
    """By a client that reads replies as bytes."""


@pytest.mark.one_loop
@by_each_command
class TestFakeRedisDecoding(OnFakeRedis):
    """The same, by a client that decodes replies."""

    decode_responses = True


class TestRedis(StoreContract, RunsContract):
    """A real server, by its URL."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer, prefix: str) -> Iterator[None]:
        self._redis = redis_server
        self._prefix = prefix
        yield
        keys = redis_server.call("KEYS", f"{prefix}:*")
        forever = [key for key in keys if redis_server.call("PTTL", key) == -1]
        assert not forever, f"these keys never expire: {forever}"

    async def spoil(self, name: str) -> bool:
        """A key of ours that has a text."""
        self._redis.call("SET", f"{self._prefix}:{{{name}}}:holders", "theirs", "EX", "60")
        return True

    def store(self) -> Store:
        """Another store on the shared server, under the test's own prefix."""
        return from_url(self._redis.url, self._prefix)

    async def left_behind(self, name: str) -> object:
        """The keys of the name, less the one that remembers its last fence."""
        keys = self._redis.call("KEYS", f"{self._prefix}:{{{name}}}:*")
        return [key for key in keys if not key.endswith(":fence")]


@pytest.mark.one_loop
@by_each_command
class TestRedisLoneNode(TestRedis):
    """A cluster of one node, by the URL of any other server: no script has keys of two slots."""

    @pytest.fixture(autouse=True)
    def _server(self, lone_node: RedisServer, prefix: str) -> None:
        self._redis, self._prefix = lone_node, prefix


class TestRedisCluster(StoreContract, RunsContract):
    """Three masters, by the URL of the cluster."""

    @pytest.fixture(autouse=True)
    def _servers(self, cluster: Cluster, prefix: str) -> Iterator[None]:
        self._cluster, self._prefix = cluster, prefix
        yield
        for master in cluster.masters:
            for key in master.call("KEYS", f"{prefix}:*"):
                assert master.call("PTTL", key) != -1, f"this key never expires: {key}"

    def store(self) -> Store:
        """Another store on the cluster, under the test's own prefix."""
        return from_url(self._cluster.url, self._prefix)

    async def left_behind(self, name: str) -> object:
        """The keys of the name, less the one that remembers its last fence."""
        keys = self._cluster.keys(f"{self._prefix}:{{{name}}}:*")
        return [key for key in keys if not key.endswith(":fence")]


@pytest.mark.one_loop
@by_each_command
class TestRedisClusterClient(TestRedisCluster):
    """The same, by a client of the caller's, which is left alone."""

    def store(self) -> Store:
        """Another store that connects as such a client does."""
        port = self._cluster.masters[0].port
        return from_client(redis.asyncio.RedisCluster("127.0.0.1", port), self._prefix)


@pytest.mark.one_loop
@pytest.mark.skipif(not SHARDS, reason="this server has no shard channels")
@by_each_command
class TestRedisClusterSharded(TestRedisCluster):
    """The same, with pushes that stay within their shard."""

    def store(self) -> Store:
        """Another store that is spoken to by shard channels."""
        return from_url(f"{self._cluster.url}?push=sharded", self._prefix)


@by_each_command
class TestRedisUnixSocket(TestRedis):
    """A real server, by its unix socket."""

    def store(self) -> Store:
        """Another store through the socket."""
        return from_url(self._redis.unix_url, self._prefix)


@by_each_command
class TestRedisClient(TestRedis):
    """A real server, by a client of the caller's, which is left alone."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    async def _client(self, _server: None) -> AsyncIterator[None]:
        async with redis.asyncio.Redis.from_url(self._redis.url, **self.options) as client:
            self._redis_client = client
            yield
            assert await client.ping()

    def store(self) -> Store:
        """Another store that connects as the client does."""
        return from_client(self._redis_client, self._prefix)


@pytest.mark.one_loop
@by_each_command
class TestRedisClientDecoding(TestRedisClient):
    """The same, by a client that decodes replies."""

    options: ClassVar[dict[str, Any]] = {"decode_responses": True}


@pytest.mark.one_loop
@by_each_command
class TestRedisClientResp3(TestRedisClient):
    """The same, by a client that speaks the newer protocol."""

    options: ClassVar[dict[str, Any]] = {"protocol": 3, "decode_responses": True}


def test_status_str_has_one_line_for_each_holder_and_waiter() -> None:
    """A status as text: what it is, then a line for each holder and waiter."""
    holder = Participant(
        "aclientsid", "box", 42, 1.5, 0, 1_500_000, 2.26, permits=2, shared=True, seq=9
    )
    waiter = Participant("another", "", 0, 61.25, 1, shared=True, seq=3, alive=False)
    assert str(Status("semaphore:api", (holder,), (waiter,), 0.5, 5)) == (
        "'semaphore:api', limit 5, closed for 0.5 s\n"
        "  holds: aclien#9 at box:42, since 1970-01-01T00:00:01.500+00:00, fence 1500000,"
        " 2.3 s left, 2 permits, alive\n"
        "  waits, place 1: anothe#3 at somewhere, since 1970-01-01T00:01:01.250+00:00, shared,"
        " dead or cut off"
    )
    assert str(Status("lock:a", (), ())) == "'lock:a': nobody holds it or waits"


async def test_memory_store_that_is_closed_refuses_operations() -> None:
    """What is asked of a store that was closed is refused, and not carried out."""
    server = MemoryServer()
    async with Peer(MemoryStore(server)) as ann:
        grant = await ann.take("a")
        await ann.store.aclose()
        with pytest.raises(StoreError, match="closed") as raised:
            await ann.release("a", grant)
        assert raised.value.refused
        assert server.names() == ["a"]


# --- The store that fails on purpose


@virtual
async def test_faulty_store_refuse_raises_and_carries_nothing_out() -> None:
    """What is refused is not carried out, so many times."""
    server = MemoryServer()
    async with Peer(faulty := FaultyStore(MemoryStore(server))) as ann:
        faulty.refuse("acquire", 2)
        for _ in range(2):
            with pytest.raises(StoreError, match="refused") as raised:
                await ann.ask("a")
            assert raised.value.refused
        assert not server.names()
        await ann.take("a")
        assert faulty.calls["acquire"] == 3
        faulty.refuse("release", math.inf)
        for _ in range(5):
            with pytest.raises(StoreError, match="refused"):
                await ann.leave("a", ann.waiter())
        faulty.resume()
        assert await ann.leave("a", ann.waiter()) == WAS_ABSENT


async def test_faulty_store_refuse_open_fails_once_and_opens_later() -> None:
    """A store may refuse to open, and open the next time."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    faulty.refuse("open")
    with pytest.raises(StoreError, match="refused"):
        await Peer(faulty).__aenter__()
    async with Peer(faulty):
        assert faulty.calls["open"] == 2


@virtual
async def test_faulty_store_lose_carries_out_and_raises_store_error() -> None:
    """An operation whose answer is lost has been carried out."""
    server = MemoryServer()
    async with Peer(faulty := FaultyStore(MemoryStore(server))) as ann:
        faulty.lose("acquire")
        with pytest.raises(StoreError, match="lost") as raised:
            await ann.ask("a", waiter := ann.waiter())
        assert not raised.value.refused
        grant = await ann.take("a", waiter)
        faulty.lose("release")
        with pytest.raises(StoreError, match="lost"):
            await ann.release("a", grant)
        assert await ann.release("a", grant) == WAS_ABSENT


@virtual
async def test_faulty_store_hold_delays_answers_until_resume_or_timeout() -> None:
    """Answers that are held back come in order when told, or after ten seconds not at all."""
    server = MemoryServer()
    loop = asyncio.get_running_loop()
    async with Peer(faulty := FaultyStore(MemoryStore(server))) as ann:
        faulty.hold("acquire")
        asked = [ann.ask("a"), ann.ask("a")]
        assert (await faulty.submit(ReadStatus("a"))).holders
        await asyncio.sleep(5)
        assert not any(answer.done() for answer in asked)
        faulty.resume()
        assert [type(answer.result()) for answer in asked] == [Granted, Queued]
        faulty.hold()
        begun = loop.time()
        with pytest.raises(StoreError, match="no answer"):
            await faulty.submit(ReadStatus("a"))
        assert loop.time() - begun == pytest.approx(GIVES_UP)


@virtual
async def test_faulty_store_loses_holds_and_counts_pushes() -> None:
    """Pushes may be lost or held back, and are counted."""
    async with Peer(faulty := FaultyStore(MemoryStore(MemoryServer()))) as ann:
        faulty.lose("push")
        for name in ("a", "b"):
            grant = await ann.take(name)
            await ann.queue(name)
            await ann.release(name, grant)
        assert (await ann.handed()).name == "b"
        assert faulty.calls["push"] == 2
        faulty.hold("push")
        grant = await ann.take("c")
        await faulty.submit(Break("c", [grant.fence]))
        told = asyncio.create_task(ann.told())
        await asyncio.sleep(60)
        assert not told.done()
        faulty.resume()
        assert (await told).fence == grant.fence


# --- The example for authors of stores


class _Faulty(Documents):
    """Documents in a database with which something is wrong: with one swap after the other."""

    def __init__(self, faults: SwapFaults) -> None:
        super().__init__()
        self.faults = faults
        self.refuses = 0
        """How many of the next swaps are certainly not carried out."""
        self.hangs = False
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Happens before the next document is read."""
        self.notifications_are_lost = False

    async def load(self, key: str) -> tuple[str, int]:
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return await super().load(key)

    async def swap(self, key: str, value: str, version: int, keep: float) -> bool:
        if self.refuses:
            self.refuses -= 1
            raise NotDone("it was not sent")
        swap = partial(super().swap, key, value, version, keep)
        return await self.faults.carry_out(swap)

    async def notify(self, client: str, name: str) -> None:
        if self.notifications_are_lost:
            raise ConnectionResetError
        await super().notify(client, name)


@pytest.mark.one_loop
class TestDocuments(StoreContract, RunsContract, SwapContract, SessionContract):
    """The example: documents that are swapped, in a database some milliseconds away."""

    @virtual
    async def test_swap_without_a_reply_fails_in_time(self) -> None:  # type: ignore[override]  # on a loop of its own
        """In virtual time."""
        await super().test_swap_without_a_reply_fails_in_time()

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self._documents = _Faulty(self.faults)

    async def spoil(self, name: str) -> bool:
        """A document that is none."""
        key = f"test/{name}"
        _, version, keep = self._documents.kept[key]
        self._documents.kept[key] = "theirs", version, keep
        return True

    def store(self) -> Store:
        """Another link to the test's own database."""
        return DocumentStore(self._documents, "test")

    async def end_session(self, peer: Peer) -> None:
        """The database ends it."""
        await self._documents.leave(peer.client)

    async def left_behind(self, name: str) -> object:
        """The state of the name; its document stays for a while, for its fence."""
        return self._kept(name)[1]

    def _kept(self, name: str) -> list[Any]:
        """Fence, state, letters, and when that was written."""
        kept: list[Any] = json.loads(self._documents.kept[f"test/{name}"][0])
        return kept

    async def test_document_store_swap_that_is_certainly_not_done_is_not_unknown(self) -> None:
        """If the database says so, the answers are as good as without the failure."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await ann.queue(name)
            self._documents.refuses = 1
            assert await ann.release(name, Grant(grant.waiter, grant.fence + 1)) == WAS_ABSENT
            assert await ann.release(name, grant) == WAS_HOLDER
            assert (await ann.handed()).waiter == place.waiter
            assert not ann.reconnected.is_set()
            # But it says nothing of another swap, whose reply is missing.
            self._documents.refuses, self.faults.swaps = 1000, []
            waiter = bob.waiter()
            with pytest.raises(StoreError) as raised:
                await bob.ask(name, waiter)
            assert raised.value.refused
            self._documents.refuses = 0
            assert await bob.leave(name, waiter) == WAS_ABSENT

    async def test_document_store_client_opened_during_a_release_is_not_dead(self) -> None:
        """A client that opens and queues while another is at work is not taken for dead."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            async with contextlib.AsyncExitStack() as stack:
                bob = Peer(self.store())

                async def come() -> None:
                    await stack.enter_async_context(bob)
                    await bob.queue(name)

                self._documents.meanwhile = come
                await ann.release(name, grant)
                await bob.handed()

    async def test_document_store_push_of_a_dead_process_is_sent_by_the_next(self) -> None:
        """What a process has written down before it died is told by the next who comes there."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            self._documents.notifications_are_lost = True
            await ann.release(name, grant)
            await ann.store.aclose()
            self._documents.notifications_are_lost = False
            assert isinstance(await cat.ask(name, wait=False), Busy)
            assert (await bob.handed()).waiter == place.waiter
            while self._kept(name)[2]:  # noqa: ASYNC110  # the database tells nobody
                await asyncio.sleep(A_MOMENT)

    async def test_document_store_fence_after_its_document_is_removed_is_higher(self) -> None:
        """They grow also where the document of an idle name was removed."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            await ann.release(name, grant)
            self._documents.kept.clear()
            assert (await ann.take(name)).fence > grant.fence

    async def test_document_store_whose_notifications_fail_by_a_mistake_is_not_deaf(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It joins again, and the log has the mistake of the author."""
        join, mistakes = self._documents.join, ["names", "join"]

        async def names() -> AsyncIterator[str]:
            if mistakes:
                raise KeyError("names")
            yield ""

        async def mistaken(client: str, about: str) -> AsyncIterator[str]:
            joined = await join(client, about)
            match mistakes.pop(0) if mistakes else "":
                case "names":
                    return names()
                case "join":
                    raise KeyError("join")
                case _:
                    return joined

        self._documents.join = mistaken  # type: ignore[method-assign]  # the author's mistake
        async with self.peers(1) as (bob,):
            await bob.reconnected.wait()
            async with Peer(self.store()) as ann:
                grant = await ann.take(name := fresh_name())
                await bob.queue(name)
                await ann.release(name, grant)
                await bob.handed()
        failed = [record.exc_info for record in caplog.records]
        assert [str(info[1]) for info in failed if info is not None] == ["'names'", "'join'"]

    @virtual
    async def test_document_store_on_a_hanging_database_refuses_in_time(self) -> None:
        """Where the database hangs, all that was asked is refused in time, and it can be closed."""
        loop = asyncio.get_running_loop()
        async with Peer(self.store()) as ann:
            name = fresh_name()
            await ann.take(name)
            self._documents.hangs = True
            begun = loop.time()
            asked = [ann.ask(name)]
            await asyncio.sleep(0.1)
            asked.append(ann.ask(name))
            for answer in asked:
                with pytest.raises(StoreError) as raised:
                    await answer
                assert raised.value.refused
            assert loop.time() - begun < 9.5
        assert loop.time() - begun < 20


class _OwnClock:
    """The database as one client sees it whose clock is ahead by so many seconds."""

    def __init__(self, documents: Documents, ahead: float) -> None:
        self._documents, self._ahead = documents, ahead

    def __getattr__(self, method: str) -> Any:
        return getattr(self._documents, method)

    async def clock(self) -> int:
        return await self._documents.clock() + round(self._ahead * 1e6)


@pytest.mark.one_loop
class TestDocumentsWithoutAClock(StoreContract, RunsContract):
    """The clocks of its clients differ by as much as they may."""

    max_skew = 0.05

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self._documents = Documents(latency=0)
        self._ahead = itertools.cycle((0.0, self.max_skew, self.max_skew / 2))

    def store(self) -> Store:
        """Another client, with another clock."""
        database = cast(Database, _OwnClock(self._documents, next(self._ahead)))
        return DocumentStore(database, "test", max_skew=self.max_skew)


@pytest.mark.one_loop
class TestSessions(StoreContract, RunsContract, SwapContract, SessionContract):
    """A store whose holds live with sessions, as authors may build it."""

    holds_end_with_client = True

    @virtual
    async def test_swap_without_a_reply_fails_in_time(self) -> None:  # type: ignore[override]  # on a loop of its own
        """In virtual time."""
        await super().test_swap_without_a_reply_fails_in_time()

    @pytest.fixture(autouse=True)
    def _database(self) -> None:
        self._documents = SessionDatabase()

    def store(self) -> Store:
        """Another client of the test's own database."""
        return SessionStore(self._documents, self.faults)

    async def end_session(self, peer: Peer) -> None:
        """The database ends them all."""
        self._documents.end(peer.client)

    async def left_behind(self, name: str) -> object:
        """The state of the name; its document stays, for its fence."""
        return json.loads(self._documents.documents[name][0])[1]

    async def spoil(self, name: str) -> bool:
        """A document that is none."""
        _, version = self._documents.documents[name]
        self._documents.documents[name] = "theirs", version
        return True


async def _wrong(name: str, parts: Sequence[Part]) -> Sequence[Any]:
    """What an author has not finished."""
    if name == "raises":
        raise KeyError(name)
    return [*parts, None] if name == "says too much" else [None for _ in parts]


async def _no_names(start: str, most: int) -> Sequence[str]:
    return []


async def test_operations_by_name_whose_future_was_cancelled_by_others_go_on() -> None:
    """What the author has waited for was cancelled, and not the task: so nothing hangs."""
    broken = list[asyncio.Future[None]]()

    async def carry_out(_: str, parts: Sequence[Part]) -> Sequence[Any]:
        if not broken:
            broken.append(asyncio.get_running_loop().create_future())
            asyncio.get_running_loop().call_soon(broken[0].cancel)
            await broken[0]
        return [1 for _ in parts]

    store = ByName(carry_out, _no_names)
    store.begin("me")
    first = store.submit(ReadPosted("x"))
    await asyncio.sleep(0)
    second = store.submit(ReadPosted("x"))
    with pytest.raises(StoreError, match="CancelledError") as raised:
        await first
    assert not raised.value.refused
    answer: Any = await second
    assert answer == 1
    await store.end()


async def test_operations_by_name_raise_store_error_for_a_mistake_of_the_author() -> None:
    """Whatever a store raises, its callers get a `StoreError` each, and later ones are served."""
    store = ByName(_wrong, _no_names)
    store.begin("me")
    for name in ("raises", "says too much"):
        for _ in range(2):
            asked = [store.submit(ReadPosted(name)), store.submit(ReadPosted(name))]
            first, second = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(first, StoreError)
            assert isinstance(second, StoreError)
            assert first is not second
            assert not first.refused
    await store.submit(ReadPosted("x"))
    await store.end()
    with pytest.raises(StoreError, match="closed"):
        await store.submit(ReadPosted("x"))


@pytest.mark.one_loop
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_contract_suite_runs_as_the_page_for_authors_shows(tmp_path: Path, mode: str) -> None:
    """The suite runs as it is shown there, where nothing is configured, and beside other tests."""
    page = (ROOT / "docs" / "reference" / "store.md").read_text("utf-8")
    (shown,) = re.findall(r"```python\n([^`]*class TestMyStore[^`]*)```", page)
    own = "\n    def test_mine(self):\n        self.store()\n"
    _passes(tmp_path, shown + own, mode, "mine or finish or leave or renew_many")


@pytest.mark.one_loop
def test_swap_suite_runs_as_the_page_for_authors_shows(tmp_path: Path) -> None:
    """It finds the faults through the hook that is shown there."""
    page = (ROOT / "docs" / "reference" / "store.md").read_text("utf-8")
    (database,) = re.findall(r"```python\n([^`]*class Dictionary:[^`]*)\n\ndatabase = ", page)
    (shown,) = re.findall(r"```python\n([^`]*class TestFaults[^`]*)```", page)
    source = f"import asyncio\n{database}\n\n{shown}"
    _passes(tmp_path, source, "auto", "is_lost or repeated or overtakes")


def _passes(folder: Path, source: str, mode: str, selected: str) -> None:
    """Run tests as an author does, and check that they pass."""
    (folder / "test_my_store.py").write_text(source)
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-q", "--strict-markers", "-W", "error"),
            *("-W", "ignore:The configuration option", "-p", "no:cacheprovider"),
            *("-o", f"asyncio_mode={mode}", "-k", selected),
            *("--rootdir", str(folder), "."),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
