"""A client of several servers hands a lock on among its own waiters, and no server hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import aiolock
from aiolock import LockClient
from aiolock.protocol import WAS_HOLDER
from aiolock.stores._member import UNBOUNDED, OnReply, VoteRequest
from aiolock.stores.quorum._local_waiters import LAZY
from aiolock.stores.quorum._server import QuorumServerStep
from aiolock.testing import Peer
from tests.support.majorities import LONGEST, Majority
from tests.support.quorums import Server, clients, left_behind, servers, store_on
from tests.support.worlds import virtual


async def _crowd(
    client: LockClient, times: int, entered: list[tuple[int, int]], *, tasks: int = 10
) -> None:
    """Tasks that want one lock, again and again."""

    async def enter(number: int) -> None:
        for _ in range(times):
            async with client.lock("a", ttl=30) as lease:
                entered.append((number, lease.fence))
                await asyncio.sleep(0)

    await asyncio.gather(*(enter(number) for number in range(tasks)))


async def _so_many(entered: list[tuple[int, int]], many: int) -> None:
    for _ in range(100_000):
        if len(entered) >= many:
            return
        await asyncio.sleep(0)
    pytest.fail(f"only {len(entered)} have entered")


def _asked(of: Sequence[Server]) -> int:
    return sum(server.asked for server in of)


def _grow(entered: list[tuple[int, int]]) -> bool:
    fences = [fence for _, fence in entered]
    return fences == sorted(set(fences))


@virtual
async def test_local_handoff_in_order_sends_the_servers_few_commands() -> None:
    """In order, under fences that grow; each entry would be two commands to each server."""
    entered = list[tuple[int, int]]()
    async with clients(of := servers(), 1) as (client,):
        await _crowd(client, 5, entered)
        before = _asked(of)
        await _crowd(client, 100, entered)
        assert _asked(of) - before < 1000
        assert len(entered) == 1050
        assert _grow(entered)
        assert [number for number, _ in entered[:50]] == list(range(10)) * 5
        await asyncio.sleep(0.1)
        assert await left_behind(of) == []


@virtual
async def test_waiter_of_another_client_has_its_turn_within_64_local_handoffs() -> None:
    """It stands in line, so those that come after it are behind it, and fences go on."""
    entered = list[tuple[int, int]]()
    async with clients(of := servers(), 2) as (ann, bob):
        crowd = asyncio.create_task(_crowd(ann, 500, entered))
        await _so_many(entered, 500)
        for _ in range(3):
            at = len(entered)
            async with bob.lock("a", ttl=30) as lease:
                assert lease.fence > max(fence for _, fence in entered)
                assert len(entered) - at <= 64
                entered.append((-1, lease.fence))
                many = len(entered)
                await asyncio.sleep(0.2)
                assert len(entered) == many
        await crowd
        assert _grow(entered)
        await asyncio.sleep(0.1)
        assert await left_behind(of) == []


@virtual
async def test_local_waiter_that_waits_for_long_is_queued_at_the_servers() -> None:
    """So others see it, and are behind it."""
    entered = list[tuple[int, int]]()
    async with clients(servers(), 2) as (ann, bob):
        crowd = asyncio.create_task(_crowd(ann, 110, entered, tasks=1))
        stays = asyncio.create_task(_stay(ann, entered, 1))
        await asyncio.sleep(LAZY / 3)
        assert not (await bob.lock("a").status()).waiters
        await asyncio.sleep(2 * LAZY)
        assert len((await bob.lock("a").status()).waiters) == 1
        await asyncio.gather(crowd, stays)


async def _hold(lock: aiolock.Lock, seconds: float = 0.0) -> int:
    async with lock as lease:
        await asyncio.sleep(seconds)
        return lease.fence


async def _enter(client: LockClient, order: list[str], who: str, after: float) -> None:
    await asyncio.sleep(after)
    async with client.lock("a", ttl=30):
        order.append(who)


@virtual
async def test_local_handoff_does_not_overtake_an_earlier_waiter_elsewhere() -> None:
    """An answer about the lines is too old after a body that takes longer."""
    entered, order = list[tuple[int, int]](), list[str]()
    async with clients(servers(), 2) as (ann, bob):
        crowd = asyncio.create_task(_crowd(ann, 101, entered, tasks=1))
        stays = asyncio.create_task(_stay(ann, entered, LAZY / 2))
        await _so_many(entered, 101)
        await asyncio.gather(
            *(crowd, stays),
            _enter(bob, order, "bob", LAZY / 4),
            _enter(ann, order, "ann", LAZY / 3),
        )
        assert order == ["bob", "ann"]


@virtual
async def test_local_waiter_enters_at_once_when_the_holder_is_broken() -> None:
    """So it enters at once, though the lock that it waited for was broken."""
    entered = list[tuple[int, int]]()
    loop = asyncio.get_running_loop()
    async with clients(servers(), 2) as (ann, bob):
        crowd = asyncio.create_task(_crowd(ann, 110, entered, tasks=1))
        stays = asyncio.create_task(_stay(ann, entered, 1000))
        await asyncio.sleep(0.001)
        assert not (await bob.lock("a").status()).waiters, "it waits here"
        began = loop.time()
        assert await bob.lock("a").break_()
        with pytest.raises(aiolock.LeaseLost):
            await stays
        await crowd
        assert loop.time() - began < LAZY / 5


async def _stay(client: LockClient, entered: list[tuple[int, int]], seconds: float) -> None:
    """One of a crowd, that stays inside once the others have handed on for a while."""
    while len(entered) < 100:
        async with client.lock("a", ttl=30):
            await asyncio.sleep(0)
    async with client.lock("a", ttl=30) as lease:
        entered.append((-1, lease.fence))
        await asyncio.sleep(seconds)
        assert lease.state is aiolock.LeaseState.HELD


@virtual
@pytest.mark.parametrize("own", [True, False])
async def test_break_after_a_local_handoff_takes_the_lease_of_the_present_holder(
    *, own: bool
) -> None:
    """Broken by the fence that a client sees: its own, or another."""
    entered = list[tuple[int, int]]()
    async with clients(of := servers(), 2) as (ann, bob):
        crowd = asyncio.create_task(_crowd(ann, 40, entered))
        stays = asyncio.create_task(_stay(ann, entered, 1000))
        await asyncio.sleep(1)
        assert entered[-1][0] == -1
        vote = of[0].quorum_server.states["lock:a"].vote
        (holder,) = (await ann.lock("a").status()).holders
        assert vote is not None
        assert vote.waiter.seq != holder.seq, "it was handed on"
        assert holder.fence == entered[-1][1]
        client = ann if own else bob
        (holder,) = (await client.lock("a").status()).holders
        assert await client.lock("a").break_(holder.fence)
        async with asyncio.timeout(1):
            with pytest.raises(aiolock.LeaseLost):
                await stays
        await crowd
        assert _grow(entered)
        assert await left_behind(of) == []


def _releases_for_good(of: Sequence[Server], client: int) -> list[Callable[[], object]]:
    """What a client sends from now on to release a waiter for good: each may be sent once more."""
    sent = list[Callable[[], object]]()

    def watch(server: Server) -> None:
        member = server._members[client]
        release = member.release

        def releases(
            request: VoteRequest, highest: int, upto: int, *, entered: int, on_reply: OnReply
        ) -> None:
            if upto == UNBOUNDED:
                again = partial(
                    QuorumServerStep.release, waiter=request.waiter, highest=highest, upto=upto
                )
                step = partial(again, entered=entered)
                sent.append(partial(server.quorum_server.step, request.name, step))
            release(request, highest, upto, entered=entered, on_reply=on_reply)

        member.release = releases  # type: ignore[method-assign]

    for server in of:
        watch(server)
    return sent


@virtual
async def test_late_copy_of_a_release_after_a_handoff_takes_no_vote() -> None:
    """Its first acquisition was released for good: a late copy of that takes no vote of it."""
    loop: Any = asyncio.get_running_loop()
    async with clients(of := servers(), 1, ttl=3) as (client,):

        async def blocks() -> None:
            lease = await client.lock("a").acquire()
            await lease.release()  # it is handed on to the next task ...
            loop.advance(3.5)  # ... which finds that too late

        async def stays() -> None:
            async with client.lock("a") as lease:
                inside.set_result(lease)
                await asyncio.sleep(1)
                assert lease.state is aiolock.LeaseState.HELD

        inside = loop.create_future()
        first = await client.lock("a").acquire()
        tasks = [asyncio.create_task(blocks()), asyncio.create_task(stays())]
        await asyncio.sleep(0.2)
        sent = _releases_for_good(of, 0)
        await first.release()
        lease = await inside
        await asyncio.sleep(0.1)
        assert sent
        votes = [server.quorum_server.states["lock:a"].vote for server in of]
        for release in sent:
            release()
        assert [server.quorum_server.states["lock:a"].vote for server in of] == votes != [None] * 3
        (holder,) = (await client.lock("a").status()).holders
        assert (holder.seq, holder.fence) == (lease._hold.waiter.seq, lease.fence)
        await asyncio.gather(*tasks)
        assert await left_behind(of) == []


@virtual
async def test_late_copy_of_a_release_after_a_loss_takes_no_vote() -> None:
    """The client may hear of the grant and of its loss at once, and then asks again."""
    async with Peer(store_on(of := servers())) as ours:
        sent = _releases_for_good(of, 0)
        grant = await ours.take("a")
        for server in of[:2]:
            server.quorum_server.step("a", lambda step: step.take_away(grant.waiter))
        await asyncio.sleep(0.1)
        again = await ours.take("a", grant.waiter)
        assert again.fence > grant.fence
        await asyncio.sleep(0.1)
        assert len(sent) == 3
        for release in sent:
            release()
        assert await ours.holds("a", again)
        assert await ours.release("a", again) == WAS_HOLDER
        assert await left_behind(of) == []


@virtual
async def test_lease_of_a_local_handoff_is_renewed() -> None:
    """The next task has the lock by the first one's votes; other waiters are served after it."""
    entered = list[tuple[int, int]]()
    async with clients(of := servers(), 1) as (client,):
        crowd = asyncio.create_task(_crowd(client, 40, entered))
        await _stay(client, entered, 200)
        await crowd
        assert len(entered) == 401
        assert _grow(entered)
        assert await left_behind(of) == []


