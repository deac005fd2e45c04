"""Two versions of aiolock beside each other: neighbours work together, others are refused."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import aiolock
from aiolock.cli.main import main
from aiolock.protocol import ReadStatus
from aiolock.stores.redis import _protocol
from aiolock.testing import Peer
from tests.support.clusters import Cluster
from tests.support.commands import Cli
from tests.support.failures import take, until
from tests.support.servers import RedisServer, store_on
from tests.support.worlds import asking, queued

Speak = Callable[[int], None]
TO_DO = "upgrade them one protocol after the other, or take another prefix"


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Speak:
    """Have clients speak another protocol from now on, as those of another version do."""

    def made_up(protocol: int) -> None:
        for module in ("_protocol", "_presence", "_store"):
            monkeypatch.setattr(f"aiolock.stores.redis.{module}.PROTOCOL", protocol)

    return made_up


@asynccontextmanager
async def handing_over(
    first: aiolock.LockClient, second: aiolock.LockClient
) -> AsyncIterator[None]:
    """A lock of the one goes to the other, and back."""
    lease = await take(first.lock("a"))
    waiting = asking(second.lock("a"))
    await queued(first.lock("a"), 1)
    await lease.release()
    lease = await waiting
    yield
    await lease.release()
    async with first.lock("a", timeout=10):
        pass


def spoken(server: RedisServer, prefix: str) -> list[str]:
    """Which protocols the server has written down."""
    found: list[str] = server.call("ZRANGE", f"{prefix}:protocols", 0, -1)
    return found


async def test_protocol_of_open_clients_is_recorded_for_ten_minutes(
    redis_server: RedisServer, prefix: str
) -> None:
    """Each client writes down what it speaks, for ten minutes after the last of them."""
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as ann,
        aiolock.connect(redis_server.url, prefix=prefix) as bob,
        handing_over(ann, bob),
    ):
        assert spoken(redis_server, prefix) == [str(_protocol.PROTOCOL)]
    assert 0 < redis_server.call("PTTL", f"{prefix}:protocols") <= _protocol.SPOKEN


async def test_protocol_one_higher_shares_a_lock_with_the_older_one(
    redis_server: RedisServer, prefix: str, speak: Speak
) -> None:
    """A version and the next one share locks; so a deployment may take its time."""
    speak(4)
    async with aiolock.connect(redis_server.url, prefix=prefix) as older:
        speak(5)
        async with (
            aiolock.connect(redis_server.url, prefix=prefix) as newer,
            handing_over(older, newer),
        ):
            assert spoken(redis_server, prefix) == ["4", "5"]


@pytest.mark.parametrize(("there", "ours"), [(5, 3), (3, 5), (1, 9)])
async def test_open_beside_a_distant_protocol_raises_store_error(
    redis_server: RedisServer, prefix: str, speak: Speak, there: int, ours: int
) -> None:
    """Whoever comes to others that it cannot work beside is told so, and what to do."""
    url = redis_server.url
    speak(there)
    async with aiolock.connect(url, prefix=prefix) as other:
        speak(ours)
        text = rf"under the prefix '{prefix}': {TO_DO}.*protocol {there} is spoken.*protocol {ours}"
        with pytest.raises(aiolock.StoreError, match=text):
            await aiolock.connect(url, prefix=prefix).open()
        assert spoken(redis_server, prefix) == [str(there)]  # or the next of them were refused
        async with other.lock("a"):
            pass
        async with aiolock.connect(url, prefix=f"{prefix}-new"):  # it is another one's business
            pass


async def test_open_beside_a_distant_protocol_of_long_ago_succeeds(
    redis_server: RedisServer, prefix: str, speak: Speak, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of which none was here for long do not count, although their neighbours go on."""
    speak(3)
    async with aiolock.connect(redis_server.url, prefix=prefix):
        pass
    speak(4)
    async with aiolock.connect(redis_server.url, prefix=prefix):
        redis_server.call("ZINCRBY", f"{prefix}:protocols", -_protocol.SPOKEN - 1, "3")
        speak(5)
        async with aiolock.connect(redis_server.url, prefix=prefix) as client:
            await client.lock("a").locked()


async def test_open_beside_a_record_that_is_no_number_succeeds(
    redis_server: RedisServer, prefix: str
) -> None:
    """What is no number is passed over, and an old client that writes nothing is not missed."""
    now = int(redis_server.call("TIME")[0]) * 1000
    redis_server.call("ZADD", f"{prefix}:protocols", now, "later:9")
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        redis_server.call("DEL", f"{prefix}:protocols")
        async with client.lock("a"):
            pass


