"""Detaching a lease: how it ends for the old side, whatever becomes of the command."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

import aiolock
from aiolock import LeaseLost, LeaseToken, NotHeld, StoreError, TokenSpent, Unsupported
from aiolock._engine import detaching
from aiolock.protocol import Break, ReadStatus
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import World, asking, empty, queued, virtual


class Scene(NamedTuple):
    """Two clients of one memory server; the commands of `ours` may be disturbed."""

    server: MemoryServer
    faulty: FaultyStore
    ours: aiolock.LockClient
    theirs: aiolock.LockClient


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """Open both clients, and check at the end that nothing is left."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty, ttl=30) as ours, aiolock.connect(server, ttl=30) as theirs:
        yield Scene(server, faulty, ours, theirs)
    for name in server.names():
        status = server.run(ReadStatus(name))
        assert not status.holders
        assert not status.waiters


async def test_detach_ends_the_lease_and_adopt_holds_the_lock_under_a_higher_fence(
    world: World,
) -> None:
    """From one process to another, on every store; a waiter waits until the second has left."""
    async with world.client() as web, world.client() as worker:
        async with web.lock("order") as lease:
            waiting = asking(worker.lock("order"))
            await queued(web.lock("order"), 1)
            token = await lease.detach()
            assert lease.state == "detached"
            assert lease.remaining() == 0
            assert not lease.lost.is_set()
        text = str(token)
        async with worker.adopt(text) as adopted:
            assert adopted.fence > lease.fence
            assert not waiting.done()
            with pytest.raises(TokenSpent) as spent:
                await web.adopt(text)
            assert (spent.value.fence, spent.value.name) == (lease.fence, "order")
        last = await waiting
        assert last.fence > adopted.fence
        await last.release()


@virtual
async def test_error_of_a_waiter_names_a_detached_lease_by_its_label_and_fence() -> None:
    """There is no client of which it could tell."""
    async with scene() as (_, _, ours, theirs):
        async with ours.lock("a") as lease:
            token = await lease.detach(label="order 42 → worker")
        with pytest.raises(aiolock.AcquireTimeout) as refused:
            await theirs.lock("a", timeout=0.1).acquire()
        held = f"'order 42 → worker' in a detached lease has held it since .*fence {token.fence}"
        assert re.search(held, str(refused.value))
        assert token._key not in str(refused.value)
        assert await theirs.discard(token)


@virtual
async def test_exit_after_a_detach_sends_nothing_and_a_release_by_name_is_not_held() -> None:
    """The body may end, or release, or look: it is not ours any more, and nobody is asked."""
    async with scene() as (_, faulty, ours, theirs):
        lock = ours.lock("a")
        async with lock as lease:
            token = await lease.detach()
            calls = dict(faulty.calls)
            assert not lock.held()
            with pytest.raises(NotHeld):
                await lock.release()
            assert await lease.release()
            assert not await lease.verify()
            with pytest.raises(LeaseLost, match="was detached"):
                await lease.extend(10)
            with pytest.raises(LeaseLost, match="was detached"):
                await lease.detach()
        assert faulty.calls == calls
        assert await theirs.lock("a").locked()
        assert await theirs.discard(token)


@virtual
async def test_detached_lease_is_not_renewed_and_frees_the_lock_at_the_end_of_its_ttl() -> None:
    """If nobody adopts it, the lock is free after the ttl of the detach, not that of the lock."""
    async with scene() as (_, faulty, ours, theirs):
        async with ours.lock("a", ttl=5) as lease:
            began = asyncio.get_running_loop().time()
            token = await lease.detach(ttl=20)
            async with theirs.lock("a"):
                assert 20 <= asyncio.get_running_loop().time() - began < 20.2
            assert not faulty.calls["renew"]
        with pytest.raises(TokenSpent):
            await theirs.adopt(token)
        assert not await theirs.discard(token)


@virtual
async def test_detach_of_a_broken_lease_raises_lease_lost() -> None:
    """The loss that was not heard of yet is heard of by the answer."""
    async with scene() as (server, faulty, ours, theirs):
        lease = await ours.lock("a").acquire()
        faulty.hold("push")
        assert server.run(Break("lock:a", [lease.fence])) == 1
        with pytest.raises(LeaseLost, match="does not know it any more"):
            await lease.detach()
        assert lease.state == "lost"
        assert lease.lost.is_set()
        faulty.resume()
        assert not await theirs.lock("a").locked()


