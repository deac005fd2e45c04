"""A server that restarts, hangs, pauses, forgets scripts, is full, loads, or takes rights away."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import BusyLoadingError, RedisError

import aiolock
from aiolock._engine.time_limit import TimedOut
from aiolock.stores.redis import RedisStore, _scripts
from aiolock.stores.redis._deadlines import REPLY_TIMEOUT
from aiolock.stores.redis._errors import ACL_RULE
from tests.support.failures import Locker, Peek, check_nothing_left, take, until, wait_until
from tests.support.servers import RedisServer

HELD, AT_RISK = aiolock.LeaseState.HELD, aiolock.LeaseState.AT_RISK
TTL = 0.6


@pytest.fixture
def server(own_server: RedisServer, prefix: str) -> Iterator[RedisServer]:
    """A server to break, on which the test must leave nothing."""
    yield own_server
    check_nothing_left(own_server, prefix)


@pytest.fixture
async def client(server: RedisServer, prefix: str) -> AsyncIterator[aiolock.LockClient]:
    """A client whose locks last 0.6 s."""
    async with aiolock.connect(server.url, prefix=prefix, ttl=TTL) as client:
        yield client


@pytest.fixture
async def other(server: RedisServer, prefix: str) -> AsyncIterator[aiolock.LockClient]:
    """Another one."""
    async with aiolock.connect(server.url, prefix=prefix, ttl=TTL) as client:
        yield client


Impatient = Callable[[], None]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Impatient:
    """Call it, and a server that does not answer is given up ten times as fast.

    Clients are open by then: on a busy machine, a connection may take a second.
    """
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT", 1.0)

    def call() -> None:
        monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT_TIMEOUT", 0.4)
        monkeypatch.setattr("aiolock.stores.redis._deadlines.REPLY_TIMEOUT", 0.4)
        monkeypatch.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 1.0)
        monkeypatch.setattr("aiolock.stores.redis._deadlines.LOOK", 0.05)
        monkeypatch.setattr("aiolock.stores.redis._wire.CONNECT_TIMEOUT", 0.5)

    return call


async def enter(lock: aiolock.Lock) -> None:
    """Enter a body and leave it."""
    async with lock:
        pass


async def in_turn(waiting: list[asyncio.Task[aiolock.Lease]]) -> list[int]:
    """Let each waiter have the lock and give it back; return their fences."""
    fences: list[int] = []
    for place, waiter in enumerate(waiting, start=1):
        lease = await asyncio.wait_for(waiter, 10)
        assert not any(later.done() for later in waiting[place:])
        fences.append(lease.fence)
        assert await lease.release()
    return fences


# --- Gone and back


@pytest.mark.parametrize("down", ["restarted_at_once", "down_for_longer_than_the_ttl"])
async def test_restart_without_data_loses_leases_and_keeps_the_order_of_waiters(
    server: RedisServer,
    client: aiolock.LockClient,
    other: aiolock.LockClient,
    peek: Peek,
    down: str,
) -> None:
    """Leases are lost, at the next renewal or in time; waiters ask again and keep their order."""
    stale = await take(client.lock("lock", ttl=1.5))
    waiting: list[asyncio.Task[aiolock.Lease]] = []
    for place in range(3):
        waiting.append(asyncio.create_task(take(other.lock("lock", ttl=30))))
        await peek.queued(place + 1)
    if down == "restarted_at_once":
        server.restart()
    else:
        server.kill()
    end = time.monotonic() + stale.remaining()
    await stale.lost
    assert time.monotonic() < end + 10, "long before the others' leases would have ended"
    if down != "restarted_at_once":
        assert time.monotonic() > end - 0.01
        server.start()
    fences = [stale.fence, *await in_turn(waiting)]
    assert fences == sorted(set(fences))


async def test_restart_lets_the_waiters_of_many_clients_enter_one_at_a_time(
    server: RedisServer, prefix: str, peek: Peek
) -> None:
    """After a restart the waiters of several clients all enter, one at a time."""
    clients = [aiolock.connect(server.url, prefix=prefix, ttl=30) for _ in range(4)]
    inside = 0

    async def work(client: aiolock.LockClient, fences: list[int]) -> None:
        nonlocal inside
        async with client.lock("lock") as lease:
            inside += 1
            try:
                assert inside == 1
                fences.append(lease.fence)
                assert await lease.verify()
            finally:
                inside -= 1

    for client in clients:
        await client.open()
    try:
        lease = await take(clients[0].lock("lock", ttl=3))
        fences: list[int] = [lease.fence]
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                for _ in range(3):
                    tasks.create_task(work(client, fences))
            await peek.queued(12)
            server.restart()
        await lease.lost
        assert len(fences) == 13
        assert fences == sorted(set(fences))
    finally:
        for client in clients:
            await client.aclose()


async def test_operations_while_the_server_is_down_raise_store_error_at_timeout(
    impatient: Impatient, server: RedisServer, client: aiolock.LockClient, peek: Peek
) -> None:
    """Whoever asks a server that is gone gets StoreError in the end; closing does not hang."""
    lease = await take(client.lock("lock", ttl=1.5))
    lasting = await take(client.lock("lasting", ttl=30))
    impatient()
    server.kill()
    attempts = (lasting.verify, client.lock("other").acquire, client.lock("lock").status)
    for error in await asyncio.gather(*(use() for use in attempts), return_exceptions=True):
        assert isinstance(error, aiolock.StoreError)
        assert isinstance(error.__cause__, RedisError | OSError)
    await lease.lost
    assert lease.state is aiolock.LeaseState.LOST
    assert not await lease.release()
    await asyncio.wait_for(client.aclose(), 3)
    server.start()
    assert not peek.holders()


# --- Hangs


async def test_lease_while_the_server_hangs_is_at_risk_and_lost_at_its_deadline(
    server: RedisServer, client: aiolock.LockClient, peek: Peek
) -> None:
    """While the server hangs a lease goes from held to at risk, and to lost at its deadline."""
    lease = await take(client.lock("lock", ttl=2))
    server.pause()
    end = time.monotonic() + lease.remaining()
    states = [lease.state]
    async with asyncio.timeout(30):
        while (state := lease.state) is not aiolock.LeaseState.LOST:
            if state is not states[-1]:
                states.append(state)
            await asyncio.sleep(0.01)
    assert states == [HELD, AT_RISK]
    assert end - 0.01 < time.monotonic() < end + 2  # no time limit of the connection's
    assert lease.lost.is_set()
    assert lease.remaining() == 0
    server.resume()
    lease = await take(client.lock("lock"))
    assert lease.state is HELD
    assert await lease.release()
    await until(lambda: not peek.holders())


async def test_exit_while_the_server_hangs_returns_at_the_deadline_and_logs(
    server: RedisServer,
    client: aiolock.LockClient,
    peek: Peek,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Leaving a body waits for the server until the lease's deadline; then the log says so."""
    async with client.lock("lock") as lease:
        server.pause()
        end = time.monotonic() + lease.remaining()
    assert end - 0.01 < time.monotonic() < end + 2  # no time limit of the connection's
    assert "the release of 'lock' was not confirmed" in caplog.text
    server.resume()
    await until(lambda: not peek.holders())


