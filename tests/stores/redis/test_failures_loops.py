"""The same on other event loops: uvloop, and asyncio with eager tasks."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import aiolock
from tests.support.failures import Peek, check_nothing_left, check_works, command_link, take
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

Loop = Callable[[], asyncio.AbstractEventLoop]
Run = Callable[[Coroutine[Any, Any, None]], None]


def uvloop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop's."""
    module = pytest.importorskip("uvloop", reason="uvloop is not installed")
    loop: asyncio.AbstractEventLoop = module.new_event_loop()
    return loop


def eager() -> asyncio.AbstractEventLoop:
    """A loop whose tasks begin to run where they are created."""
    loop = asyncio.new_event_loop()
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


@pytest.fixture(
    params=[
        pytest.param(asyncio.new_event_loop, id="asyncio"),
        pytest.param(uvloop, id="uvloop"),
        pytest.param(
            eager,
            id="eager_tasks",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 12), reason="eager tasks came with Python 3.12"
            ),
        ),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test on that loop, and check that it leaves no task behind."""

    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test)
            assert asyncio.all_tasks(runner.get_loop()) == set()

    return run


@pytest.fixture(scope="module")
def tls_server() -> Iterator[RedisServer]:
    """A server with TLS."""
    with RedisServer(tls=True) as server:
        yield server


@pytest.mark.parametrize("url", ["url", "unix_url", "tls_url"])
def test_client_on_each_event_loop_does_everything_over_each_link(
    run: Run, tls_server: RedisServer, prefix: str, url: str
) -> None:
    """A client can do all that one can do, on the fast path, over each kind of link."""

    async def test() -> None:
        async with aiolock.connect(getattr(tls_server, url), prefix=prefix) as client:
            await check_works(client)
            store: Any = client._engine.store
            assert type(store.session.pipe._link.wire).__name__ == "_TransportWire"

    run(test())
    check_nothing_left(tls_server, prefix)


def test_handoff_on_each_event_loop_follows_the_order_of_arrival(
    run: Run, server: RedisServer, prefix: str
) -> None:
    """The lock is handed on in the order of arrival."""

    async def test() -> None:
        order: list[int] = []

        async def work(lock: aiolock.Lock, number: int) -> None:
            async with lock:
                order.append(number)
                await asyncio.sleep(0)

        async with (
            aiolock.connect(server.url, prefix=prefix) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(50):
                tasks.create_task(work(client.lock("lock"), number))
        assert order == list(range(50))

    run(test())


def test_loss_on_each_event_loop_cancels_the_body(
    run: Run, server: RedisServer, prefix: str
) -> None:
    """A lease that is broken, or outlived by a blocked loop, cancels the body."""

    async def test() -> None:
        async def broken(lock: aiolock.Lock) -> None:
            async with lock:
                await lock.break_()
                await asyncio.sleep(10)

        async def blocked(lock: aiolock.Lock) -> None:
            async with lock:
                time.sleep(0.4)
                await asyncio.sleep(10)

        async with aiolock.connect(server.url, prefix=prefix) as client:
            for body in (broken, blocked):
                with pytest.raises(aiolock.LeaseLost):
                    await body(client.lock("lock", ttl=0.3))

    run(test())


def test_acquire_cancelled_on_each_event_loop_leaves_nothing(
    run: Run, server: RedisServer, prefix: str
) -> None:
    """Whoever is cancelled, wherever it is, leaves nothing behind."""

    async def test() -> None:
        peek = Peek(server, prefix)
        async with aiolock.connect(server.url, prefix=prefix) as client:
            for steps in range(8):
                lease = await take(client.lock("lock"))
                task = asyncio.create_task(take(client.lock("lock")))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await lease.release()
                await client.lock("lock").status()
                assert peek.holders() == peek.queue() == []
            lease = await take(client.lock("lock"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.create_task(take(client.lock("lock"))), 0.05)
            assert await lease.release()

    run(test())


def test_links_broken_on_each_event_loop_are_replaced(
    run: Run, server: RedisServer, prefix: str
) -> None:
    """Killed connections, a lost reply and half a command are mended."""

    async def test() -> None:
        peek = Peek(server, prefix)
        async with (
            Proxy(server.port) as proxy,
            aiolock.connect(proxy.url, prefix=prefix) as client,
        ):
            async with client.lock("lock"):
                pass
            proxy.swallow_replies(1, command_link(proxy))
            lease = await take(client.lock("lock"))
            proxy.cut_after(30, command_link(proxy))
            assert await lease.verify()
            waiting = asyncio.create_task(take(client.lock("lock")))
            await peek.queued(1)
            proxy.cut()
            assert await lease.release()
            assert await (await asyncio.wait_for(waiting, 5)).release()

    run(test())


def test_aclose_on_each_event_loop_ends_bodies_and_waiters(
    run: Run, server: RedisServer, prefix: str
) -> None:
    """Closing cancels the bodies, and ends the waiting of those who wait."""

    async def test() -> None:
        async def hold(client: aiolock.LockClient) -> None:
            async with client.lock("lock"):
                await asyncio.sleep(10)

        client = aiolock.connect(server.url, prefix=prefix)
        await client.open()
        holding = asyncio.create_task(hold(client))
        async with asyncio.timeout(30):
            while not await client.lock("lock").locked():
                pass
        waiting = asyncio.create_task(take(client.lock("lock")))
        async with asyncio.timeout(30):
            while not (await client.lock("lock").status()).waiters:
                pass
        await client.aclose()
        with pytest.raises(aiolock.LeaseLost):
            await holding
        with pytest.raises(aiolock.ClientClosed):
            await waiting

    run(test())


def test_open_without_a_server_on_each_event_loop_raises_store_error(run: Run, prefix: str) -> None:
    """A server that is not there is a StoreError."""

    async def test() -> None:
        with pytest.raises(aiolock.StoreError):
            await aiolock.connect("redis://127.0.0.1:1", prefix=prefix).open()

    run(test())