@virtual
async def test_lease_of_a_local_handoff_without_a_majority_is_lost() -> None:
    """At the deadline of the votes, as any other."""
    entered = list[tuple[int, int]]()
    async with clients(of := servers(), 1) as (client,):
        crowd = asyncio.create_task(_crowd(client, 40, entered))
        stays = asyncio.create_task(_stay(client, entered, 1000))
        await asyncio.sleep(1)
        for server in of[:2]:
            server.stop()
        with pytest.raises(aiolock.LeaseLost):
            await stays
        for server in of[:2]:
            server.resume()
        await crowd
        assert _grow(entered)


@virtual
async def test_local_waiter_that_is_cancelled_leaves_nothing() -> None:
    """Nothing is left of it anywhere."""
    entered = list[tuple[int, int]]()
    async with clients(of := servers(), 1) as (client,):
        crowd = asyncio.create_task(_crowd(client, 30, entered))
        await _so_many(entered, 100)
        for turns in range(40):
            waiting = asyncio.create_task(_hold(client.lock("a", ttl=30)))
            for _ in range(turns % 8):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        await crowd
        assert _grow(entered)
        await asyncio.sleep(0.1)
        assert await left_behind(of) == []


@virtual
async def test_aclose_during_local_handoffs_ends_waiters_and_leaves_nothing() -> None:
    """Waiters are told, and the holder has lost the lock; nothing is left at any server."""
    entered = list[tuple[int, int]]()
    async with clients(of := servers(), 2) as (ann, bob):
        crowd = asyncio.create_task(_crowd(ann, 1000, entered))
        await _so_many(entered, 300)
        await ann.aclose()
        with pytest.raises((aiolock.ClientClosed, aiolock.LeaseLost)):
            await crowd
        async with bob.lock("a", ttl=30) as lease:
            assert lease.fence > max(fence for _, fence in entered)
        await asyncio.sleep(0.1)
        assert await left_behind(of) == []


@pytest.mark.one_loop
async def test_local_handoffs_on_real_servers_have_rising_fences() -> None:
    """The same by the scripts: fences grow, over two clients that come and go."""
    entered = list[tuple[int, int]]()
    with Majority() as majority:
        majority.vouch("aiolock")
        async with (
            aiolock.connect(majority.urls, longest_ttl=LONGEST) as ann,
            aiolock.connect(majority.urls, longest_ttl=LONGEST) as bob,
        ):
            await asyncio.gather(_crowd(ann, 50, entered))
            for _ in range(3):
                await asyncio.gather(_crowd(ann, 30, entered), _crowd(bob, 5, entered, tasks=2))
            await _crowd(bob, 50, entered)
            assert _grow(entered)
