"""What errors say: of which lock they speak, for how long it was waited for, and who holds it."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import aiolock
from aiolock import (
    AcquireTimeout,
    ClientClosed,
    LeaseLost,
    LimitMismatch,
    NotHeld,
    QueueFull,
    StoreError,
    WouldDeadlock,
)
from aiolock._engine.policy import Policy
from aiolock.protocol import LinkChanged
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore, Operation
from tests.support.worlds import World, asking, queued, virtual


async def test_acquire_timeout_names_lock_seconds_and_holder(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the lock, the seconds and the holder, and has them as attributes."""
    monkeypatch.setattr(
        "aiolock._engine.not_acquired._WHO_HOLDS", 10
    )  # however late a busy store says so
    async with world.client() as ours, world.client() as theirs:
        async with theirs.lock("order:42") as held:
            with pytest.raises(AcquireTimeout) as caught:
                await ours.lock("order:42", timeout=0.5).acquire()
        error = caught.value
        assert (error.kind, error.name) == ("lock", "order:42")
        assert error.waited >= 0.498  # a timer of uvloop's counts whole ms
        (holder,) = error.holders
        assert (holder.client, holder.fence) == (theirs.id, held.fence)
        text = str(error)
        who = f"{holder.label!r} in " if holder.label else ""  # put up after a second or two
        assert text.startswith(f"the lock 'order:42' did not become free in 0.5 s: {who}process ")
        assert f"process {os.getpid()} of {socket.gethostname()}" in text
        assert f"(fence {held.fence})" in text
        assert str(pickle.loads(pickle.dumps(error))) == text


@pytest.mark.one_loop
async def test_acquire_timeout_with_several_holders_names_one_and_their_number() -> None:
    """In a sentence that is true of each: since when is said of one of them only."""
    async with aiolock.connect(MemoryServer()) as client:
        for limit, says in (
            (1, ""),
            (2, "; 1 more holds it, too"),
            (4, "; 3 more hold it, too"),
        ):
            semaphore = client.semaphore(f"api {limit}", limit, timeout=0.01)
            leases = [await semaphore.acquire() for _ in range(limit)]
            with pytest.raises(AcquireTimeout) as caught:
                async with semaphore:
                    pass
            assert str(caught.value).endswith(f"(fence {leases[0].fence}){says}")
            for lease in leases:
                assert await lease.release()


async def test_acquire_timeout_without_waiting_names_the_holder(world: World) -> None:
    """Where nobody waits, the answer itself says who holds it: no further round trip."""
    faulty = FaultyStore(world.store())
    async with aiolock.connect(faulty) as ours, world.client() as theirs:
        async with theirs.lock("a") as held:
            with pytest.raises(AcquireTimeout, match="the lock 'a' is not free: process") as caught:
                async with ours.lock("a").acquire(timeout=0):
                    pass
        assert faulty.calls == {"open": 1, "acquire": 1}
        assert caught.value.waited == 0
        assert [holder.fence for holder in caught.value.holders] == [held.fence]


