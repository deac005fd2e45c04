"""Every store passes the contract, and the store that fails on purpose passes it too."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fakeredis
import pytest
import redis.asyncio

import aiolock
from aiolock import StoreError
from aiolock.store import WAS_ABSENT, Granted, Party, Queued, Status, Store
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.stores.redis import from_client, from_url
from aiolock.testing import FaultyStore, Peer, RunsContract, StoreContract
from aiolock.testing._faulty import GIVES_UP
from tests.servers import RedisServer
from tests.worlds import virtual

ROOT = Path(__file__).parent.parent


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


class TestMemoryUncounted(TestMemory):
    """The same, where nobody is taken for dead."""

    counts_who_listens = False

    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        self._memory = _Uncounted()


class TestMemoryByUrl(StoreContract, RunsContract):
    """The same, found by a URL."""

    @pytest.fixture(autouse=True)
    def _prefix(self, prefix: str) -> None:
        self._store_prefix = prefix

    def store(self) -> Store:
        """Another link to the event loop's own server."""
        client = aiolock.connect("memory://", prefix=self._store_prefix)
        return client._engine.store


class TestFaulty(TestMemory):
    """A store that fails on purpose, but has not been told to."""

    def store(self) -> Store:
        """A link through which nothing fails."""
        return FaultyStore(super().store())


class TestFakeRedis(StoreContract, RunsContract):
    """The scripts on fakeredis, by a client that reads replies as bytes."""

    decode_responses = False

    @pytest.fixture(autouse=True)
    def _server(self, prefix: str) -> None:
        self._prefix = prefix
        self._client = fakeredis.FakeAsyncRedis(
            server=fakeredis.FakeServer(), decode_responses=self.decode_responses
        )

    def store(self) -> Store:
        """Another store that connects as the same fake client does."""
        return from_client(self._client, self._prefix)


class TestFakeRedisDecoding(TestFakeRedis):
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

    def store(self) -> Store:
        """Another store on the shared server, under the test's own prefix."""
        return from_url(self._redis.url, self._prefix)

    async def left_behind(self, name: str) -> object:
        """The keys of the name, less the one that remembers its last fence."""
        keys = self._redis.call("KEYS", f"{self._prefix}:{{{name}}}:*")
        return [key for key in keys if not key.endswith(":fence")]


class TestRedisUnixSocket(TestRedis):
    """A real server, by its unix socket."""

    def store(self) -> Store:
        """Another store through the socket."""
        return from_url(self._redis.unix_url, self._prefix)


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


class TestRedisClientDecoding(TestRedisClient):
    """The same, by a client that decodes replies."""

    options: ClassVar[dict[str, Any]] = {"decode_responses": True}


class TestRedisClientResp3(TestRedisClient):
    """The same, by a client that speaks the newer protocol."""

    options: ClassVar[dict[str, Any]] = {"protocol": 3, "decode_responses": True}


def test_a_status_for_people() -> None:
    """A status as text: what it is, then a line for each holder and waiter."""
    holder = Party("aclientsid", "box", 42, 1.5, 0, 1_500_000, 2.26, permits=2, shared=True, seq=9)
    waiter = Party("another", "", 0, 61.25, 1, shared=True, seq=3, alive=False)
    assert str(Status("semaphore:api", (holder,), (waiter,), 0.5, 5)) == (
        "'semaphore:api', limit 5, closed for 0.5 s\n"
        "  holds: aclien#9 at box:42, since 1970-01-01T00:00:01.500+00:00, fence 1500000,"
        " 2.3 s left, 2 permits, alive\n"
        "  waits, place 1: anothe#3 at somewhere, since 1970-01-01T00:01:01.250+00:00, shared,"
        " dead or cut off"
    )
    assert str(Status("lock:a", (), ())) == "'lock:a': nobody holds it or waits"


async def test_a_closed_memory_store_does_nothing() -> None:
    """What is asked of a store that was closed is refused, and not carried out."""
    server = MemoryServer()
    async with Peer(MemoryStore(server)) as ann:
        grant = await ann.take("a")
        await ann.store.aclose()
        with pytest.raises(StoreError, match="closed") as raised:
            await ann.release("a", grant)
        assert raised.value.refused
        assert server.names() == ["a"]


@pytest.mark.timeout(180)
def test_another_lua() -> None:
    """The scripts pass on Lua 5.4 too, as some servers have it: its numbers are not of one kind."""
    pytest.importorskip("lupa.lua54")
    # In a process of its own: it dies of two versions of Lua.
    tests = f"{__file__}::TestFakeRedis"
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            tests,
        ],
        env={**os.environ, "FAKEREDIS_LUA_VERSION": "5.4"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# --- The store that fails on purpose


@virtual
async def test_faulty_refuses() -> None:
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


async def test_faulty_refuses_to_open() -> None:
    """A store may refuse to open, and open the next time."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    faulty.refuse("open")
    with pytest.raises(StoreError, match="refused"):
        await Peer(faulty).__aenter__()
    async with Peer(faulty):
        assert faulty.calls["open"] == 2


@virtual
async def test_faulty_loses_answers() -> None:
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
async def test_faulty_holds_answers_back() -> None:
    """Answers that are held back come in order when told, or after ten seconds not at all."""
    server = MemoryServer()
    loop = asyncio.get_running_loop()
    async with Peer(faulty := FaultyStore(MemoryStore(server))) as ann:
        faulty.hold("acquire")
        asked = [ann.ask("a"), ann.ask("a")]
        assert (await faulty.status("a")).holders
        await asyncio.sleep(5)
        assert not any(answer.done() for answer in asked)
        faulty.resume()
        assert [type(answer.result()) for answer in asked] == [Granted, Queued]
        faulty.hold()
        begun = loop.time()
        with pytest.raises(StoreError, match="no answer"):
            await faulty.status("a")
        assert loop.time() - begun == pytest.approx(GIVES_UP)


@virtual
async def test_faulty_pushes() -> None:
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
        await faulty.break_("c", [grant.fence])
        told = asyncio.create_task(ann.told())
        await asyncio.sleep(60)
        assert not told.done()
        faulty.resume()
        assert (await told).fence == grant.fence