@virtual
@pytest.mark.parametrize("how", ["lose", "refuse"])
async def test_detach_without_an_answer_raises_store_error_and_releases_the_lock(how: str) -> None:
    """Carried out or not: nobody has the token, so the lock must not wait for its end."""
    async with scene() as (_, faulty, ours, theirs):
        async with ours.lock("a") as lease:
            waiting = asking(theirs.lock("a"))
            await queued(theirs.lock("a"), 1)
            getattr(faulty, how)("detach")
            with pytest.raises(StoreError):
                await lease.detach(ttl=3600)
            assert lease.state == "released"
        async with asyncio.timeout(1):
            await (await waiting).release()


@virtual
async def test_detach_cancelled_while_the_store_hangs_releases_the_lock_afterwards() -> None:
    """The command may be carried out much later: then what follows it frees the lock."""
    async with scene() as (_, faulty, ours, theirs):
        lease = await ours.lock("a").acquire()
        faulty.hold("detach", "release", "discard")
        detaching = asyncio.create_task(lease.detach(ttl=3600))
        await asyncio.sleep(1)
        detaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await detaching
        faulty.resume()
        async with theirs.lock("a", timeout=1):
            pass


@virtual
async def test_detach_and_what_frees_it_unanswered_are_repeated_until_they_are() -> None:
    """Detach, release and discard all get lost: the lock is free once one is answered."""
    async with scene() as (_, faulty, ours, theirs):
        lease = await ours.lock("a").acquire()
        faulty.lose("detach")
        faulty.refuse("release", 2)
        faulty.refuse("discard", 2)
        with pytest.raises(StoreError):
            await lease.detach(ttl=3600)
        assert await theirs.lock("a").locked()
        async with theirs.lock("a", timeout=20):
            pass


@virtual
async def test_detach_of_a_lock_entered_twice_is_unsupported_until_one_has_left() -> None:
    """The outer body would go on without the lock."""
    async with scene() as (_, _, ours, theirs):
        lock = ours.lock("a", reentrant=True)
        async with lock as outer:
            async with lock as inner:
                with pytest.raises(Unsupported, match="entered 2 times"):
                    await inner.detach()
                assert inner.state == outer.state == "held"
            assert await theirs.discard(await outer.detach())


@virtual
async def test_detach_of_a_leader_or_a_periodic_run_raises_type_error() -> None:
    """A leader is its client: another client cannot be made the leader."""
    async with scene() as (_, _, ours, _):
        async with ours.election("boss").campaign() as term:
            with pytest.raises(TypeError, match="the election 'boss' cannot be handed on"):
                await term.lease.detach()
            assert term.state == "held"
        async with ours.periodic("job", every=60) as lease:
            with pytest.raises(TypeError, match="the periodic 'job' cannot be handed on"):
                await lease.detach()


@virtual
async def test_detach_of_several_leases_as_one_raises_type_error_and_sends_nothing() -> None:
    """A token is of one name: the leases of a multilock can be handed on one by one."""
    async with scene() as (_, faulty, ours, theirs):
        whole: Any
        for whole in (
            await ours.multilock("a", "b").acquire(),
            await ours.path_lock("a/b").acquire(),
        ):
            sent = faulty.calls.total()
            for detach in (whole.detach, whole.handing_on):
                with pytest.raises(TypeError, match="cannot be handed on as a whole"):
                    detach(ttl=60, label="x")
            assert faulty.calls.total() == sent
            assert whole.state == "held"
            if isinstance(whole, aiolock.PathLease):
                with pytest.raises(TypeError, match="path 'a' cannot be handed on: it is one of"):
                    await whole.leases["a"].detach()
                await whole.release()
                continue
            tokens = [await lease.detach() for lease in whole.leases.values()]
            for token in tokens:
                async with theirs.adopt(token) as lease:
                    assert lease.name == token.name


@virtual
async def test_detach_on_a_quorum_is_unsupported_and_the_lease_is_held_as_before() -> None:
    """The votes of the holder would have to move on a majority in one step."""
    quorum = aiolock.connect([MemoryServer() for _ in range(3)])
    async with quorum as client, client.lock("a") as lease:
        with pytest.raises(Unsupported, match="cannot hand a lease on"):
            await lease.detach()
        assert lease.state == "held"
        assert await lease.verify()


@pytest.mark.parametrize("ttl", [0, -1, "60", None, float("nan")])
@virtual
async def test_detach_with_a_wrong_ttl_or_label_raises_before_anything_is_sent(ttl: object) -> None:
    """And the lease is held as before."""
    async with scene() as (_, faulty, ours, _), ours.lock("a") as lease:
        with pytest.raises((TypeError, ValueError), match="ttl"):
            await lease.detach(ttl=ttl)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(ValueError, match="label"):
            await lease.detach(label="")
        assert not faulty.calls["detach"]
        assert lease.state == "held"


