"""A lock with a client of its own: it is connected for one body, and closed whatever happens."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import aiolock
import aiolock.sync
from aiolock import AcquireTimeout, LeaseLost, LockClient, StoreError
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.databases import free_port
from tests.support.servers import RedisServer

VARIABLE = "AIOLOCK_URL"


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[LockClient]:
    """All clients that are made meanwhile."""
    made = list[LockClient]()
    begin = LockClient.__init__

    def init(client: LockClient, *args: Any, **options: Any) -> None:
        begin(client, *args, **options)
        made.append(client)

    monkeypatch.setattr(LockClient, "__init__", init)
    return made


def check_closed(clients: list[LockClient]) -> None:
    """None of them is open."""
    assert clients
    assert not any(client._engine.is_open for client in clients)


async def test_lock_is_held_in_the_body_and_free_after_it(
    server: RedisServer, prefix: str, clients: list[LockClient]
) -> None:
    """With the options of a lock, and the prefix; nothing stays open."""
    async with aiolock.connect(server.url, prefix=prefix) as other:
        async with aiolock.lock("a", url=server.url, prefix=prefix, ttl=7, reentrant=True) as lease:
            assert isinstance(lease, aiolock.Lease)
            assert lease.remaining() < 7
            assert await other.lock("a").locked()
        assert lease.state == "released"
        assert not await other.lock("a").locked()
    check_closed(clients)


async def test_lock_that_is_taken_raises_and_closes(
    server: RedisServer, prefix: str, clients: list[LockClient]
) -> None:
    """As `async with lock`: at once with `timeout=0`, or when the time has passed."""
    async with aiolock.connect(server.url, prefix=prefix) as other, other.lock("a"):
        for timeout in (0, 0.1):
            with pytest.raises(AcquireTimeout, match="'a'"):
                async with aiolock.lock("a", url=server.url, prefix=prefix, timeout=timeout):
                    pytest.fail("the body has run without the lock")
        assert not (await other.lock("a").status()).waiters
    check_closed(clients)


async def test_error_of_the_body_comes_out_as_it_is(
    server: RedisServer, prefix: str, clients: list[LockClient]
) -> None:
    """And the lock is free, and the client closed."""
    error = ValueError("the body's own")
    with pytest.raises(ValueError, match="own") as caught:
        async with aiolock.lock("a", url=server.url, prefix=prefix):
            raise error
    assert caught.value is error
    check_closed(clients)
    async with aiolock.lock("a", url=server.url, prefix=prefix, timeout=0):
        pass


async def test_loss_cancels_the_body_and_closes(
    server: RedisServer, prefix: str, clients: list[LockClient]
) -> None:
    """`LeaseLost` at the end, as `async with lock`."""

    async def hold(other: LockClient) -> None:
        async with aiolock.lock("a", url=server.url, prefix=prefix):
            assert await other.lock("a").break_()
            await asyncio.sleep(30)

    async with aiolock.connect(server.url, prefix=prefix) as other:
        with pytest.raises(LeaseLost, match="'a'"):
            await hold(other)
    check_closed(clients)


async def test_lock_without_a_server_raises_store_error_and_closes(
    clients: list[LockClient],
) -> None:
    """Nothing is left open."""
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(StoreError, match="nothing listens there"):
        async with aiolock.lock("a", url=url):
            pytest.fail("the body has run without the lock")
    check_closed(clients)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_lock_cancelled_at_any_step_closes_and_leaves_the_lock_free(
    server: RedisServer, prefix: str, clients: list[LockClient], kind: Kind
) -> None:
    """While it connects, acquires, holds, releases, and disconnects."""

    async def scenario() -> None:
        async with aiolock.lock("a", url=server.url, prefix=prefix, ttl=60):
            await asyncio.sleep(0)

    steps = 0
    async with aiolock.connect(server.url, prefix=prefix) as other:
        async for _ in cancel_everywhere(scenario, [kind]):
            mine = [client for client in clients if client is not other]
            check_closed(mine)
            clients.clear()
            assert not await other.lock("a").locked()
            steps += 1
    assert steps >= 4


async def test_lock_without_a_url_takes_that_of_the_environment(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the command line; a URL that is given comes first."""
    monkeypatch.setenv(VARIABLE, server.url)
    async with aiolock.connect(server.url, prefix=prefix) as other:
        async with aiolock.lock("a", prefix=prefix):
            assert await other.lock("a").locked()
        async with aiolock.lock("a", url="memory://", prefix=prefix):
            assert not await other.lock("a").locked()
    monkeypatch.setenv(VARIABLE, "nonsense://")
    with pytest.raises(ValueError, match="no URL of ours"):
        aiolock.lock("a")