@virtual
async def test_acquire_timeout_asks_for_the_holder_together_with_the_release() -> None:
    """It is asked for together with the release; a store that does not say is not waited for."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with (
        aiolock.connect(faulty) as ours,
        aiolock.connect(server) as theirs,
        theirs.lock("a"),
    ):
        with pytest.raises(AcquireTimeout):
            await ours.lock("a", timeout=5).acquire()
        assert (faulty.calls["release"], faulty.calls["status"]) == (1, 1)
        assert await ours.lock("a").try_acquire(timeout=5) is None
        assert faulty.calls["status"] == 1, "who gets None is not told"
        began = loop.time()
        faulty.hold("read")
        with pytest.raises(AcquireTimeout, match=r"free in 5 s: process") as caught:
            await ours.lock("a", timeout=5).acquire()
        assert len(caught.value.holders) == 1
        assert loop.time() - began <= 5.03, "what the holder is called is not worth waiting for"
        faulty.resume()
        began = loop.time()
        faulty.hold("status")
        with pytest.raises(AcquireTimeout, match=r"free in 5 s$") as caught:
            await ours.lock("a", timeout=5).acquire()
        assert caught.value.holders == ()
        assert loop.time() - began <= 6.1
        faulty.resume()


@virtual
async def test_errors_of_each_kind_carry_its_kind_and_name() -> None:
    """Each error says of which kind and name it speaks, as the user knows it."""
    async with aiolock.connect(MemoryServer()) as ours:
        async with ours.semaphore("s", 1):
            with pytest.raises(AcquireTimeout, match="the semaphore 's'") as timeout:
                await ours.semaphore("s", 1, timeout=1).acquire()
            with pytest.raises(LimitMismatch) as mismatch:
                await ours.semaphore("s", 2).acquire()
            waiting = asking(ours.semaphore("s", 1)._one)
            await queued(ours.semaphore("s", 1), 1)
            with pytest.raises(QueueFull) as full:
                await ours.semaphore("s", 1, max_waiters=1).acquire()
            waiting.cancel()
        with pytest.raises(AcquireTimeout, match="the latch 'l' did not open in 1 s") as latch:
            await ours.latch("l", 1).wait(timeout=1)
        with pytest.raises(AcquireTimeout, match="the barrier 'b' was not complete") as barrier:
            await ours.barrier("b", 2).wait(timeout=1)
        with pytest.raises(AcquireTimeout, match=r"the latch 'l' is not open$"):
            await ours.latch("l", 1).wait(timeout=0)
        with pytest.raises(AcquireTimeout, match=r"the event 'e' is not set$"):
            await ours.event("e").wait(timeout=0)
        together = asyncio.gather(*(ours.barrier("b", 2).wait() for _ in range(2)))
        await together
        with pytest.raises(AcquireTimeout, match=r"the barrier 'b' is not complete$") as alone:
            await ours.barrier("b", 2).wait(timeout=0)
        assert alone.value.holders == ()
        async with ours.lock("a"):
            with pytest.raises(WouldDeadlock) as deadlock:
                await ours.lock("a").acquire()
        with pytest.raises(NotHeld) as not_held:
            await ours.lock("a").release()
        lease = await ours.lock("a").acquire()
        await ours.lock("a").break_()
        with pytest.raises(LeaseLost) as lost:
            await lease.extend(1)
        assert lost.value.fence == lease.fence
        errors: list[aiolock.LockError] = [timeout.value, mismatch.value, full.value]
        for error in errors:
            assert (error.kind, error.name) == ("semaphore", "s")
        assert (latch.value.kind, latch.value.name) == ("latch", "l")
        assert (barrier.value.kind, barrier.value.name) == ("barrier", "b")
        for other in (deadlock.value, not_held.value, lost.value):
            assert (other.kind, other.name) == ("lock", "a")


OPERATIONS: dict[str, Callable[[aiolock.LockClient], Awaitable[object]]] = {
    "acquire": lambda client: client.lock("a").acquire(),
    "status": lambda client: client.lock("a").status(),
    "locked": lambda client: client.lock("a").locked(),
    "break": lambda client: client.lock("a").break_(),
    "break one": lambda client: client.lock("a").break_(1),
    "request": lambda client: client.lock("a").request_release(),
    "resize": lambda client: client.semaphore("a", 1).resize(2),
    "set": lambda client: client.event("a").set(),
    "is set": lambda client: client.event("a").is_set(),
    "count": lambda client: client.latch("a", 1).count_down(),
    "missing": lambda client: client.latch("a", 1).missing(),
    "leader": lambda client: client.election("a").leader(),
}
OF_LEASES: dict[str, Callable[[aiolock.Lease], Awaitable[object]]] = {
    "verify": lambda lease: lease.verify(),
    "extend": lambda lease: lease.extend(3),
    "downgrade": lambda lease: lease.downgrade(),
    "release": lambda lease: lease.release(),
}


@pytest.mark.parametrize("what", [*OPERATIONS, *OF_LEASES])
@virtual
async def test_store_error_of_each_operation_names_kind_and_name(what: str) -> None:
    """Whatever was asked of which the store did not say yes or no, by name and by kind."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    asked: tuple[Operation, ...] = (
        *("acquire", "status", "break_", "request", "resize", "post", "read", "renew", "release"),
        "downgrade",
    )
    kinds = {"resize": "semaphore", "set": "event", "is set": "event", "leader": "election"}
    kinds |= {"count": "latch", "missing": "latch"}
    async with aiolock.connect(faulty, ttl=300) as client:
        lease = await client.rwlock("r").write().acquire()
        for operation in asked:
            faulty.refuse(operation, 1)
        doing = OPERATIONS[what](client) if what in OPERATIONS else OF_LEASES[what](lease)
        with pytest.raises(StoreError) as caught:
            await doing
        faulty.resume()
    error = caught.value
    assert error.kind == kinds.get(what, "lock")
    assert error.name == ("a" if what in OPERATIONS else "r")
    assert str(error).startswith(f"the {error.kind} {error.name!r}: ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@virtual
async def test_with_context_of_one_failure_names_each_lock_in_its_own_error() -> None:
    """What failed was one connection: each of those who are told is told of its own lock."""
    failure = StoreError("the link broke")
    failure.__cause__ = OSError("reset")
    failure.refused = True
    policies = [Policy(name, 3) for name in ("a", "b")]
    errors = [policy.with_context(failure) for policy in policies]
    assert [(error.name, str(error)) for error in errors] == [
        ("a", "the lock 'a': the link broke"),
        ("b", "the lock 'b': the link broke"),
    ]
    assert all(error.refused and error.__cause__ is failure.__cause__ for error in errors)
    assert failure.name == ""


@virtual
async def test_store_error_without_an_answer_names_the_store_and_its_broken_link() -> None:
    """The error says which store that is, and what is wrong with the link to it, where it broke."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        faulty.hold("acquire")
        broken = ConnectionResetError("reset by 10.0.0.7:6379")
        of_the_store = StoreError("reset by 10.0.0.7:6379")
        of_the_store.__cause__, of_the_store.misconfigured = broken, True
        for link in (None, broken, of_the_store, None):
            client._engine.waiters.deliver(LinkChanged(link))
            with pytest.raises(StoreError) as caught:
                await client.lock("a").acquire(timeout=0.3)
            text = str(caught.value)
            assert text.startswith(f"{faulty!r} did not answer within the timeout of 0.3 s")
            assert (str(broken) in text) == (link is not None)
            assert caught.value.__cause__ is (link and broken)
            assert caught.value.misconfigured == (link is of_the_store)
            assert (caught.value.kind, caught.value.name) == ("lock", "a")
        faulty.resume()


@virtual
@pytest.mark.parametrize("how", ["try_acquire", "acquire"])
@pytest.mark.parametrize(("given", "limit"), [({}, 1.0), ({"answer_timeout": 0.2}, 0.2)])
async def test_acquire_without_waiting_or_answer_raises_store_error_at_answer_timeout(
    how: str, given: dict[str, Any], limit: float
) -> None:
    """It is a `StoreError` after the client's answer_timeout, and leaves nothing behind."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    clock = asyncio.get_running_loop().time
    async with aiolock.connect(faulty, **given) as client:
        for lock in (client.lock("a"), client.semaphore("b", 2)):
            faulty.hold("acquire")
            began = clock()
            with pytest.raises(StoreError, match=f"within the answer_timeout of {limit:g} s"):
                await (lock.acquire(timeout=0) if how == "acquire" else lock.try_acquire())
            assert clock() - began == pytest.approx(limit, abs=0.01)
            faulty.resume()
        async with client.lock("a", timeout=1), client.semaphore("b", 2, timeout=1):
            pass


@virtual
async def test_link_that_stays_broken_is_logged_with_its_latest_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once in each outage that lasts; an error names the latest cause as well."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        waiters = client._engine.waiters
        for _ in range(2):
            caplog.clear()
            waiters.deliver(LinkChanged(ConnectionResetError("cut:\n\tby the server.\n")))
            for _ in range(8):
                await asyncio.sleep(1)
                waiters.deliver(LinkChanged(PermissionError("wrong password.")))
            faulty.hold("acquire")
            with pytest.raises(StoreError, match=r"\(the link to it is broken: wrong password\)"):
                await client.lock("a").try_acquire()
            faulty.resume()
            waiters.deliver(LinkChanged(None))
            first, still, _ = [record.getMessage() for record in caplog.records]
            assert "broke: cut: by the server. The client" in first
            assert still == "aiolock: the link to the store is still broken: wrong password"


@virtual
async def test_client_closed_error_of_a_waiter_names_its_lock() -> None:
    """Who waits when its client is closed is told for what it waited."""
    server = MemoryServer()
    async with aiolock.connect(server) as theirs, theirs.lock("a"):
        async with aiolock.connect(server) as ours:
            waiting = asking(ours.lock("a"))
            await queued(theirs.lock("a"), 1)
        with pytest.raises(ClientClosed, match=r"the lock 'a': .* closed") as caught:
            await waiting
        assert (caught.value.kind, caught.value.name) == ("lock", "a")


@virtual
async def test_extend_answered_after_a_release_raises_lease_lost() -> None:
    """To extend a lease that is released meanwhile is LeaseLost, and says so."""
    store = MemoryStore(MemoryServer())
    async with aiolock.connect(store) as client:
        lease = await client.lock("a").acquire()
        answer: asyncio.Future[list[bool | None]] = asyncio.get_running_loop().create_future()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "submit", lambda _: answer)
            extending = asyncio.create_task(lease.extend(5))
            await asyncio.sleep(0)
        await lease.release()
        answer.set_result([False])  # as where it was carried out after the release
        with pytest.raises(LeaseLost, match="was released"):
            await extending


async def test_open_without_an_asyncio_loop_raises_runtime_error() -> None:
    """Where no asyncio loop runs, as under trio, opening says what aiolock needs."""
    opening = aiolock.connect("memory://").open()

    def step() -> None:
        opening.send(None)

    with pytest.raises(RuntimeError, match=r"aiolock runs on asyncio.*trio"):
        await asyncio.to_thread(step)