async def test_heartbeat_after_a_flush_records_the_protocol_again(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After FLUSHALL under an open client its heartbeat writes it down again."""
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT", 0.05)
    async with aiolock.connect(redis_server.url, prefix=prefix):
        redis_server.call("DEL", f"{prefix}:protocols")
        await until(lambda: spoken(redis_server, prefix))


async def test_backstop_of_a_waiter_records_the_protocol_again(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a client whose waiters ask in place of its heartbeat."""
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT", 0.05)
    monkeypatch.setattr("aiolock.stores.redis._health.AGAIN", 0.2)
    monkeypatch.setattr("aiolock._engine.backstop.KEEP_ALIVE", 0.05)
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as holding,
        aiolock.connect(redis_server.url, prefix=prefix) as client,
    ):
        lease = await take(holding.lock("a"))
        waiting = asking(client.lock("a"))
        await queued(client.lock("a"), 1)
        await holding._engine.store.aclose()
        redis_server.call("DEL", f"{prefix}:protocols")
        await until(lambda: spoken(redis_server, prefix))
        waiting.cancel()
        assert lease.state == "held"


@pytest.mark.parametrize("how", ["heartbeat", "break"])
async def test_operation_beside_a_later_distant_protocol_is_refused_until_gone(
    redis_server: RedisServer,
    prefix: str,
    speak: Speak,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """An open client that finds others there asks nothing more of the server, until they leave."""
    beat = 0.05 if how == "heartbeat" else 9.0
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT", beat)
    store = store_on(redis_server.url, prefix)
    async with Peer(store):
        monkeypatch.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 1.0)
        now = int(redis_server.call("TIME")[0]) * 1000
        redis_server.call("DEL", f"{prefix}:protocols")
        redis_server.call("ZADD", f"{prefix}:protocols", now, 9)
        if how == "break":
            store.session.pipe.drop(ConnectionError("broken"))

        async def refused() -> None:
            while True:
                await store.submit(ReadStatus("a"))

        with pytest.raises(aiolock.StoreError, match=rf"{TO_DO}.*protocol 9 is spoken there"):
            await asyncio.wait_for(refused(), 10)
        redis_server.call("DEL", f"{prefix}:protocols")

        async def served() -> bool:
            try:
                await store.submit(ReadStatus("a"))
            except aiolock.StoreError:
                return False
            return True

        async with asyncio.timeout(10):
            while not await served():
                pass


async def at_its_first_lock(client: aiolock.LockClient) -> None:
    """Open it, and go where the lock is: its home may be a master where nobody has been."""
    async with client, client.lock("a"):
        pass


async def test_protocol_in_a_cluster_is_recorded_and_checked_by_each_master(
    cluster: Cluster, prefix: str, speak: Speak
) -> None:
    """On each master for itself: who shares a lock has come to the same one."""
    speak(4)
    home = cluster.owner("lock:a")

    def at(master: RedisServer) -> list[str]:
        (key,) = master.call("KEYS", f"{prefix}:protocols:*")
        found: list[str] = master.call("ZRANGE", key, 0, -1)
        return found

    async with aiolock.connect(cluster.url, prefix=prefix) as older:
        for master in cluster.masters:
            name = next(n for n in map(str, range(1000)) if cluster.owner(f"lock:{n}") is master)
            async with older.lock(name):
                assert at(master) == ["4"]
        speak(5)
        async with (
            aiolock.connect(cluster.url, prefix=prefix) as newer,
            handing_over(older, newer),
        ):
            assert at(home) == ["4", "5"]
        speak(9)
        with pytest.raises(aiolock.StoreError, match=TO_DO):
            await at_its_first_lock(aiolock.connect(cluster.url, prefix=prefix))


@pytest.mark.parametrize(
    "command", ["ls", "show a", "deadlocks", "break --yes a", "ask a", "run a -- true", "check"]
)
def test_commands_beside_a_distant_protocol_exit_69_with_the_remedy(
    redis_server: RedisServer, prefix: str, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Each command is refused, with the numbers of both, and what to do."""
    now = int(redis_server.call("TIME")[0]) * 1000
    redis_server.call("ZADD", f"{prefix}:protocols", now, 9)
    name, *arguments = command.split()
    where = ("--url", redis_server.url, "--prefix", prefix)
    assert main([name, *where, *arguments]) == 69
    output, errors = capsys.readouterr()
    assert output == ""
    assert re.fullmatch(rf"aiolock {name}: Redis .*{TO_DO}.*protocol 9 is spoken.*\n", errors)


async def test_check_command_shows_its_protocol_and_those_beside_it(
    redis_server: RedisServer, prefix: str
) -> None:
    """What ours is, and what others speak that are there."""
    cli = Cli(redis_server.url, prefix)
    assert re.search(r"^protocol +1$", (await cli("check"))[1], re.MULTILINE)
    now = int(redis_server.call("TIME")[0]) * 1000
    redis_server.call("ZADD", f"{prefix}:protocols", now, 2)
    assert re.search(r"^protocol +1, beside 2$", (await cli("check"))[1], re.MULTILINE)
    found = json.loads((await cli("check", "--json"))[1])
    assert found["protocols"] == [1, 2]
