"""A client: how it is made, opened, used from where it may be, and closed."""

from __future__ import annotations

import asyncio
import functools
import inspect
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import anyio
import pytest
import redis.asyncio

import aiolock
from aiolock import AcquireTimeout, ClientClosed, LeaseLost, StoreError, _client
from aiolock._engine.engine import State
from aiolock.protocol import Deliver, ReadStatus, Reconnected
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.failures import take, until
from tests.support.servers import RedisServer, hold_port
from tests.support.worlds import (
    World,
    asking,
    check_what_an_opening_leaves,
    queued,
    settled,
    virtual,
)

R = TypeVar("R")


# --- Making and opening


async def test_connect_without_a_server_does_no_io_and_open_fails() -> None:
    """`connect` only notes where the store is; opening is what fails, with the driver's error."""
    with hold_port() as holder:
        port = holder.getsockname()[1]
        client = aiolock.connect(f"redis://127.0.0.1:{port}")
        client.lock("a")
        with pytest.raises(StoreError, match=r"(?i)connect") as caught:
            await client.open()
    assert isinstance(caught.value.__cause__, (redis.exceptions.ConnectionError, OSError))
    assert isinstance(caught.value, ConnectionError)


async def test_open_and_aclose_by_hand_take_and_free_as_async_with(
    world: World, other: aiolock.LockClient
) -> None:
    """`open` and `aclose` do what `async with` does, for a lifespan."""
    client = world.client()
    await client.open()
    assert await client.lock("a").acquire() is not None
    assert await other.lock("a").locked()
    await client.aclose()
    assert not await other.lock("a").locked()


async def test_client_opened_again_after_close_works_with_a_new_id(world: World) -> None:
    """A client that was closed opens again, as another one, and what it made works again."""
    client = world.client()
    lock = client.lock("a")
    ids = set[str]()
    for _ in range(3):
        async with client:
            ids.add(client.id)
            async with lock:
                assert [holder.client for holder in (await lock.status()).holders] == [client.id]
        with pytest.raises(ClientClosed, match="open it again"):
            await lock.acquire()
    assert len(ids) == 3


async def test_open_called_several_times_is_one_opening(world: World) -> None:
    """To open what is open, or being opened, is one opening."""
    client = world.client()
    await asyncio.gather(*(client.open() for _ in range(5)))
    before = client.id
    await client.open()
    assert client.id == before
    await client.lock("a").status()
    await client.aclose()