async def test_waiters_of_the_client_are_not_handed_a_detached_lock_and_keep_their_order(
    world: World,
) -> None:
    """They are directly behind, and would be handed it by a release, without the store."""
    order = list[int]()
    async with world.client() as web, world.client() as worker:
        lock = web.lock("order")

        async def take(number: int) -> None:
            async with lock:
                order.append(number)

        async with asyncio.TaskGroup() as group:
            async with lock:
                for number in range(3):
                    group.create_task(take(number))
                    await queued(lock, number + 1)
            # The last of them is handed it by the one before, and hands it on to another client.
            async with lock as lease:
                tasks = [group.create_task(take(number)) for number in range(3, 6)]
                await queued(lock, 3)
                token = await lease.detach()
            async with worker.adopt(token):
                assert order == [0, 1, 2]
                assert not any(task.done() for task in tasks)
        assert order == list(range(6))


async def test_lease_that_was_handed_off_locally_is_detached_after_its_report(world: World) -> None:
    """The store must know that this waiter holds the lock before it can move its grant."""
    async with world.client() as web, world.client() as worker:
        lock = web.lock("order")
        tokens = list[LeaseToken]()

        async def hand_on() -> None:
            async with lock as lease:
                tokens.append(await lease.detach())

        async with asyncio.TaskGroup() as group:
            async with lock:
                for number in range(2):
                    group.create_task(hand_on())
                    await queued(lock, number + 1)
            async with asyncio.timeout(30):
                while len(tokens) < 1:  # noqa: ASYNC110  # no event tells it
                    await asyncio.sleep(0)
            async with worker.adopt(tokens[0]):
                pass
        async with worker.adopt(tokens[1]):
            pass
        await empty(lock)


@virtual
@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
async def test_handing_on_whose_body_raises_releases_the_lock(error: type[BaseException]) -> None:
    """The message was not put into the queue, so nobody will ever adopt it."""
    async with scene() as (_, _, ours, theirs):
        with pytest.raises(error):
            async with ours.lock("a") as lease, lease.handing_on(ttl=3600) as token:
                raise error
        async with theirs.lock("a", timeout=1):
            pass
        with pytest.raises(TokenSpent):
            await theirs.adopt(token)


@virtual
async def test_handing_on_whose_body_raises_after_the_adoption_takes_nothing_back() -> None:
    """The worker was quicker than the error."""
    async with scene() as (_, _, ours, theirs):
        adopted = None
        with pytest.raises(KeyError):  # noqa: PT012  # the body is what is tested
            async with ours.lock("a") as lease, lease.handing_on() as token:
                adopted = await theirs.adopt(token)
                raise KeyError
        assert adopted is not None
        assert await adopted.verify()
        await adopted.release()


@virtual
async def test_handing_on_without_an_error_leaves_the_lock_with_the_token() -> None:
    """The body put the token somewhere."""
    async with scene() as (_, _, ours, theirs):
        async with ours.lock("a") as lease:
            async with lease.handing_on() as token:
                pass
            assert lease.state == "detached"
        async with theirs.adopt(token):
            pass


async def test_status_shows_a_detached_lease_with_its_label_and_without_its_key(
    world: World,
) -> None:
    """Who looks sees that it waits for somebody, and for whom, but cannot take it."""
    async with world.client() as web, world.client() as worker:
        async with web.lock("order") as lease:
            token = await lease.detach(ttl=50, label="order 42, for the worker")
        status = await worker.status("order")
        (party,) = status.holders
        assert (party.detached, party.client, party.host, party.pid) == (True, "", "", 0)
        assert party.label == "order 42, for the worker"
        assert party.fence == lease.fence
        assert 40 < party.remaining <= 50.1
        assert "detached (order 42, for the worker)" in str(status)
        assert token._key not in repr(status) + str(status)
        assert await worker.discard(token)
        await empty(web.lock("order"))


@virtual
async def test_detach_whose_label_cannot_be_sent_releases_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever raises after the command was sent: nobody has the token."""
    async with scene() as (_, _, ours, theirs):
        lease = await ours.lock("a").acquire()

        def fails(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(detaching, "_post_label", fails)
        with pytest.raises(MemoryError):
            await lease.detach(ttl=3600, label="for the worker")
        async with theirs.lock("a", timeout=1):
            pass