async def test_release_while_the_server_hangs_raises_store_error_at_the_deadline(
    server: RedisServer, client: aiolock.LockClient, peek: Peek
) -> None:
    """A release that is not confirmed raises StoreError at the lease's deadline; it is not lost."""
    lease = await take(client.lock("lock"))
    server.pause()
    end = time.monotonic() + lease.remaining()
    with pytest.raises(aiolock.StoreError):
        await lease.release()
    assert end - 0.01 < time.monotonic() < end + 2  # no time limit of the connection's
    assert lease.state is aiolock.LeaseState.RELEASED
    assert not lease.lost.is_set()
    server.resume()
    await until(lambda: not peek.holders())


async def test_timeout_of_a_waiter_while_the_server_hangs_is_kept(
    server: RedisServer, client: aiolock.LockClient, other: aiolock.LockClient, peek: Peek
) -> None:
    """A waiter's timeout holds while the server hangs, and nothing of it is left on the server."""
    lease = await take(client.lock("lock", ttl=30))
    queued = asyncio.create_task(enter(other.lock("lock", ttl=30, timeout=0.6)))
    await until(
        lambda: other._engine.waiters._queues
    )  # it knows its place, so its time may run out
    server.pause()
    try:
        start = time.monotonic()
        with pytest.raises(aiolock.StoreError, match="nobody knows"):
            await other.lock("lock", ttl=30).acquire(timeout=0.2)
        with pytest.raises(aiolock.AcquireTimeout):
            await queued
        # Else it would be the server's time limit that ends them.
        assert time.monotonic() < start + REPLY_TIMEOUT
    finally:
        server.resume()
    await lease.release()
    await until(lambda: not peek.queue() and not peek.holders())