@pytest.mark.one_loop
@pytest.mark.parametrize("lock", [aiolock.lock, aiolock.sync.lock])
@pytest.mark.parametrize("value", [None, ""])
def test_lock_without_any_url_raises_value_error_when_called(
    lock: Any, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says where one may be given."""
    monkeypatch.delenv(VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(ValueError, match=f"url=.*{VARIABLE}"):
        lock("a")


@pytest.mark.one_loop
@pytest.mark.parametrize("lock", [aiolock.lock, aiolock.sync.lock])
def test_lock_with_an_invalid_option_raises_when_called(lock: Any) -> None:
    """Before anything is opened, as where a client describes a lock."""
    lock = partial(lock, url="memory://")
    for options, error, says in (
        ({"ttl": -1}, ValueError, "ttl"),
        ({"prefix": "a b"}, ValueError, "prefix"),
        ({"url": 3}, TypeError, "3"),
        ({"expire": 3}, TypeError, "did you mean ttl="),
        ({"blocking": False}, TypeError, "timeout=0"),
    ):
        with pytest.raises(error, match=says):
            lock("a", **options)
    with pytest.raises(ValueError, match="name"):
        lock("")


async def test_lock_as_decorator_lets_one_call_run_at_a_time(
    server: RedisServer, prefix: str, clients: list[LockClient]
) -> None:
    """So calls exclude each other, and the end of one does not close the client of the next."""
    inside = 0
    decorate: Any = aiolock.lock("a", url=server.url, prefix=prefix)

    async def work() -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.01)
        inside -= 1

    decorated = decorate(work)
    clients.clear()  # the one that has checked the options
    await asyncio.gather(*(decorated() for _ in range(3)))
    assert len(clients) == 3
    check_closed(clients)


def test_sync_lock_behaves_as_the_lock_for_tasks(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without `await`."""
    monkeypatch.setenv(VARIABLE, server.url)
    with aiolock.sync.connect(server.url, prefix=prefix) as other:
        with aiolock.sync.lock("a", prefix=prefix, ttl=7) as lease:
            assert isinstance(lease, aiolock.sync.Lease)
            assert other.lock("a").locked()
        assert lease.state == "released"
        assert not other.lock("a").locked()
        with (
            other.lock("a"),
            pytest.raises(AcquireTimeout),
            aiolock.sync.lock("a", url=server.url, prefix=prefix, timeout=0),
        ):
            pytest.fail("the body has run without the lock")
        error = ValueError("the body's own")
        with (
            pytest.raises(ValueError, match="own") as caught,
            aiolock.sync.lock("a", prefix=prefix),
        ):
            raise error
        assert caught.value is error
        with pytest.raises(LeaseLost), aiolock.sync.lock("a", prefix=prefix):
            other.lock("a").break_()
        assert not other.lock("a").locked()


def test_sync_lock_without_a_server_raises_store_error() -> None:
    """As in a task."""
    with (
        pytest.raises(StoreError, match="nothing listens there"),
        aiolock.sync.lock("a", url=f"redis://127.0.0.1:{free_port()}"),
    ):
        pytest.fail("the body has run without the lock")