async def test_open_cancelled_while_others_open_goes_on_for_them(world: World) -> None:
    """Whoever is cancelled while it opens ends that for itself; the last one, for all."""
    client = world.client()
    first, second = (asyncio.create_task(client.open()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    await client.lock("a").status()
    await client.aclose()
    if world.kind == "memory":
        return  # opens in one step
    alone = asyncio.create_task(client.open())
    await asyncio.sleep(0)
    alone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await alone
    with pytest.raises(ClientClosed, match="open"):
        await client.lock("a").status()
    async with client:
        await client.lock("a").status()


async def test_open_cancelled_when_it_is_done_closes_nothing_for_the_others(world: World) -> None:
    """Whoever is cancelled just when it is open does not close it for the others."""
    client = world.client()
    first, second = (asyncio.create_task(client.open()) for _ in range(2))
    await asyncio.sleep(0)
    assert client._lifecycle.opening is not None
    client._lifecycle.opening.add_done_callback(
        lambda _: second.cancel()
    )  # when both are to hear of it
    await first
    await asyncio.wait([second])
    await client.lock("a").status()
    await client.aclose()


async def test_aclose_during_an_opening_ends_the_opening(world: World) -> None:
    """To close what is being opened ends the opening: nothing is open after it."""
    client = world.client()
    opening = asyncio.create_task(client.open())
    await asyncio.sleep(0)
    await client.aclose()
    if world.kind == "memory":  # opens in one step
        await opening
    else:
        with pytest.raises(ClientClosed, match="closed while it was being opened"):
            await opening
    with pytest.raises(ClientClosed):
        await client.lock("a").status()
    async with client:
        await client.lock("a").status()


class _SlowToOpen(MemoryStore):
    """A store that takes its time to connect, and some to wind up where that is given up."""

    winds_up = 1.0

    async def open(self, client: str, deliver: Deliver) -> None:
        try:
            await asyncio.sleep(2)
        except asyncio.CancelledError:
            if self.winds_up:
                await asyncio.sleep(self.winds_up)
            raise
        await super().open(client, deliver)


@virtual
async def test_open_after_a_cancelled_opening_is_an_opening_of_its_own() -> None:
    """An opening that nobody wanted any more is not that of who comes while it ends."""
    client = aiolock.connect(_SlowToOpen(MemoryServer()))
    first = asyncio.create_task(client.open())
    await asyncio.sleep(0.5)
    first.cancel()
    await asyncio.sleep(0.5)
    await client.open()
    await asyncio.wait([first])
    assert first.cancelled()
    async with client.lock("a"):
        pass
    await client.aclose()


@virtual
@pytest.mark.parametrize("turns", range(6))
async def test_open_cancelled_during_aclose_ends_cancelled(turns: int) -> None:
    """A cancellation that was taken is not replaced by the news that the client was closed."""
    store = _SlowToOpen(MemoryServer())
    store.winds_up = 0.0  # so that both fall into the same few turns
    client = aiolock.connect(store)
    opening = asyncio.create_task(client.open())
    await asyncio.sleep(0.5)
    closing = asyncio.create_task(client.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    taken = opening.cancel()
    await asyncio.wait([opening, closing])
    assert opening.cancelled() == taken


@virtual
async def test_waiter_of_a_client_closed_and_reopened_raises_client_closed() -> None:
    """Who waited when it was closed is told so, though it is open when the task wakes up."""
    server = MemoryServer()
    async with aiolock.connect(server) as theirs, theirs.lock("a"):
        client = aiolock.connect(server)
        await client.open()
        waiting = asking(client.lock("a"))
        await queued(theirs.lock("a"), 1)
        closing = asyncio.create_task(client.aclose())
        async with asyncio.timeout(30):
            while client._engine.state is not State.CLOSED:  # noqa: ASYNC110  # in that very turn
                await asyncio.sleep(0)
        await client.open()
        with pytest.raises(ClientClosed):
            await waiting
        await closing
        await client.aclose()


@virtual
async def test_reconnect_callbacks_of_an_earlier_opening_are_not_called() -> None:
    """What is to be called at a reconnection belongs to one opening."""
    client = aiolock.connect(MemoryServer())
    async with client:
        client._engine.waiters.on_reconnect.add(pytest.fail)
    async with client:
        client._engine.waiters.deliver(Reconnected())


async def test_lease_of_an_earlier_opening_takes_nothing_from_the_present_holder(
    world: World,
) -> None:
    """A lease of an earlier opening takes nothing from those who hold its lock in this one."""
    await check_what_an_opening_leaves(world.client(), world.client())


def test_open_in_another_event_loop_after_close_works(world: World) -> None:
    """Closed in one event loop it opens in the next; also where that loop ended without that."""
    client = world.client()

    async def use(*, close: bool) -> None:
        await client.open()
        async with client.lock("a"):
            pass
        if close:
            await client.aclose()

    for _ in range(2):
        asyncio.run(use(close=True))
    if world.kind == "memory":  # of a socket, asyncio itself would complain
        asyncio.run(use(close=False))
        asyncio.run(use(close=True))


def test_open_in_another_event_loop_after_an_unfinished_close_works() -> None:
    """What was under way there is forgotten, also by a close before the next opening."""
    hangs = True

    class Hangs(MemoryStore):
        """A store that cannot be closed at first."""

        async def aclose(self) -> None:
            await asyncio.sleep(100 if hangs else 0)
            await super().aclose()

    client = aiolock.connect(Hangs(MemoryServer()))
    closing = list[asyncio.Task[Any]]()

    async def begin() -> None:
        await client.open()
        closing.append(asyncio.create_task(client.aclose()))
        await asyncio.sleep(0.05)
        closing.append(cast("asyncio.Task[Any]", client._lifecycle.closing))
        for each in closing:
            assert not each.done()
            each._log_destroy_pending = False  # type: ignore[attr-defined]

    first = asyncio.new_event_loop()
    first.run_until_complete(begin())
    first.close()
    hangs = False

    async def use() -> None:
        await client.aclose()
        async with client, client.lock("b"):
            pass

    asyncio.run(use())


async def test_aclose_called_any_number_of_times_is_harmless(world: World) -> None:
    """`aclose` is idempotent, and harmless where nothing was opened."""
    client = world.client()
    await client.open()
    for _ in range(3):
        await client.aclose()
    never = world.client()
    for _ in range(2):
        await never.aclose()


async def test_open_that_failed_can_be_tried_again() -> None:
    """A client that could not be opened may be opened when the server is there."""
    server = RedisServer()
    try:
        client = aiolock.connect(server.url)
        with pytest.raises(StoreError):
            await client.open()
        server.start()
        await client.open()
        async with client.lock("a"):
            assert await client.lock("a").locked()
        await client.aclose()
        listed = server.call("CLIENT", "LIST")
        assert len(listed.strip().splitlines()) == 1, f"connections are left open: {listed}"
    finally:
        server.close()


async def test_client_used_before_open_or_after_close_raises_client_closed(world: World) -> None:
    """A client that is not open is ClientClosed, wherever it is used, and says why."""
    client = world.client()
    lock = client.lock("a")  # a description needs no open client

    async def use(match: str) -> None:
        with pytest.raises(ClientClosed, match=match):
            _ = lock.acquire()
        with pytest.raises(ClientClosed, match=match):
            await lock.__aenter__()
        with pytest.raises(ClientClosed, match=match):
            lock.held()
        for call in (lock.release, lock.status, lock.locked, lock.break_):
            with pytest.raises(ClientClosed, match=match) as caught:
                await call()
            assert isinstance(caught.value, RuntimeError)

    await use("not open yet")
    await client.open()
    pending = lock.acquire()
    lease = await client.lock("b").acquire()
    assert lease is not None
    await client.aclose()
    await use("was closed")
    with pytest.raises(ClientClosed, match="was closed"):
        await pending
    assert lease.state == "released"
    assert await lease.release() is True
    assert await lease.verify() is False


async def test_client_id_has_96_bits_and_is_shown_in_the_repr(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Each client has a random id of 96 bits, which `status` shows."""
    assert client.id != other.id
    assert len(client.id) == 16
    assert client.id in repr(client)
    async with client.lock("a"):
        waiting = asking(other.lock("a"))
        await queued(client.lock("a"), 1)
        status = await other.lock("a").status()
        assert [holder.client for holder in status.holders] == [client.id]
        assert [waiter.client for waiter in status.waiters] == [other.id]
    await (await waiting).release()


async def _check_prefixes(connect: Callable[[str], aiolock.LockClient]) -> None:
    """Check that a client sees the locks of its own prefix, and those of another one not."""
    async with (
        connect("one") as one,
        connect("two") as two,
        connect("one") as same,
        one.lock("a") as lease,
    ):
        assert await same.lock("a").locked()
        assert not await two.lock("a").locked()
        async with two.lock("a", timeout=0):
            assert not await two.break_("a", fence=lease.fence + 1)
        assert await lease.verify()


async def test_prefixes_that_differ_keep_locks_in_memory_apart(world: World, prefix: str) -> None:
    """Clients of different prefixes on one server have nothing to do with each other."""
    if world.kind == "memory":  # a `MemoryServer` is a namespace of its own, whatever the prefix
        await _check_prefixes(lambda name: aiolock.connect(f"memory://{prefix}", prefix=name))
    else:
        await _check_prefixes(lambda name: world.client(prefix=f"{prefix}-{name}"))


@pytest.mark.parametrize("url", ["memory://", "memory://name"])
async def test_memory_urls_with_different_prefixes_share_no_locks(url: str) -> None:
    """The same in this process, with a name in the URL and without."""
    await _check_prefixes(lambda name: aiolock.connect(url, prefix=name))


async def test_prefixes_that_differ_keep_locks_and_keys_on_redis_apart(
    redis_server: RedisServer, prefix: str
) -> None:
    """The same on a real server, whose keys all begin with the prefix."""
    async with (
        aiolock.connect(redis_server.url, prefix=f"{prefix}-1") as one,
        aiolock.connect(redis_server.url, prefix=f"{prefix}-2") as two,
        one.lock("a"),
    ):
        assert not await two.lock("a").locked()
        assert redis_server.call("EXISTS", f"{prefix}-1:{{lock:a}}:holders") == 1
    assert redis_server.call("EXISTS", f"{prefix}-1:{{lock:a}}:holders") == 0


async def test_observer_of_a_loss_runs_in_the_context_of_no_task(world: World) -> None:
    """A loss is not told in the context of the task that opened the client or armed a timer."""
    request = ContextVar("request", default="nobody's")
    told, leases = list[str](), list[aiolock.Lease]()

    class Log(aiolock.Observer):
        def lost(self, *_: Any, **facts: Any) -> None:
            told.append(request.get())

    client = world.client(ttl=60, observer=Log())

    async def first() -> None:
        request.set("first")
        await client.open()
        leases.append(await take(client.lock("held", ttl=1, renew=False)))

    async def second() -> None:
        request.set("second")
        leases.append(await take(client.lock("broken")))

    await asyncio.create_task(first())
    try:
        await asyncio.create_task(second())
        async with world.client() as others:
            await others.break_("broken")
        await until(lambda: len(told) == 2)
    finally:
        await client.aclose()
    assert told == ["nobody's", "nobody's"]


async def test_ttl_of_the_client_applies_to_locks_without_their_own(world: World) -> None:
    """Locks that do not say how long their leases last have the client's ttl."""
    async with world.client(ttl=7) as client:
        assert client.lock("a").ttl == 7
        assert client.lock("a", ttl=2).ttl == 2
        before = time.monotonic()
        async with client.lock("a") as lease:
            assert lease.remaining() < 7
            assert lease.remaining() + time.monotonic() > before + 6.9


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
async def test_connect_with_a_redis_client_of_the_caller_leaves_it_open(
    redis_server: RedisServer, prefix: str, options: dict[str, Any]
) -> None:
    """A redis.asyncio.Redis that was passed in is neither used up nor closed."""
    async with redis.asyncio.Redis.from_url(redis_server.url, **options) as driver:
        async with aiolock.connect(driver, prefix=prefix) as client, client.lock("a"):
            assert await driver.ping()
        assert await driver.ping()


async def test_memory_url_is_one_server_per_event_loop_and_name() -> None:
    """`memory://` is one server per event loop and name."""
    async with (
        aiolock.connect("memory://") as one,
        aiolock.connect("memory://") as two,
        aiolock.connect("memory://elsewhere") as three,
        one.lock("a"),
    ):
        assert await two.lock("a").locked()
        assert not await three.lock("a").locked()
        elsewhere = await asyncio.to_thread(lambda: asyncio.run(_is_locked("memory://")))
        assert elsewhere is False


async def _is_locked(url: str) -> bool:
    async with aiolock.connect(url) as client:
        return await client.lock("a").locked()


async def test_memory_server_with_a_given_clock_ends_leases_by_it() -> None:
    """A test that owns a MemoryServer's clock can end a lease for the server."""
    time_now = 1_000_000.0
    server = MemoryServer(clock=lambda: time_now)
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        lease = await ours.lock("a", ttl=30).acquire()
        assert lease is not None
        assert lease.fence == 1_000_000_000_000
        assert await theirs.lock("a").try_acquire() is None
        time_now += 31
        assert await theirs.lock("a").try_acquire() is not None
        await lease.lost
        assert await lease.release() is False


# --- Where it may be used


def test_client_used_in_another_event_loop_raises_client_closed() -> None:
    """A client that was opened in one event loop is ClientClosed in another, and so are leases."""

    async def first() -> tuple[aiolock.LockClient, aiolock.Lease]:
        client = aiolock.connect("memory://")
        await client.open()
        lease = await client.lock("a").acquire()
        assert lease is not None
        return client, lease

    async def second(client: aiolock.LockClient, lease: aiolock.Lease) -> None:
        lock = client.lock("a")
        with pytest.raises(ClientClosed, match="another event loop"):
            _ = lock.acquire()
        with pytest.raises(ClientClosed, match="another event loop"):
            lock.held()
        for call in (lock.status, lock.release, lock.locked, lease.release, lease.verify):
            with pytest.raises(ClientClosed, match="another event loop"):
                await call()
        with pytest.raises(ClientClosed, match="another event loop"):
            await client.aclose()

    with asyncio.Runner() as home, asyncio.Runner() as abroad:
        client, lease = home.run(first())
        abroad.run(second(client, lease))
        home.run(client.aclose())


FORK = """
    import asyncio, os, sys
    import aiolock

    async def child(client, lock, lease):
        said = []
        async def call(what):
            try:
                await what()
            except aiolock.ClientClosed as error:
                said.append("fork" in str(error))
            else:
                said.append(False)
        async def held():
            lock.held()
        for what in (lock.acquire, held, lock.release, lock.status, lock.break_, lease.release,
                     lease.verify, lambda: lease.extend(9), client.aclose):
            await call(lambda: what())
        return said

    async def main(url, prefix):
        async with aiolock.connect(url, prefix=prefix) as client, client.lock("a") as lease:
            pid = os.fork()
            if pid == 0:
                said = ["nothing"]
                try:
                    said = asyncio.run(child(client, client.lock("a"), lease))
                finally:
                    sys.stdout.write(f"{said}\\n")
                    sys.stdout.flush()
                    os._exit(all(said) - 1)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
            assert await lease.verify()
            assert lease.state == "held"
            async with aiolock.connect(url, prefix=prefix) as other:
                assert await other.lock("a").locked()
        print("well")

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_client_used_in_a_fork_raises_client_closed_and_keeps_the_parents(
    kind: str, redis_server: RedisServer, prefix: str
) -> None:
    """In a fork a client is ClientClosed, and nothing that the child does touches the parent's."""
    url = "memory://" if kind == "memory" else redis_server.url
    said = script(FORK, url, prefix)
    assert said == [str([True] * 9), "well"]


MULTIPROCESSING = """
    import asyncio, multiprocessing, sys
    import aiolock

    url, prefix = sys.argv[1:]
    client = aiolock.connect(url, prefix=prefix)

    async def worker():
        async with aiolock.connect(url, prefix=prefix) as own:
            assert await own.lock("a").locked()
            assert await own.lock("b").acquire(timeout=5)
        try:
            client.lock("a").acquire()
        except aiolock.ClientClosed as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError

    def run():
        asyncio.run(worker())

    async def main():
        async with client, client.lock("a"):
            process = multiprocessing.get_context("fork").Process(target=run)
            process.start()
            while process.is_alive():
                await asyncio.sleep(0.005)
            assert process.exitcode == 0
            assert not await client.lock("b").locked()
        print("well")

    asyncio.run(main())
"""


def test_client_opened_in_a_forked_process_works_beside_the_parents(
    redis_server: RedisServer, prefix: str
) -> None:
    """A process that was forked opens a client of its own, which works beside the parent's."""
    assert script(MULTIPROCESSING, redis_server.url, prefix) == ["well"]


def script(source: str, *args: str) -> list[str]:
    """Run a program in a Python of its own; the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *args],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def test_client_without_an_event_loop_can_describe_but_not_acquire() -> None:
    """Outside of any event loop a client can be made and a lock described, not acquired."""
    client = aiolock.connect("memory://")
    lock = client.lock("a")
    with pytest.raises(ClientClosed):
        _ = lock.acquire()
    with pytest.raises(ClientClosed):
        lock.held()


# --- Closing


def is_open(store: MemoryStore) -> bool:
    """Whether the store is connected."""
    return store._client is not None


async def test_aclose_with_waiters_raises_client_closed_and_empties_the_queue(
    world: World, other: aiolock.LockClient
) -> None:
    """Who waits when the client is closed gets ClientClosed; the queue is empty of them."""
    async with other.lock("a"):
        client = world.client()
        await client.open()
        waiting = [asking(client.lock("a")) for _ in range(3)]
        behind = [asking(client.lock("a", timeout=50), timeout=40)]
        await queued(other.lock("a"), 4)
        await client.aclose()
        for task in waiting + behind:
            with pytest.raises(ClientClosed, match="closed while"):
                await task
        await queued(other.lock("a"), 0)


@virtual
async def test_aclose_with_a_waiter_at_any_step_ends_it_and_leaves_nothing() -> None:
    """Whatever stage a waiter is at when the client is closed, it ends, and leaves nothing."""
    ends = set[str]()
    for closed_after in range(14):
        for released_after in range(14):
            server = MemoryServer()
            async with aiolock.connect(server) as theirs:
                held = await theirs.lock("a").acquire()
                assert held is not None
                client = aiolock.connect(server)
                await client.open()
                waiting = asking(client.lock("a"))
                closing = asyncio.create_task(_after(closed_after, client.aclose))
                releasing = asyncio.create_task(_after(released_after, held.release))
                await asyncio.wait([waiting, closing, releasing], timeout=100)
                assert closing.done()
                assert waiting.done()
                closing.result()
                assert releasing.result() is True
                try:
                    lease = waiting.result()
                except ClientClosed:
                    ends.add("closed")
                else:
                    ends.add("granted")
                    assert lease.state != "held"
            assert not server.names()
    assert ends == {"closed", "granted"}


async def _after(turns: int, do: Callable[[], Awaitable[R]]) -> R:
    for _ in range(turns):
        await asyncio.sleep(0)
    return await do()


async def test_aclose_with_leases_releases_them_to_the_next(
    world: World, other: aiolock.LockClient
) -> None:
    """What is held when the client is closed is given back, and goes to the next at once."""
    client = world.client()
    await client.open()
    leases = [await client.lock(name).acquire() for name in "abc"]
    waiting = asking(other.lock("a"))
    await queued(other.lock("a"), 1)
    await client.aclose()
    for lease in leases:
        assert lease is not None
        assert lease.state == "released"
        assert not lease.lost.is_set()
    await (await waiting).release()
    for name in "abc":
        assert not await other.lock(name).locked()


async def test_aclose_with_bodies_of_other_tasks_cancels_and_waits_for_them(
    world: World, other: aiolock.LockClient
) -> None:
    """The bodies in other tasks are cancelled, waited for, and give back what they held."""
    client = world.client()
    await client.open()
    entered, ended = asyncio.Barrier(4), list[str]()

    async def body(name: str) -> None:
        async with client.lock(name):
            await entered.wait()
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(0.02)
                ended.append(name)

    tasks = [asyncio.create_task(body(name)) for name in "abc"]
    await entered.wait()
    await settled()  # they have passed it, and are about to go on
    await client.aclose()
    assert sorted(ended) == ["a", "b", "c"]
    for name, task in zip("abc", tasks, strict=True):
        with pytest.raises(LeaseLost, match="client was closed"):
            await task
        assert not await other.lock(name).locked()


async def test_aclose_within_a_body_releases_its_lock_and_lets_it_go_on(
    world: World, other: aiolock.LockClient
) -> None:
    """A task that closes the client in a body of its own goes on, without the lock."""
    client = world.client()
    await client.open()
    async with client.lock("a") as lease:
        await client.aclose()
        assert lease.state == "released"
        assert not await other.lock("a").locked()
        await asyncio.sleep(0)


@virtual
async def test_aclose_with_a_body_that_does_not_end_waits_until_its_lease_ends() -> None:
    """A body that does not end is waited for until its lease does, and no longer."""
    server = MemoryServer()
    loop = asyncio.get_running_loop()
    client = aiolock.connect(server)
    await client.open()

    async def stubborn() -> None:
        async with client.lock("a", ttl=20, on_lost="signal"):
            await asyncio.sleep(1000)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(3)
    assert server.run(ReadStatus("lock:a")).holders
    begun = loop.time()
    await client.aclose()
    assert 10 < loop.time() - begun < 20
    await task
    await settled()
    assert not server.run(ReadStatus("lock:a")).holders


@virtual
async def test_aclose_that_is_cancelled_is_completed() -> None:
    """A closing that is cancelled is completed all the same; a second one waits for it."""
    server = MemoryServer()
    client = aiolock.connect(store := MemoryStore(server))
    await client.open()

    async def body() -> None:
        async with client.lock("a"):
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(1)

    task = asyncio.create_task(body())
    await settled()
    closing = asyncio.create_task(client.aclose())
    await settled()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert is_open(store)
    await client.aclose()
    assert not is_open(store)
    assert task.done()
    with pytest.raises(LeaseLost):
        task.result()
    assert not server.names()


@virtual
async def test_aclose_by_two_tasks_at_once_returns_to_each_when_closed() -> None:
    """Each of two that close at once returns when it is closed."""
    server = MemoryServer()
    client = aiolock.connect(store := MemoryStore(server))
    await client.open()

    async def body() -> None:
        async with client.lock("a"):
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(5)

    async def close() -> None:
        await client.aclose()
        assert not is_open(store)

    task = asyncio.create_task(body())
    await settled()
    await asyncio.gather(close(), close())
    with pytest.raises(LeaseLost):
        await task


async def test_aclose_in_a_cancelled_anyio_scope_is_completed(
    world: World, other: aiolock.LockClient
) -> None:
    """Under an anyio scope that is cancelled, as at the end of a request, closing is completed."""
    client = world.client()
    with anyio.CancelScope() as scope:
        async with client:
            assert await client.lock("a").acquire() is not None
            scope.cancel()
    assert client._engine.state is State.CLOSED
    assert not await other.lock("a").locked()
    with pytest.raises(ClientClosed):
        await client.lock("a").status()


@virtual
async def test_aclose_of_a_store_that_hangs_ends_within_ten_seconds() -> None:
    """A store that does not answer is not waited for longer than it takes to give up on it."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    loop = asyncio.get_running_loop()
    client = aiolock.connect(faulty)
    await client.open()
    assert await client.lock("a").acquire() is not None
    faulty.hold()
    begun = loop.time()
    await client.aclose()
    assert loop.time() - begun <= 10


async def test_client_body_that_raises_keeps_its_error(world: World) -> None:
    """What is raised under `async with client` comes out as it is."""
    error = ValueError("own")

    async def body() -> None:
        async with world.client() as client, client.lock("a"):
            raise error

    with pytest.raises(ValueError, match="own") as caught:
        await body()
    assert caught.value is error


# --- The decorator


async def test_locked_decorator_takes_the_lock_named_by_the_arguments(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Each call of a decorated function runs under the lock that its arguments name."""

    @client.locked("user:{user_id}:{scope}", timeout=2)
    async def rename(user_id: int, /, name: str, *, scope: str = "all") -> tuple[int, str, str]:
        """Rename a user."""
        assert await other.lock(f"user:{user_id}:{scope}").locked()
        return user_id, name, scope

    assert await rename(42, "ann") == (42, "ann", "all")
    assert await rename(7, name="bob", scope="some") == (7, "bob", "some")
    assert not await other.lock("user:42:all").locked()
    async with other.lock("user:1:all"):
        await rename(2, "cat")
        quick = client.locked("user:{number}:all", timeout=0)

        @quick
        async def look(number: int) -> int:
            return number

        with pytest.raises(AcquireTimeout, match="'user:1:all'"):
            await look(1)
        assert await look(2) == 2


async def test_locked_decorator_lets_calls_of_one_name_run_one_at_a_time(
    client: aiolock.LockClient,
) -> None:
    """Calls that name one lock run one at a time; others run beside them."""
    inside: dict[str, int] = {}
    most: dict[str, int] = {}
    both = asyncio.Barrier(2)

    @client.locked("{name}")
    async def work(name: str) -> None:
        inside[name] = inside.get(name, 0) + 1
        most[name] = max(most.get(name, 0), inside[name])
        await both.wait()
        inside[name] -= 1

    async with asyncio.TaskGroup() as tasks:
        for name in "ababab":
            tasks.create_task(work(name))
    assert most == {"a": 1, "b": 1}


async def test_locked_decorator_keeps_name_docstring_and_signature(
    client: aiolock.LockClient,
) -> None:
    """A decorated function keeps its name, its docstring, its signature and its nature."""

    async def function(order: SimpleNamespace, items: list[int], kind: str = "x") -> int:
        """Do it."""
        return int(order.number) + len(kind) + items[1]

    decorated = client.locked("{order.number}:{items[1]}:{kind!r:>5}")(function)
    assert decorated.__name__ == "function"
    assert decorated.__doc__ == "Do it."
    assert inspect.signature(decorated) == inspect.signature(function)
    assert inspect.iscoroutinefunction(decorated)
    async with client.lock("12:5:  'x'"):
        waiting = asyncio.create_task(decorated(SimpleNamespace(number=12), [4, 5]))
        await queued(client.lock("12:5:  'x'"), 1)
    assert await waiting == 18


async def test_locked_decorator_on_a_method_formats_fields_of_self(
    client: aiolock.LockClient,
) -> None:
    """A method may be decorated, and its object's fields name the lock."""

    class Account:
        def __init__(self, number: int) -> None:
            self.number = number

        @client.locked("account:{self.number}")
        async def close(self, *reasons: str) -> str:
            assert await client.lock(f"account:{self.number}").locked()
            return "".join(reasons)

    assert await Account(4).close("a", "b") == "ab"


async def test_locked_decorator_without_fields_is_one_lock_for_all_calls(
    client: aiolock.LockClient,
) -> None:
    """A name without fields is one lock for all calls; braces are doubled as in any format."""

    @client.locked("nightly {{x}}")
    async def nightly() -> bool:
        return await client.lock("nightly {x}").locked()

    assert await nightly()


async def test_locked_decorator_call_whose_lock_is_lost_raises_lease_lost(
    client: aiolock.LockClient,
) -> None:
    """As in a body, a loss ends the call."""

    @client.locked("a", ttl=5)
    async def work() -> None:
        await client.lock("a").break_()
        await asyncio.sleep(100)

    with pytest.raises(LeaseLost):
        await work()


async def test_decorated_function_with_reentrant_calls_itself(client: aiolock.LockClient) -> None:
    """The options are those of a lock: a re-entrant function calls itself."""

    @client.locked("a", reentrant=True)
    async def deep(levels: int) -> int:
        return levels and 1 + await deep(levels - 1)

    assert await deep(3) == 3


def test_locked_decorator_used_wrongly_raises_value_or_type_error() -> None:
    """What cannot be decorated is an error where it is decorated, and says what is wrong."""
    client = aiolock.connect("memory://")

    async def function(user_id: int) -> int:
        return user_id

    async def without() -> None: ...

    for name, match in (
        (
            "user:{user}",
            r"'user:\{user\}' names user, but the parameters of function\(\) are user_id",
        ),
        ("{user.name}", "names user"),
        ("{}", "names"),
        ("{0}", "names 0"),
        ("{user_id:{width}}", "names width"),
    ):
        with pytest.raises(ValueError, match=match):
            client.locked(name)(function)
    with pytest.raises(ValueError, match=r"names user_id.*are none"):
        client.locked("{user_id}")(without)
    for malformed in ("{user_id", "user_id}", "{user_id!x}"):
        with pytest.raises(ValueError, match=r"[{}!]|conversion|format"):
            client.locked(malformed)(function)

    def blocking(user_id: int) -> int:
        return user_id

    for wrong in (blocking, 3, functools.partial(blocking, 1)):
        with pytest.raises(TypeError, match="async function"):
            client.locked("a")(wrong)  # type: ignore[arg-type]  # that is the point

    async def generator(user_id: int) -> AsyncIterator[int]:
        yield user_id

    with pytest.raises(TypeError, match="async function"):
        client.locked("a")(generator)  # type: ignore[arg-type]  # that is the point


async def test_locked_decorator_of_a_client_not_open_raises_when_called(world: World) -> None:
    """A module may decorate its functions with a client that is opened later, or never."""
    client = world.client()

    @client.locked("a")
    async def work() -> int:
        return 1

    with pytest.raises(ClientClosed, match="not open yet"):
        await work()
    async with client:
        assert await work() == 1
    with pytest.raises(ClientClosed, match="was closed"):
        await work()


async def test_locked_decorator_with_an_invalid_formatted_name_raises_value_error(
    client: aiolock.LockClient,
) -> None:
    """A name that the arguments make too long or empty is an error of the call."""

    @client.locked("{name}")
    async def work(name: str) -> str:
        return name

    with pytest.raises(ValueError, match="name"):
        await work("")
    with pytest.raises(ValueError, match="512"):
        await work("x" * 513)
    assert await work("x") == "x"


async def test_lock_without_options_is_checked_once_and_few_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same name gives the same policy; any option, or a name long ago, another."""
    monkeypatch.setattr(_client, "_MOST_POLICIES", 3)
    client = aiolock.connect("memory://")
    first = client.lock("a")._policy
    assert client.lock("a")._policy is first
    assert client.lock("a", timeout=1)._policy is not first
    assert client.lock("a", timeout=1)._policy.timeout == 1
    wrongs: list[dict[str, Any]] = [
        {"renew": 1},
        {"reentrant": 0},
        {"confirm": 1},
        {"priority": False},
    ]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            client.lock("a", **wrong)
    for name in "bcd":
        client.lock(name)
    assert len(client._policies) == 3
    assert client.lock("a")._policy is not first
    assert client.lock("a")._policy == first
