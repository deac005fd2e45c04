"""What `_wire.py` rests on below redis-py's surface; this fails the day that changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.asyncio
import uvloop
from fakeredis import FakeAsyncRedis

import aiolock
from aiolock.stores.redis._wire import Wire, _PublicWire, _TransportWire
from tests.proxy import Proxy
from tests.servers import RedisServer


def wires(client: aiolock.LockClient) -> list[Wire]:
    """The wires of its two connections."""
    store: Any = client._room.store
    return [store._pipe._link.wire, store._mailbox._link.wire]


async def work(client: aiolock.LockClient) -> None:
    """Take a lock and hand it over, so that both connections are read and written."""
    lock = client.lock("wire", ttl=20, timeout=10)

    async def next_one() -> None:
        async with lock:
            pass

    async with lock:
        waiting = asyncio.create_task(next_one())
        async with asyncio.timeout(10):
            while not (await lock.status()).waiters:
                pass
    await waiting


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_own_protocol_on_redis_pys_transport(kind: str, loop: Any, prefix: str) -> None:
    """A real connection, of whatever kind and event loop, is read by us and not by redis-py."""

    async def main(url: str) -> None:
        async with aiolock.connect(url, prefix=prefix) as client:
            assert {type(wire) for wire in wires(client)} == {_TransportWire}
            await work(client)

    with RedisServer(tls=kind == "tls") as server:
        urls = {"tcp": server.url, "unix": server.unix_url}
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main(urls.get(kind) or server.tls_url))


async def test_public_methods_for_what_has_no_transport(prefix: str) -> None:
    """A fakeredis has no sockets: there the public methods of its connection do."""
    driver = FakeAsyncRedis()
    try:
        async with aiolock.connect(driver, prefix=prefix) as client:
            assert {type(wire) for wire in wires(client)} == {_PublicWire}
            await work(client)
    finally:
        await driver.aclose()


async def test_public_methods_on_a_real_connection(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should redis-py hide its transport, everything still works, only slower."""
    monkeypatch.setattr(
        "aiolock.stores.redis._wire._TransportWire",
        lambda connection, _, received, broken: _PublicWire(connection, received, broken),
    )
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        await work(client)


async def test_the_callers_client_keeps_its_own_connections(
    redis_server: RedisServer, prefix: str
) -> None:
    """We connect as the caller's client does, and take none of its connections."""
    async with redis.asyncio.Redis.from_url(redis_server.url, max_connections=1) as caller:
        await caller.ping()
        async with aiolock.connect(caller, prefix=prefix) as client:
            await work(client)
            assert await caller.ping()
        assert await caller.ping()


async def test_what_was_under_way_is_sent_again(redis_server: RedisServer, prefix: str) -> None:
    """A command whose connection breaks before the reply is answered on the next connection."""
    async with (
        Proxy(redis_server.port) as proxy,
        aiolock.connect(proxy.url, prefix=prefix) as client,
    ):
        lock = client.lock("again")
        (pipe,) = (link for link in proxy.links if not link.is_subscription)
        pipe.deaf()
        asked = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        pipe.cut()
        lease = await asyncio.wait_for(asked, 3)
        assert lease is not None
        await lease.release()