async def test_aclose_while_the_server_hangs_returns_in_time(
    impatient: Impatient, server: RedisServer, prefix: str, client: aiolock.LockClient, peek: Peek
) -> None:
    """A client can be closed while the server hangs; its lease ends and its waiter is skipped."""
    leaving = aiolock.connect(server.url, prefix=prefix, ttl=1.5)
    await leaving.open()
    await take(leaving.lock("lock"))
    waiter = asyncio.create_task(take(leaving.lock("lock")))
    await peek.queued(1)
    impatient()
    server.pause()
    start = time.monotonic()
    await leaving.aclose()
    assert time.monotonic() < start + 3
    with pytest.raises(aiolock.ClientClosed):
        await waiter
    server.resume()
    lease = await asyncio.wait_for(take(client.lock("lock")), 5)
    await lease.release()


@pytest.mark.long
async def test_waiter_after_a_hang_past_every_time_limit_enters(
    impatient: Impatient,
    client: aiolock.LockClient,
    other: aiolock.LockClient,
    peek: Peek,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a hang in which every command was given up, who waited enters, and nothing is left."""
    first = await take(client.lock("lock", ttl=1.5))
    waiting = asyncio.create_task(take(other.lock("lock", ttl=1.5)))
    await peek.queued(1)
    impatient()
    peek.server.pause()
    with pytest.raises(aiolock.StoreError):
        await other.lock("other").acquire()
    await first.lost
    assert not waiting.done()  # it has no timeout, so it waits on
    monkeypatch.undo()  # patient again: connecting may take a second
    peek.server.resume()
    assert await (await asyncio.wait_for(waiting, 60)).release()
    abandoned = Peek(peek.server, peek.prefix, "other")
    await until(lambda: not peek.queue() and not abandoned.queue() and not abandoned.holders())
    for each in (client, other):
        async with each.lock("lock", ttl=30) as lease:
            assert lease.fence > first.fence


async def test_client_pause_shorter_than_the_ttl_only_delays_operations(
    server: RedisServer, client: aiolock.LockClient, other: aiolock.LockClient, peek: Peek
) -> None:
    """CLIENT PAUSE for less than the ttl delays whoever asks, and takes nothing from anybody."""
    lease = await take(client.lock("lock", ttl=10))
    waiting = asyncio.create_task(take(other.lock("lock", ttl=10)))
    await peek.queued(1)
    start = time.monotonic()
    server.call("CLIENT", "PAUSE", 400, "ALL")
    assert await lease.verify()
    assert time.monotonic() > start + 0.3
    server.call("CLIENT", "PAUSE", 400, "WRITE")
    assert await lease.release()
    lease = await asyncio.wait_for(waiting, 5)
    assert await lease.release()


# --- Scripts flushed


async def test_operations_after_a_script_flush_tell_the_scripts_again(
    server: RedisServer, client: aiolock.LockClient, other: aiolock.LockClient, peek: Peek
) -> None:
    """A server that has forgotten its scripts is told them again, whatever is asked of it."""

    async def flushed() -> None:
        server.call("SCRIPT", "FLUSH", "SYNC")

    await flushed()
    lease = await take(client.lock("lock", ttl=30))
    waiting: list[asyncio.Task[aiolock.Lease]] = []
    for place in range(3):
        await flushed()
        waiting.append(asyncio.create_task(take(other.lock("lock", ttl=30))))
        await peek.queued(place + 1)
    await flushed()
    status = await client.lock("lock").status()
    assert (len(status.holders), len(status.waiters)) == (1, 3)
    await flushed()
    await lease.extend(20)
    await flushed()
    assert await lease.verify()
    await flushed()
    assert await lease.release()
    lease = await asyncio.wait_for(waiting.pop(0), 5)
    await flushed()
    assert await client.lock("lock").break_()
    await asyncio.wait_for(lease.lost.wait(), 5)
    await flushed()
    assert await in_turn(waiting)


async def test_renewals_of_the_watchdog_go_on_after_a_script_flush(
    server: RedisServer, client: aiolock.LockClient
) -> None:
    """The watchdog's renewals outlive a flush."""
    async with client.lock("lock", ttl=3) as lease:
        deadlines = {lease._hold.deadline}
        while len(deadlines) < 3:
            server.call("SCRIPT", "FLUSH", "SYNC")
            await asyncio.sleep(0.06)
            assert lease.state is not aiolock.LeaseState.LOST
            deadlines.add(lease._hold.deadline)
        assert lease.state is HELD
        assert await lease.verify()


@pytest.mark.parametrize("turns", range(12))
async def test_acquire_cancelled_after_a_script_flush_leaves_nothing(
    server: RedisServer, client: aiolock.LockClient, peek: Peek, turns: int
) -> None:
    """Whoever is cancelled while the server is being told a script again leaves nothing behind."""
    server.call("SCRIPT", "FLUSH", "SYNC")
    task = asyncio.create_task(take(client.lock("lock")))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await (await task).release()
    await client.aclose()
    assert peek.holders() == peek.queue() == []


async def test_lock_under_load_with_constant_script_flushes_stays_exclusive(
    server: RedisServer, client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Under load, with a server that forgets all the time, nobody is lost and no two enter."""
    inside = {"lock": 0, "other": 0}
    fences: dict[str, list[int]] = {"lock": [], "other": []}

    async def work(client: aiolock.LockClient, name: str) -> None:
        for _ in range(5):
            async with client.lock(name, ttl=10) as lease:
                inside[name] += 1
                assert inside[name] == 1
                fences[name].append(lease.fence)
                await asyncio.sleep(0)
                inside[name] -= 1

    async def forget() -> None:
        while True:
            server.call("SCRIPT", "FLUSH", "SYNC")
            await asyncio.sleep(0.001)

    forgetting = asyncio.create_task(forget())
    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            for each in (client, other):
                for name in inside:
                    tasks.create_task(work(each, name))
    forgetting.cancel()
    for minted in fences.values():
        assert len(minted) == 100
        assert minted == sorted(set(minted))


async def test_grant_too_late_whose_release_meets_a_script_flush_is_not_entered(
    server: RedisServer,
    prefix: str,
    client: aiolock.LockClient,
    peek: Peek,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A grant that was given back unused lets nobody in, though its release had to be repeated."""
    ttl = 2.5
    # A margin so wide that a lease can be over for us and not yet for the server.
    for module in ("late", "acquisition"):
        monkeypatch.setattr(f"aiolock._engine.{module}.lasts", lambda lease: lease * 0.0004)
    async with Locker(server.url, prefix) as holder:
        await holder.lock(ttl=ttl)
        await holder.entered()
        waiting = asyncio.create_task(take(client.lock("lock", ttl=ttl)))
        await peek.queued(1)
        await holder.send({"do": "unlock", "who": "it"})
        # From here on our loop is blocked, so that the push lies in its socket.
        wait_until(lambda: not peek.queue())
        (late,) = peek.holders()
        # What another client does that locks something else: it is told `acquire` again.
        server.call("SCRIPT", "FLUSH", "SYNC")
        server.call("SCRIPT", "LOAD", _scripts.ACQUIRE.source)
        while time.monotonic() < peek.ends() - 0.5 * ttl:
            pass
        lease = await asyncio.wait_for(waiting, 10)
        await client.lock("lock").status()  # whatever was on its way has arrived
        assert await lease.verify()
        assert not late.endswith(f":{lease.fence}")
        assert await lease.release()


async def test_renewal_after_a_local_handoff_and_a_script_flush_succeeds(
    server: RedisServer, client: aiolock.LockClient, peek: Peek
) -> None:
    """A renewal is carried out behind the report that its holder is one, if that is told again."""
    lock = client.lock("lock", ttl=10)
    for forgets in (False, True):  # the first time, the client tells the server both scripts
        first = await take(lock)
        waiting = asyncio.create_task(extended(lock))
        await peek.queued(1)
        if forgets:
            server.call("SCRIPT", "FLUSH", "SYNC")
            server.call("SCRIPT", "LOAD", _scripts.RENEW.source)  # as another client may
        assert await first.release()
        second = await waiting
        assert second.state is HELD
        assert await second.verify()
        assert await second.release()


async def extended(lock: aiolock.Lock) -> aiolock.Lease:
    """Acquire it, and renew the lease at once."""
    lease = await take(lock)
    await lease.extend(10)
    return lease


# --- Full


async def test_full_server_refuses_new_locks_and_serves_the_held_ones(
    server: RedisServer,
    client: aiolock.LockClient,
    other: aiolock.LockClient,
    peek: Peek,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A full server takes no new lock, and says so; what is held is kept, handed on, given up."""
    first = await take(client.lock("lock", ttl=10))
    second = asyncio.create_task(take(other.lock("lock", ttl=10)))
    await peek.queued(1)
    given_up = asyncio.create_task(take(client.lock("lock", ttl=10)))
    await peek.queued(2)
    timed_out = asyncio.create_task(enter(client.lock("lock", ttl=10, timeout=60)))
    await peek.queued(3)
    server.call("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(aiolock.StoreError, match=r"out of memory.*maxmemory"):
        await client.lock("free").acquire()
    with pytest.raises(aiolock.StoreError, match=r"out of memory.*maxmemory"):
        await other.lock("lock").acquire()
    await first.extend(20)
    assert peek.ends() > time.monotonic() + 15
    given_up.cancel()
    await peek.queued(2)
    (last,) = client._engine.waiters.acquisitions["lock:lock"].values()
    last.stop(TimedOut())  # as its timer would, but not before all of the above
    with pytest.raises(aiolock.AcquireTimeout):
        await timed_out
    await peek.queued(1)
    async with aiolock.connect(server.url, prefix=peek.prefix) as late:
        assert "maxmemory" in caplog.text
        assert (await late.lock("lock").status()).holders[0].fence == first.fence
        assert await first.release()
        lease = await asyncio.wait_for(second, 5)
        assert await lease.verify()
        assert await lease.release()
        assert not await late.lock("lock").locked()
        server.call("CONFIG", "SET", "maxmemory", 0)
        async with late.lock("free"):
            pass


async def test_holder_killed_on_a_full_server_is_followed_by_its_waiters(
    server: RedisServer, prefix: str, client: aiolock.LockClient, peek: Peek
) -> None:
    """On a full server, too, the waiters of a killed holder get the lock in turn."""
    async with Locker(server.url, prefix) as holder:
        await holder.lock(ttl=1.5)
        await holder.entered()
        waiting = [asyncio.create_task(take(client.lock("lock", ttl=30))) for _ in range(2)]
        await peek.queued(2)
        server.call("CONFIG", "SET", "maxmemory", 1)
        await holder.killed(peek)
    assert len(await in_turn(waiting)) == 2


# --- Rights taken away


async def test_release_without_the_right_to_publish_lets_waiters_enter_by_asking(
    server: RedisServer, prefix: str, peek: Peek
) -> None:
    """Where PUBLISH is denied at run time, releases go on and a waiter enters when it next asks."""
    rule = ACL_RULE.format(prefix=prefix).split()
    server.call("ACL", "SETUSER", "locks", "on", ">pw", "resetchannels", *rule)
    url = f"redis://locks:pw@127.0.0.1:{server.port}/0"
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(aiolock.connect(url, prefix=prefix, ttl=4))
            for _ in range(3)
        ]
        lease = await take(clients[0].lock("lock"))
        waiting: list[asyncio.Task[aiolock.Lease]] = []
        for place, client in enumerate(clients[1:]):
            waiting.append(asyncio.create_task(take(client.lock("lock"))))
            await peek.queued(place + 1)
        server.call("ACL", "SETUSER", "locks", "-publish")
        # The first waiter asks half a lease later, when a second of its claim is left.
        await asyncio.sleep(2)
        assert await lease.release()
        assert len(await in_turn(waiting)) == 2


async def test_lease_of_a_deleted_user_is_lost_in_time(
    impatient: Impatient, server: RedisServer, prefix: str, peek: Peek
) -> None:
    """Where the user is deleted, a lease is lost in time and whoever asks gets StoreError."""
    rule = ACL_RULE.format(prefix=prefix).split()
    server.call("ACL", "SETUSER", "locks", "on", ">pw", "resetchannels", *rule)
    url = f"redis://locks:pw@127.0.0.1:{server.port}/0"
    async with aiolock.connect(url, prefix=prefix, ttl=TTL) as client:
        lease = await take(client.lock("lock"))
        impatient()
        server.call("ACL", "DELUSER", "locks")
        await asyncio.wait_for(lease.lost.wait(), 5)
        with pytest.raises(aiolock.StoreError, match="password"):
            await client.lock("lock").acquire()
        server.call("ACL", "SETUSER", "locks", "on", ">pw", "resetchannels", *rule)
        async with client.lock("lock") as again:
            assert again.fence > lease.fence


# --- Not the master


async def test_release_at_a_server_read_only_for_a_while_succeeds_after_it(
    server: RedisServer, client: aiolock.LockClient, other: aiolock.LockClient, peek: Peek
) -> None:
    """A server that is read-only for a while serves again, all on its own, once it is not."""
    lease = await take(client.lock("lock", ttl=5))
    waiting = asyncio.create_task(take(other.lock("lock", ttl=5)))
    await peek.queued(1)
    server.call("REPLICAOF", "127.0.0.1", 1)
    releasing = asyncio.create_task(lease.release())
    await until(lambda: int(server.call("INFO", "stats")["total_connections_received"]) > 8)
    assert not releasing.done()
    assert not waiting.done()
    server.call("REPLICAOF", "NO", "ONE")
    assert await releasing
    lease = await asyncio.wait_for(waiting, 5)
    assert await lease.release()


async def test_writes_with_too_few_replicas_for_a_while_succeed_after_it(
    server: RedisServer, client: aiolock.LockClient, other: aiolock.LockClient, peek: Peek
) -> None:
    """A server that takes no writes, for want of a replica, is waited for by all who can wait."""
    lease = await take(client.lock("lock", ttl=5))
    waiting = asyncio.create_task(take(other.lock("lock", ttl=5)))
    await peek.queued(1)
    server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    releasing = asyncio.create_task(lease.release())
    asking = asyncio.create_task(take(client.lock("another")))
    await until(lambda: int(server.call("INFO", "stats")["total_connections_received"]) > 8)
    assert not any(task.done() for task in (releasing, waiting, asking))
    server.call("CONFIG", "SET", "min-replicas-to-write", "0")
    assert await releasing
    for waiter in (waiting, asking):
        lease = await asyncio.wait_for(waiter, 5)
        assert await lease.release()


async def test_open_with_too_few_replicas_raises_store_error(
    server: RedisServer, prefix: str
) -> None:
    """Who opens there is told at once, for it may stay so."""
    server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    client = aiolock.connect(server.url, prefix=prefix)
    with pytest.raises(aiolock.StoreError, match=r"too few replicas.*min-replicas-to-write"):
        await client.open()


async def test_acquire_at_a_server_that_cannot_save_raises_store_error(
    prefix: str, tmp_path: Path
) -> None:
    """A server that cannot save, and so takes no writes, is an error that says what to do."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with RedisServer("--dir", str(disk), "--save", "3600 1") as server:
        async with aiolock.connect(server.url, prefix=prefix) as client:
            await (await take(client.lock("lock"))).release()
            disk.rename(tmp_path / "gone")
            (tmp_path / "gone").rmdir()
            server.call("BGSAVE")
            persistence = "persistence"
            await until(lambda: server.call("INFO", persistence)["rdb_last_bgsave_status"] == "err")
            with pytest.raises(aiolock.StoreError, match=r"stop-writes-on-bgsave-error") as caught:
                await client.lock("lock").acquire()
            assert caught.value.refused
            assert not (await client.lock("lock").status()).holders  # which writes nothing
            server.call("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
            async with client.lock("lock"):
                pass


async def test_heartbeat_that_is_refused_keeps_the_subscription(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that refuses it pushes nothing: that is no reason to give up the subscription."""
    rule = ACL_RULE.format(prefix=prefix).split()
    server.call("ACL", "SETUSER", "locks", "on", ">pw", "resetchannels", *rule)
    url = f"redis://locks:pw@127.0.0.1:{server.port}/0"
    async with aiolock.connect(url, prefix=prefix) as client:
        store = client._engine.store
        assert isinstance(store, RedisStore)
        assert store.session.health._timer is not None
        beaten, answers = store.session.health._beaten, list[object]()

        def heard(since: float | None, answer: asyncio.Future[Any]) -> None:
            beaten(since, answer)
            answers.append(answer)

        monkeypatch.setattr(store.session.health, "_beaten", heard)
        for refused in (False, True):
            server.call("ACL", "SETUSER", "locks", "-pexpire" if refused else "+pexpire")
            store.session.health._timer.cancel()
            store.session.pipe.copies.clock_read = -math.inf  # so a heartbeat is due
            store.session.health.beat()
            await until(lambda: answers)
            answers.clear()
            assert store.session.health._hearing is not None
            assert store.session.health._hearing.cancelled() is refused
        server.call("ACL", "SETUSER", "locks", "+pexpire")


async def test_pushes_that_cannot_be_read_are_ignored_and_logged_once(
    server: RedisServer,
    client: aiolock.LockClient,
    other: aiolock.LockClient,
    peek: Peek,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What anybody may publish to a client's channel is ignored, and said once in the log."""
    lease = await take(client.lock("lock", ttl=5))
    waiting = asyncio.create_task(take(other.lock("lock", ttl=5)))
    await peek.queued(1)
    subscriptions = server.call("CLIENT", "LIST", "TYPE", "pubsub").splitlines()
    ids = [line.partition(" ")[0] for line in subscriptions]
    for push in ("", "g", "g a b c d e", "l x y", "r", "hello", "g x 1 2", b"\xff\xfe \x00"):
        assert server.call("PUBLISH", f"{peek.prefix}:push:{other.id}", push) == 1
    await lease.release()
    lease = await asyncio.wait_for(waiting, 5)
    assert await lease.release()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ignores a push" in caplog.text
    subscriptions = server.call("CLIENT", "LIST", "TYPE", "pubsub").splitlines()
    assert [line.partition(" ")[0] for line in subscriptions] == ids


FILL = "for i = 1, 300 do redis.call('SET', 'filler' .. i, ('x'):rep(100000)) end"


class Loading(RedisServer):
    """A server that takes a second to load what it has saved."""

    answered = ""

    def wait_ready(self) -> None:
        """Wait only until it listens."""
        deadline = time.monotonic() + 10
        while not self._answers_ping():
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.002)

    def _answers_ping(self) -> bool:
        try:
            self.answered = str(self.call("PING"))
        except BusyLoadingError as error:
            self.answered = str(error)
        except RedisError:
            return False
        return True


async def test_release_and_acquire_at_a_server_that_is_loading_wait_for_it(prefix: str) -> None:
    """A server that still loads after its restart is waited for, and has the leases again."""
    with Loading("--key-load-delay", "3000", "--rdbcompression", "no") as server:
        peek = Peek(server, prefix)
        async with aiolock.connect(server.url, prefix=prefix) as client:
            server.call("EVAL", FILL, 0)
            lease = await take(client.lock("lock"))
            waiting = asyncio.create_task(take(client.lock("lock")))
            await peek.queued(1)
            server.call("SAVE")
            server.restart()
            assert "loading" in server.answered
            async with asyncio.timeout(10):
                assert await lease.release()
                lease = await waiting
            assert await lease.release()
        check_nothing_left(server, prefix)
