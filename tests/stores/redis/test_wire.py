"""What `_wire.py` rests on below redis-py's surface; this fails the day that changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial
from typing import Any, cast

import pytest
import redis.asyncio
import uvloop
from fakeredis import FakeAsyncRedis

import aiolock
from aiolock.stores.redis._public_wire import MOST, PublicWire
from aiolock.stores.redis._wire import Wire, _forget_what_is_unsent, _TransportWire
from tests.support.failures import until
from tests.support.procs import Worker
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer


def wires(client: aiolock.LockClient) -> list[Wire]:
    """The wires of its two connections."""
    store: Any = client._engine.store
    return [store.session.pipe._link.wire, store.session.subscription._link.wire]


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
def test_transport_wire_is_used_on_every_transport_and_event_loop(
    kind: str, loop: Any, prefix: str
) -> None:
    """A real connection, of whatever kind and event loop, is read by us and not by redis-py."""

    async def main(url: str) -> None:
        async with aiolock.connect(url, prefix=prefix) as client:
            assert {type(wire) for wire in wires(client)} == {_TransportWire}
            await work(client)

    with RedisServer(tls=kind == "tls") as server:
        urls = {"tcp": server.url, "unix": server.unix_url}
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main(urls.get(kind) or server.tls_url))


async def test_wire_writes_of_many_commands_leave_in_chunks(
    redis_server: RedisServer, prefix: str
) -> None:
    """What 200 tasks send in one turn is a few packets, and the server begins before the last."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        wire: Any = wires(client)[0]
        sizes = list[int]()
        transport = wire._transport

        class Counting:
            def write(self, data: bytes) -> None:
                sizes.append(data.count(b"EVAL"))
                transport.write(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

        wire._transport = counting = Counting()
        wire.write_now = counting.write
        acquisitions = (client.lock(f"lock {number}").acquire() for number in range(200))
        leases = await asyncio.gather(*acquisitions)
        wire._transport, wire.write_now = transport, transport.write
        assert sum(sizes) == 200
        assert max(sizes) == 32
        assert len(sizes) <= 10
        await asyncio.gather(*(lease.release() for lease in leases))


async def test_public_wire_is_used_for_a_connection_without_a_transport(prefix: str) -> None:
    """A fakeredis has no sockets: there the public methods of its connection do."""
    driver = FakeAsyncRedis()
    try:
        async with aiolock.connect(driver, prefix=prefix) as client:
            assert {type(wire) for wire in wires(client)} == {PublicWire}
            await work(client)
    finally:
        await driver.aclose()


def public_wire(connection: Any, transport: Any, on_reply: Any, on_broken: Any) -> PublicWire:
    """A wire without that transport."""
    return PublicWire(connection, on_reply, on_broken, partial(_forget_what_is_unsent, transport))


async def test_public_wire_on_a_real_connection_serves_a_lock(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should redis-py hide its transport, everything still works, only slower."""
    monkeypatch.setattr(
        "aiolock.stores.redis._wire._TransportWire",
        public_wire,
    )
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        await work(client)


async def test_connect_with_a_callers_client_takes_none_of_its_connections(
    redis_server: RedisServer, prefix: str
) -> None:
    """We connect as the caller's client does, and take none of its connections."""
    async with redis.asyncio.Redis.from_url(redis_server.url, max_connections=1) as caller:
        await caller.ping()
        async with aiolock.connect(caller, prefix=prefix) as client:
            await work(client)
            assert await caller.ping()
        assert await caller.ping()


async def test_command_under_way_on_a_broken_connection_is_sent_again(
    redis_server: RedisServer, prefix: str
) -> None:
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


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_wire_that_is_dropped_is_reset_and_one_that_is_closed_is_ended(
    loop: Any, tls: bool, prefix: str
) -> None:
    """A connection that is given up is reset, so that nothing arrives late; else it is ended."""

    async def main(server: RedisServer) -> None:
        async with Proxy(server.tls_port if tls else server.port) as proxy:
            url = proxy.url
            if tls:
                url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={server.ca_path}"
            async with aiolock.connect(url, prefix=prefix) as client:
                store: Any = client._engine.store
                dropped = proxy.links[0]
                store.session.pipe._link.drop(TimeoutError("as a test has it"))
                await until(lambda: dropped.was_reset)
                await work(client)
                links = list(proxy.links)
            await until(lambda: not proxy.links)
            # A TLS transport ends without a word, so what comes meanwhile may be a reset.
            assert tls or not any(link.was_reset for link in links)

    with RedisServer(tls=tls) as server, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main(server))


@pytest.mark.parametrize("kind", [_TransportWire, PublicWire])
async def test_wire_whose_receiver_raises_is_logged_and_replaced(
    redis_server: RedisServer,
    prefix: str,
    kind: type[Wire],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A mistake of ours when something is received is logged, and the connection is replaced."""
    if kind is PublicWire:
        monkeypatch.setattr(
            "aiolock.stores.redis._wire._TransportWire",
            public_wire,
        )
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        store: Any = client._engine.store
        before = wires(client)
        assert {type(wire) for wire in before} == {kind}
        with monkeypatch.context() as patch:

            def raises_once(_: str) -> None:
                patch.undo()  # or the next connection breaks as well, sooner than it is seen
                raise ZeroDivisionError

            patch.setattr(store.session._pushes, "deliver", raises_once)
            redis_server.call("PUBLISH", f"{prefix}:push:{client.id}", "d x")
            await until(lambda: wires(client)[1] not in {before[1], None})
        assert "could not deal with" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        await until(lambda: redis_server.call("PUBSUB", "NUMSUB", f"{prefix}:push:{client.id}")[1])
        await work(client)


FORKS = """
import asyncio, os, signal, sys
import aiolock, uvloop
from tests.support.procs import say

async def main(url, prefix):
    async with aiolock.connect(url, prefix=prefix) as client:
        child = os.fork()
        if not child:
            for number in (0, 1, 2):  # or nobody would see that the parent has ended
                os.close(number)
            signal.pause()
            os._exit(0)
        async with client.lock("still works"):
            say("forked", child=child, client=client.id)
            await asyncio.sleep(60)

url, prefix, loop = sys.argv[1:]
(uvloop if loop == "uvloop" else asyncio).run(main(url, prefix))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_forked_child_keeps_no_connection(loop: str, tls: bool, prefix: str) -> None:
    """A client whose process is killed is gone for the server, though a child of it lives on."""
    with RedisServer(tls=tls) as server:
        url = server.tls_url if tls else server.url
        async with Worker("-c", FORKS, url, prefix, loop) as worker:
            forked = await worker.expect("forked")
            try:
                channel = f"{prefix}:push:{forked['client']}"
                assert server.call("PUBSUB", "NUMSUB", channel)[1] == 1
                worker.kill()
                # Not `wait`: on uvloop that is over when the child has ended, too.
                await until(lambda: worker._transport.get_returncode() is not None)
                os.kill(forked["child"], 0)  # it is there
                await until(lambda: server.call("PUBSUB", "NUMSUB", channel)[1] == 0)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(forked["child"], signal.SIGKILL)


class _Unread:
    """A transport from which nothing is read."""

    aborted = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Ours."""

    def resume_reading(self) -> None:
        """It does not read."""

    def write(self, data: bytes) -> None:
        """Nothing is written."""

    def get_extra_info(self, _: str) -> None:
        """There is no socket."""

    def abort(self) -> None:
        """It is closed."""
        self.aborted = True


@pytest.mark.one_loop
@pytest.mark.parametrize("closes", [False, True])
async def test_wire_with_many_replies_at_once_delivers_them_in_turns(closes: bool) -> None:
    """In order, and the end of the connection behind them; none after it was closed."""
    found, ends, transport = list[int](), list[Exception](), cast("Any", _Unread())

    def received(reply: int) -> None:
        found.append(reply)
        if closes and len(found) == MOST + 1:
            wire.close()

    wire = _TransportWire(cast("Any", _Unread()), transport, received, ends.append)
    count = 2 * MOST + 10
    data = b"".join(b":%d\r\n" % number for number in range(count))
    wire.data_received(data[:-3])
    assert found == list(range(MOST))
    wire.data_received(data[-3:] + b":-1\r\n")
    wire.connection_lost(None)
    assert len(found) == MOST
    assert not ends
    for _ in range(3):
        await asyncio.sleep(0)
    assert transport.aborted
    if closes:
        assert found == list(range(MOST + 1))
        assert not ends
    else:
        assert found == [*range(count), -1]
        assert [type(end) for end in ends] == [ConnectionResetError]


@pytest.mark.one_loop
async def test_wire_with_few_replies_before_its_end_delivers_them_at_once() -> None:
    """As many as come: nothing waits for the next iteration."""
    found, ends = list[int](), list[Exception]()
    wire = _TransportWire(cast("Any", _Unread()), cast("Any", _Unread()), found.append, ends.append)
    wire.data_received(b":1\r\n:2\r\n")
    wire.connection_lost(None)
    assert found == [1, 2]
    assert len(ends) == 1
