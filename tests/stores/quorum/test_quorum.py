"""Locks on several servers of which a majority decides: in one process, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio import Redis

import aiolock
import aiolock.sync
from aiolock import LeaseState, LockClient
from aiolock.protocol import CLAIM, WAS_HOLDER, Form, Full, Granted, Queued, Renew, WaiterId, lasts
from aiolock.stores._member import Memory, QuorumConfig
from aiolock.stores.memory import MemoryServer
from aiolock.stores.quorum import _memory
from aiolock.stores.quorum._name_queue import NameQueue
from aiolock.stores.quorum._votes import YieldVote
from aiolock.testing import Peer
from aiolock.testing._peer import Grant
from tests.support.cancel import KINDS, Kind
from tests.support.quorums import (
    Server,
    ask_and_give_up,
    check_left_behind,
    clients,
    left_behind,
    servers,
    store_on,
    with_clocks,
)
from tests.support.virtual import run
from tests.support.worlds import queued, virtual


def later(lock: aiolock.Lock) -> asyncio.Task[aiolock.Lease]:
    """Acquire it in a task of its own."""

    async def acquire() -> aiolock.Lease:
        return await lock.acquire()

    return asyncio.create_task(acquire())


# Targets of connect


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_connect_to_a_list_of_wrong_length_raises_value_error(number: int) -> None:
    """One server needs no quorum, and an even number survives no more than one less."""
    with pytest.raises(ValueError, match=f"3, 5 or 7 servers, not of {number}"):
        aiolock.connect([f"redis://h{n}" for n in range(number)])


def test_connect_to_a_list_with_a_server_twice_raises_value_error() -> None:
    """Also under two spellings of its URL."""
    urls = ["redis://a", "redis://b", "redis://user:secret@a:6379/0"]
    with pytest.raises(ValueError, match="a:6379/0 is in the list twice"):
        aiolock.connect(urls)
    server = MemoryServer()
    with pytest.raises(ValueError, match="twice"):
        aiolock.connect([server, server, MemoryServer()])


def test_connect_to_servers_of_two_kinds_raises_value_error() -> None:
    """A list is of Redis servers, or of memory servers."""
    with pytest.raises(ValueError, match="of one kind, not of Redis and memory"):
        aiolock.connect(["redis://a", "redis://b", "memory://c"])


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///x.db",
        "postgresql://h/db",
        "redis+cluster://h",
        "redis+sentinel://h/service",
        "h:6379",
    ],
)
def test_connect_to_servers_that_cannot_vote_raises_value_error(url: str) -> None:
    """A target of several servers, or of none, does not vote."""
    with pytest.raises(
        ValueError, match="a server of a quorum begins with one of memory://, redis://"
    ):
        aiolock.connect(["redis://a", "redis://b", url])


def test_connect_to_a_quorum_of_fakeredis_raises_type_error() -> None:
    """A fakeredis does not say whether it was restarted: it is refused, with an alternative."""
    fakes = [FakeAsyncRedis() for _ in range(3)]
    for given in (fakes, [Redis(connection_pool=fake.connection_pool) for fake in fakes]):
        with pytest.raises(TypeError, match=r"fakeredis .* has no INFO.* MemoryServer"):
            aiolock.connect(given)


def test_connect_with_wrong_quorum_options_raises_value_or_type_error() -> None:
    """They are for a list, and a list has no replicas."""
    urls = ["redis://a", "redis://b", "redis://c"]
    with pytest.raises(ValueError, match="leave them out for a quorum"):
        aiolock.connect(urls, replicas=1)
    with pytest.raises(ValueError, match="longest_ttl and durable are for a list"):
        aiolock.connect("redis://a", longest_ttl=60)
    with pytest.raises(ValueError, match="longest_ttl and durable are for a list"):
        aiolock.connect("redis://a", durable=True)
    with pytest.raises(ValueError, match="longest_ttl must be from"):
        aiolock.connect(urls, longest_ttl=0)
    with pytest.raises(TypeError, match="durable must be True or False"):
        aiolock.connect(urls, durable="yes")  # type: ignore[arg-type]  # on purpose
    odd: Any = [1, 2, 3]
    with pytest.raises(TypeError, match="not int"):
        aiolock.connect(odd)


def test_connect_without_a_ttl_takes_the_longest_ttl_if_that_is_less() -> None:
    """A ttl that was given is an error if it is too long, also the one that is usual."""
    urls = ["redis://a", "redis://b", "redis://c"]
    assert aiolock.connect(urls, longest_ttl=3).lock("a").ttl == 3
    assert aiolock.connect(urls, longest_ttl=3, ttl=None).lock("a").ttl == 3
    assert aiolock.connect(urls, longest_ttl=40).lock("a").ttl == 30
    for ttl in (4, 30):
        with pytest.raises(ValueError, match=rf"^ttl={ttl} s is more than") as told:
            aiolock.connect(urls, longest_ttl=3, ttl=ttl)
        assert "give connect()" not in str(told.value)
    with pytest.raises(ValueError, match=r"^ttl=4 s is more than"):
        aiolock.sync.connect(urls, longest_ttl=3, ttl=4)
    assert aiolock.sync.connect(urls, longest_ttl=3).lock("a").ttl == 3
    aiolock.connect(urls, longest_ttl=3, ttl=3)


def test_connect_to_a_set_of_servers_raises_type_error() -> None:
    """A set has no order, so it is none; the error says what several servers are given by."""
    odd: Any = {"redis://a", "redis://b", "redis://c"}
    with pytest.raises(TypeError, match="by a list of 3, 5 or 7 URLs, not to a set"):
        aiolock.connect(odd)


def test_ttl_above_longest_ttl_raises_value_error() -> None:
    """For so long a server is silent that may have forgotten, so no lease may be longer."""
    client = aiolock.connect(["redis://a", "redis://b", "redis://c"], longest_ttl=40)
    client.lock("a", ttl=40)
    with pytest.raises(ValueError, match="ttl=41 s is more than the longest_ttl=40 s"):
        client.lock("a", ttl=41)
    with pytest.raises(ValueError, match="ttl=30 s is more than the longest_ttl=20 s"):
        aiolock.connect(["redis://a", "redis://b", "redis://c"], ttl=30, longest_ttl=20)


def test_kinds_that_a_majority_cannot_decide_raise_unsupported() -> None:
    """They are refused when they are described, with the reason."""
    client = aiolock.connect(["redis://a", "redis://b", "redis://c"])
    with pytest.raises(aiolock.Unsupported, match="3 holders of 2 permits"):
        client.semaphore("a", 2)
    with pytest.raises(aiolock.Unsupported, match="does not add up"):
        client.latch("a", 2)
    with pytest.raises(aiolock.Unsupported, match="does not add up"):
        client.barrier("a", 2)
    with pytest.raises(aiolock.Unsupported, match="does not add up"):
        client.event("a")
    with pytest.raises(aiolock.Unsupported, match="the orders of a majority are no order"):
        client.lock("a", share="b")


async def test_connect_to_a_list_or_tuple_of_memory_servers_serves_a_lock() -> None:
    """Memory servers, and URLs of them, as a list or a tuple."""
    for target in (
        [MemoryServer() for _ in range(3)],
        tuple(f"memory://{n}" for n in range(5)),
    ):
        async with aiolock.connect(target) as ours, aiolock.connect(target) as other:
            async with ours.lock("a") as lease:
                assert await other.lock("a").try_acquire() is None
            async with other.lock("a") as second:
                assert second.fence > lease.fence


def test_servers_of_a_client_of_one_server_is_empty() -> None:
    """A store on one server says nothing of servers."""
    assert aiolock.connect("redis://a").servers() == []


# The lock


@virtual
async def test_released_waiters_are_remembered_for_one_second() -> None:
    """So long a vote may be on its way to it; of a client that runs for days not all are kept."""
    store = store_on(servers())
    async with aiolock.connect(store) as client:
        for _ in range(8):
            async with client.lock("a"):
                pass
            await asyncio.sleep(0.4)
        assert store._session is not None
        acquisitions = store._session.acquisitions
        assert len(acquisitions._endings._left) == 3


@virtual
async def test_handoff_across_clients_is_in_order_with_rising_fences() -> None:
    """One holds it at a time, in the order in which they asked, and fences grow."""
    async with clients(of := servers(), 3) as all_of_them:
        order, fences = list[int](), list[int]()

        async def enter(client: LockClient, number: int) -> None:
            async with client.lock("a") as lease:
                order.append(number)
                fences.append(lease.fence)
                await asyncio.sleep(0.1)

        tasks = list[asyncio.Task[None]]()
        for number in range(12):
            tasks.append(asyncio.create_task(enter(all_of_them[number % 3], number)))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert order == list(range(12))
        assert fences == sorted(set(fences))
        assert await left_behind(of) == []


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_lock_under_random_faults_of_a_minority_lets_every_waiter_enter(
    size: int, seed: int
) -> None:
    """Split votes are settled, while servers stop, go and come back: every waiter enters."""

    async def scenario() -> None:
        dice, of = random.Random(seed), servers(size)
        inside, fences = 0, list[int]()

        async def enter(client: LockClient) -> None:
            nonlocal inside
            for _ in range(8):
                await asyncio.sleep(dice.uniform(0, 0.02))
                async with client.lock("a", ttl=5) as lease:
                    inside += 1
                    assert inside == 1
                    fences.append(lease.fence)
                    await asyncio.sleep(dice.uniform(0, 0.05))
                    assert lease.state is not LeaseState.LOST
                    inside -= 1

        async def trouble() -> None:
            for _ in range(6):
                await asyncio.sleep(dice.uniform(0, 0.6))
                those = dice.sample(of, dice.randint(1, size // 2))
                how = dice.choice(["stop", "kill"])
                for server in those:
                    server.stop() if how == "stop" else server.kill()
                await asyncio.sleep(dice.uniform(0, 1.5))
                for server in those:
                    server.resume() if how == "stop" else server.back()

        async with clients(of, 4, ttl=5) as all_of_them:
            troubling = asyncio.create_task(trouble())
            await asyncio.gather(*(enter(client) for client in all_of_them for _ in range(2)))
            await troubling
            assert len(fences) == 64
            assert fences == sorted(set(fences))
            await asyncio.sleep(20)
            assert await left_behind(of) == []

    run(scenario(), seed)


@virtual
async def test_acquire_and_handoff_wait_for_no_answer_of_a_minority() -> None:
    """A server that is stopped or gone delays no client that asks, holds or hands on."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 2) as (ours, other):
        for fail, mend in ((of[0].stop, of[0].resume), (of[1].kill, of[1].back)):
            fail()
            begun = loop.time()
            async with ours.lock("a"):
                waiting = later(other.lock("a"))
                await queued(ours.lock("a"), 1)
            lease = await waiting
            assert loop.time() - begun < 1.0  # two looks at the queue, of which each waits a while
            await lease.release()
            mend()
        assert await left_behind(of) == []


@virtual
async def test_lease_outlives_a_minority_that_is_gone() -> None:
    """It is renewed while a majority answers, and its votes are whole again when all do."""
    async with clients(of := servers(), 1, ttl=4) as (client,):
        lease = await client.lock("a").acquire()
        of[0].kill()
        await asyncio.sleep(20)
        assert lease.state is LeaseState.HELD
        assert lease.remaining() > 1
        of[0].back()
        await asyncio.sleep(4)
        assert [server.votes for server in client.servers()] == [1, 1, 1]
        of[1].kill()
        await asyncio.sleep(20)
        assert lease.state is LeaseState.HELD
        await lease.release()
        of[1].back()
        await asyncio.sleep(5)
        assert await left_behind(of) == []


@virtual
async def test_lease_outlives_an_empty_restart_of_each_server() -> None:
    """One after the other, empty: each votes for the holder again when it votes at all."""
    async with clients(of := servers(), 1, longest_ttl=6, ttl=4) as (client,):
        acquisitions: Any = client._engine.store._session.acquisitions
        seen = acquisitions._tickets.next(0, 0.0) + 10**9  # of another name
        acquisitions._questions._seen = seen
        lease = await client.lock("a").acquire()
        for server in of:
            server.kill()
            server.start(empty=True)
            await asyncio.sleep(10)
            assert [each.votes for each in client.servers()] == [1, 1, 1]
        assert lease.state is LeaseState.HELD
        (holder,) = (await client.lock("a").status()).holders
        assert holder.fence == lease.fence
        await lease.release()


@virtual
async def test_lease_outlives_a_quick_restart_of_each_server() -> None:
    """A vote that was forgotten is given once more as soon as that server votes again."""
    async with clients(of := servers(), 1, ttl=4) as (client,):
        lease = await client.lock("a").acquire()
        for server in of:
            server.kill()
            server.start()  # at once, so the vote is missed before its lease has ended
            await asyncio.sleep(70)
            assert lease.state is LeaseState.HELD
            assert [each.votes for each in client.servers()] == [1, 1, 1]
        await lease.release()


@virtual
async def test_waiter_refused_as_too_many_by_a_minority_is_queued_everywhere() -> None:
    """Whom a server finds one too many, and the others do not, has its place there all the same."""
    async with clients(of := servers(), 2, ttl=4) as (ours, other):
        await ours.lock("a").acquire()
        waiting = later(other.lock("a"))
        await queued(ours.lock("a"), 1)
        lines = [server.quorum_server.states["lock:a"] for server in of]
        lines[0].enqueue((10**18, WaiterId(other.id, 99)), Form(claim=1000))
        limited = later(other.lock("a", max_waiters=2))
        await asyncio.sleep(0.1)
        assert [len(each.queue) for each in lines] == [3, 2, 2]
        waiting.cancel()
        limited.cancel()


@virtual
async def test_waiter_refused_at_one_server_asks_there_again() -> None:
    """A waiter refused at one server asks there again, though another of its client waits."""
    async with clients(of := servers(), 2, ttl=4) as (ours, other):
        await ours.lock("a").acquire()
        tasks = [later(other.lock("a"))]
        await queued(ours.lock("a"), 1)
        of[0].refuses = True
        tasks.append(later(other.lock("a")))
        await asyncio.sleep(0.1)
        of[0].refuses = False
        lines = [server.quorum_server.states["lock:a"].queue for server in of]
        assert [len(line) for line in lines] == [1, 2, 2]
        await asyncio.sleep(1)
        assert [len(line) for line in lines] == [2, 2, 2]
        for task in tasks:
            task.cancel()


@virtual
async def test_handoff_time_is_not_before_the_question_of_its_waiter() -> None:
    """Where a server hears of the release first, it answers the waiter, and the others push."""
    first, _, third = of = servers()
    async with Peer(store_on(of)) as ours, Peer(store_on(of)) as other:
        grant = await ours.take("a")
        third.stop()
        waiter = other.waiter(Form(CLAIM))
        queued = await other.ask("a", waiter)
        assert isinstance(queued, Queued)
        first.stop()
        releasing = ours.release("a", grant)
        third._backlog.reverse()  # they came over two connections
        third.resume()
        handed = await other.handed()
        assert handed.now >= queued.now
        assert 0 < handed.lease <= CLAIM
        first.resume()
        await releasing


@virtual
@pytest.mark.parametrize("fails", [False, True])
async def test_deadline_of_a_push_crossed_by_a_question_is_by_the_earlier_question(
    *, fails: bool
) -> None:
    """The vote may have been given before that question, which tells nothing of its time."""
    time = asyncio.get_running_loop().time
    async with Peer(store_on(of := servers())) as holder, Peer(store_on(of)) as ours:
        await holder.take("a")
        began = time()
        waiter = (await ours.queue("a")).waiter
        await asyncio.sleep(0.1)
        acquisitions: Any = ours.store._session.acquisitions  # type: ignore[attr-defined]
        acquisitions._connections[0].clock_changed()  # it was restarted, with its data
        of[0].refuses, of[0].stopped = fails, not fails
        await asyncio.sleep(1)
        acquisitions.in_turn.ask_for_client(0)
        await asyncio.sleep(1)
        acquisitions.pushes.granted(0, waiter, 10**18, CLAIM, 0)
        vote = acquisitions.table.by_waiter[waiter].vote_set.votes[0]
        assert vote.deadline == pytest.approx(began + lasts(CLAIM), abs=0.05)
        of[0].refuses = False
        of[0].resume()


@virtual
async def test_deadline_of_a_push_crossed_by_a_yield_is_by_the_servers_clock() -> None:
    """What the server has said of its clock tells when it voted, and the giving back does not."""
    time = asyncio.get_running_loop().time
    of = with_clocks(0.0, 0.0, 0.0)
    async with Peer(store_on(of)) as holder, Peer(store_on(of)) as ours:
        await holder.take("a")
        waiter = (await ours.queue("a")).waiter
        await asyncio.sleep(0.1)
        acquisitions: Any = ours.store._session.acquisitions  # type: ignore[attr-defined]
        acquisition, given = acquisitions.table.by_waiter[waiter], time()
        of[0].stop()
        await asyncio.sleep(2)
        acquisitions._questions.yield_vote(acquisition, YieldVote(0, 1))
        await asyncio.sleep(0.5)
        acquisitions.pushes.granted(0, waiter, 10**18, CLAIM, int((1e9 + given) * 1e6))
        vote = acquisition.vote_set.votes[0]
        assert vote.deadline == pytest.approx(given + lasts(CLAIM), abs=0.05)
        of[0].resume()


@virtual
async def test_fence_of_a_waiter_away_while_numbers_were_forgotten_is_higher() -> None:
    """Its fence is above those that were given out meanwhile, though its ticket is below."""
    of = with_clocks(0.0, 0.0, 0.0)
    async with clients(of, 2) as (ours, other):
        held = await other.lock("a").acquire()
        waiting = later(ours.lock("a"))
        await queued(other.lock("a"), 1)
        for server in of:
            server._members[0].breaks()
        await asyncio.sleep(5)
        await held.release()
        async with other.lock("a") as lease:
            fence = lease.fence
        for server in of:
            server.quorum_server.states["lock:a"].last = 0  # ten idle minutes
        for server in of:
            server._members[0].connects()
        assert (await waiting).fence > fence


@virtual
async def test_queue_full_tells_the_highest_count_of_the_servers() -> None:
    """One that has not heard of all of them yet counts fewer."""
    late, *_ = of = servers()
    async with Peer(store_on(of)) as ours, Peer(store_on(of)) as other:
        await ours.take("a")
        await ours.queue("a")
        late.stop()
        await ours.queue("a")
        late._backlog.clear()
        late.resume()
        assert await other.ask("a", max_waiters=1) == Full(2)


@virtual
async def test_lease_without_a_majority_is_lost_at_its_deadline() -> None:
    """Its body is cancelled when a majority of its votes has certainly ended, and not later."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 1, ttl=4) as (client,):
        begun = loop.time()

        async def hold() -> None:
            async with client.lock("a") as lease:
                of[0].stop()
                of[2].stop()
                await asyncio.sleep(3)
                assert lease.state is LeaseState.AT_RISK
                await asyncio.sleep(60)

        with pytest.raises(aiolock.LeaseLost):
            await hold()
        assert loop.time() - begun < 4.5
        for server in of:
            server.resume()
        await asyncio.sleep(5)
        assert await left_behind(of) == []


async def _misses_a_vote(of: list[Server], name: str) -> None:
    """A holder has the votes of two servers, and that of the third is of some time ago."""
    of[2]._members[0].breaks()
    await asyncio.sleep(1.9)
    of[0].quorum_server.states[name].vote = None
    await asyncio.sleep(1)  # it is renewed, and hears of that


@virtual
async def test_deadline_after_a_lost_vote_is_that_of_the_votes_left() -> None:
    """The deadline is that of the votes left, to which another client may have to wait."""
    async with clients(of := servers(), 2, ttl=4) as (ours, other):
        lease = await ours.lock("a").acquire()
        await asyncio.sleep(0.1)
        waiting = later(other.lock("a"))
        await _misses_a_vote(of, "lock:a")
        assert lease.remaining() > 0
        await (await waiting).release()
        assert lease.state is LeaseState.LOST
        of[2]._members[0].connects()


@virtual
async def test_remaining_after_a_blocked_loop_is_by_the_votes_left() -> None:
    """A body that has blocked the event loop sees that its lease has ended."""
    async with clients(of := servers(), 1, ttl=4) as (client,):
        lease = await client.lock("a").acquire()
        await _misses_a_vote(of, "lock:a")
        assert 0 < lease.remaining() < 1.2
        loop: Any = asyncio.get_running_loop()
        loop.advance(1.2)
        assert lease.remaining() == 0
        of[2]._members[0].connects()


@virtual
async def test_renewal_with_a_vote_lost_meanwhile_is_unknown() -> None:
    """It makes no majority with the vote of which the answer comes later."""
    of = servers()
    async with Peer(store_on(of)) as ours:
        grant = await ours.take("a", ours.waiter(Form(CLAIM)))
        await asyncio.sleep(0.1)
        of[2]._members[0].breaks()
        of[1].stop()
        renewing = ours.store.submit(Renew([ours.renewal("a", grant, 90_000)]))
        await asyncio.sleep(0.01)
        of[0].quorum_server.step("a", lambda step: step.take_away(grant.waiter))
        await asyncio.sleep(0.01)
        of[1].resume()
        assert await renewing == [None]
        of[2]._members[0].connects()


@virtual
async def test_release_with_a_vote_that_was_forgotten_is_no_loss() -> None:
    """It has not lost the lock: a server that has forgotten its vote gives it to nobody else."""
    async with clients(of := servers(), 1) as (client,):
        of[2].stop()
        lease = await client.lock("a").acquire()
        of[1].quorum_server.restart(empty=True)
        assert await lease.release()
        of[2].resume()
        await asyncio.sleep(70)
        assert await left_behind(of) == []


@virtual
@pytest.mark.parametrize("refusing", [1, 3])
async def test_release_that_is_refused_is_sent_again(refusing: int) -> None:
    """At a majority, and its caller is told; at a minority, of which nobody hears."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 2) as (ours, other):
        lease = await ours.lock("a").acquire()
        waiting = later(other.lock("a"))
        await asyncio.sleep(0.1)
        began = loop.time()
        for server in of[:refusing]:
            server.refuses = True
        try:
            assert await lease.release()
        except aiolock.StoreError:
            assert refusing == 3
        await asyncio.sleep(0.5)
        for server in of:
            server.refuses = False
        await (await waiting).release()
        await asyncio.sleep(1)
        assert loop.time() - began < 3
        assert await left_behind(of) == []


@virtual
async def test_release_that_is_refused_is_dropped_when_its_lease_has_ended() -> None:
    """The vote ends with its lease, and nothing is kept of a question that was refused."""
    async with clients(of := servers(), 1, ttl=4) as (client,):
        releases = client._engine.store._session.acquisitions._endings._releases
        lease = await client.lock("a").acquire()
        of[0].refuses = True
        assert await lease.release()
        await asyncio.sleep(0.1)
        assert len(releases) == 1
        async with client.lock("b"):
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        assert len(releases) == 1
        await asyncio.sleep(12)
        assert len(releases) == 0
        assert not releases._passes._timers
        of[0].refuses = False


@virtual
async def test_release_that_fails_once_is_repeated_after_a_second_beside_others() -> None:
    """It is sent again after a second, whatever others wait for."""
    async with clients(of := servers(), 1) as (client,):
        releases = client._engine.store._session.acquisitions._endings._releases
        first, second = await client.lock("a").acquire(), await client.lock("b", ttl=4).acquire()
        of[0].refuses = True
        assert await first.release()
        await asyncio.sleep(40)
        assert len(releases) == 1
        assert await second.release()
        await asyncio.sleep(0.1)
        of[0].refuses = False
        assert "lock:b" in of[0].quorum_server.left_behind
        await asyncio.sleep(1)
        assert "lock:b" not in of[0].quorum_server.left_behind
        assert len(releases) == 1


async def _cancelled_in_line(of: list[Server], ours: LockClient) -> None:
    """A waiter that server 0 has let stand in line, and whose later question it has refused."""
    waiting = later(ours.lock("a"))
    await asyncio.sleep(0.1)
    assert [len(server.quorum_server.states["lock:a"].queue) for server in of] == [1, 1, 1]
    of[0].refuses = True
    of[0].members[0].connects()
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0.01)
    of[0].refuses = False
    assert [len(server.quorum_server.states["lock:a"].queue) for server in of] == [1, 0, 0]


@virtual
async def test_release_refused_after_a_refused_question_is_sent_again() -> None:
    """It is sent again: an earlier question was not refused, so its waiter stands in line there."""
    async with clients(of := servers(), 2) as (ours, other), other.lock("a"):
        await _cancelled_in_line(of, ours)
        await asyncio.sleep(1.1)
        assert not of[0].quorum_server.states["lock:a"].queue


@virtual
async def test_vote_for_a_waiter_whose_release_failed_is_given_back_at_once() -> None:
    """It is given back as it comes, and not when the release is sent again."""
    async with clients(of := servers(), 2) as (ours, other):
        async with other.lock("a"):
            await _cancelled_in_line(of, ours)
        await asyncio.sleep(0.1)
        assert await left_behind(of) == []


@virtual
async def test_vote_by_a_question_later_than_its_release_is_given_back() -> None:
    """The vote that follows is given back, also if nothing was released since."""
    async with clients(of := servers(), 2) as (ours, other):
        async with other.lock("a"):
            of[0].members[0].late = 2.0
            waiting = later(ours.lock("a"))
            await asyncio.sleep(0.1)
            of[0].members[0].late = 0.0
            waiting.cancel()
            await asyncio.sleep(2)
            assert len(of[0].quorum_server.states["lock:a"].queue) == 1
        await asyncio.sleep(0.1)
        assert await left_behind(of) == []


@virtual
async def test_release_that_was_refused_is_sent_once_more_by_aclose() -> None:
    """It is sent once more, and no more after that."""
    of = servers()
    for refuses in (True, False):
        of[0].refuses = False
        async with clients(of, 1) as (client,):
            lease = await client.lock("a").acquire()
            await asyncio.sleep(0.1)
            of[0].refuses = True
            assert await lease.release()
            await asyncio.sleep(0.1)
            of[0].refuses = refuses
        assert (await left_behind(of) == []) is not refuses
        await asyncio.sleep(60)


@virtual
async def test_operations_without_a_majority_raise_store_error_and_recover() -> None:
    """A request without a majority fails, names the missing servers, and works again later."""
    async with clients(of := servers(), 2) as (client, other):
        of[0].kill()
        of[2].kill()
        lock = client.lock("a")
        with pytest.raises(aiolock.StoreError, match="2 of 3 servers do not answer: server 0: it"):
            await lock.acquire()
        with pytest.raises(aiolock.StoreError, match="server 2: it was killed"):
            await lock.try_acquire()
        with pytest.raises(aiolock.StoreError, match="2 of 3 servers"):
            await lock.status()
        waiting = later(lock)
        await asyncio.sleep(1)
        of[0].back()
        async with asyncio.timeout(1):
            lease = await waiting
        await lease.release()
        of[2].back()
        async with other.lock("a"):
            pass
        await asyncio.sleep(5)
        assert await left_behind(of) == []


@virtual
@pytest.mark.parametrize("goes", ["kill", "stop"])
async def test_acquire_with_one_vote_one_taken_and_one_away_goes_on_waiting(goes: str) -> None:
    """A majority has answered: whoever waits goes on waiting, and whoever does not is told so."""
    first, _, third = of = servers()
    async with clients(of, 2) as (ours, other):
        lease = await later(ours.lock("a"))
        first.quorum_server.states.clear()
        getattr(third, goes)()
        async with asyncio.timeout(1):
            assert await other.lock("a").try_acquire() is None
        waiting = later(other.lock("a"))
        await asyncio.sleep(20)
        assert not waiting.done()
        with contextlib.suppress(aiolock.LeaseLost):
            await lease.release()
        async with asyncio.timeout(1):
            await (await waiting).release()


@virtual
async def test_vote_that_comes_during_a_renewal_is_renewed() -> None:
    """A server that was renewed may have stopped; with the late vote, a majority confirms."""
    late, _, stops = of = servers()
    async with Peer(store_on(of)) as ours:
        late.stop()
        grant = await ours.take("a")
        stops.stop()
        confirming = ours.store.submit(Renew([ours.renewal("a", grant, CLAIM)]))
        await asyncio.sleep(0.1)
        assert not confirming.done()
        late.resume()
        async with asyncio.timeout(0.1):
            assert await confirming == [True]
        stops.resume()


@virtual
async def test_vote_pushed_to_a_holder_lasts_as_long_as_the_others() -> None:
    """The holder is not due to renew before that claim is over, and is not stuck."""
    late = (of := servers())[2]
    form = Form(CLAIM)
    async with Peer(store_on(of)) as ours, Peer(store_on(of)) as other:
        late.stop()
        grant = await ours.take("a", ours.waiter(form), ticket=1000)
        asking = other.ask("a", other.waiter(form), ticket=2000)
        await asyncio.sleep(0.01)
        late._backlog.reverse()  # the other has come first there
        late.resume()
        await asyncio.sleep(0.1)
        assert isinstance(await asking, Queued)
        votes = [server.quorum_server.states["a"].vote for server in of]
        assert [vote and vote.waiter for vote in votes] == [grant.waiter] * 3
        assert max(vote.end for vote in votes if vote) - min(vote.end for vote in votes if vote) < 9


@virtual
async def test_vote_pushed_before_its_waiter_entered_is_prolonged() -> None:
    """It is prolonged as well, to what the votes last for with which the waiter enters."""
    of = servers()
    async with Peer(store_on(of)) as ours:
        of[0].stop()
        of[1].stop()
        of[2].refuses = True
        waiter = ours.waiter(Form(CLAIM))
        asking = ours.ask("a", waiter)
        acquisitions: Any = ours.store._session.acquisitions  # type: ignore[attr-defined]
        acquisitions.pushes.granted(2, waiter, 10**18, CLAIM, 0)
        member, renewed = of[2]._members[0], list[int]()

        def renew(request: Any, number: int, ttl: int, fence: int, **_: Any) -> None:
            renewed.append(ttl)

        member.renew = renew  # type: ignore[method-assign]
        of[0].resume()
        of[1].resume()
        assert isinstance(await asking, Granted)
        assert len(renewed) == 1
        assert renewed[0] > 50_000
        of[2].refuses = False


@virtual
async def test_vote_pushed_to_a_waiter_is_kept_beyond_its_claim() -> None:
    """Its lease is a claim, and the waiter may not be due to look at anything for a minute."""
    back, *_ = of = servers()
    form = Form(CLAIM)
    async with (
        Peer(store_on(of)) as holder,
        Peer(store_on(of)) as ours,
        Peer(store_on(of)) as other,
    ):
        back.kill()
        await holder.take("a", holder.waiter(form))
        await ours.queue("a", waiter := ours.waiter(form))
        await asyncio.sleep(0.1)
        await other.queue("a", other.waiter(form))
        back.quorum_server.listeners.clear()
        back.down = False
        for member in (back._members[2], back._members[1]):  # the later waiter is there first
            member.connects()
            await asyncio.sleep(0.05)
        vote = back.quorum_server.states["a"].vote
        assert vote is not None
        assert vote.waiter == waiter
        await asyncio.sleep(15)
        assert back.quorum_server.states["a"].vote is vote


@contextlib.asynccontextmanager
async def about_to_enter(
    of: list[Server], happens: Callable[[Server, int], None]
) -> AsyncIterator[tuple[Peer, list[Server]]]:
    """A client with a waiter that has its votes, and the servers where it has to renew one first.

    What ``happens`` to such a server, at the renewal of this number, is before it has that.
    """
    renewed = list[Server]()
    async with Peer(store_on(of)) as holder, Peer(store_on(of)) as ours:
        grant = await holder.take("a")
        await ours.queue("a")
        of[0].quorum_server.states[
            "a"
        ].last += 1  # so the next has to hear of that before somebody enters
        of[2].stop()

        def renews(renew: Callable[..., None], server: Server, *question: Any, **more: Any) -> None:
            renewed.append(server)
            happens(server, len(renewed))
            renew(*question, **more)

        membership = ours.store._session.membership  # type: ignore[attr-defined]
        for connection, server in zip(membership.connections, of, strict=True):
            connection.member.renew = partial(renews, connection.member.renew, server)
        await holder.release("a", grant)
        yield ours, renewed
        for server in of:
            server.refuses = False
            server.resume()


@virtual
async def test_aclose_while_no_server_answers_ends_all_questions() -> None:
    """Whoever was about to enter asks nothing more, and who asked is told."""
    async with about_to_enter(servers(), lambda server, _: server.stop()) as (ours, renewed):
        await asyncio.sleep(0.1)
        asked, asking = len(renewed), ours.ask("b")
        assert asked > 0
        await ours.store.aclose()
        await asyncio.sleep(2)  # what has failed is not tried again later, either
        assert len(renewed) == asked
        with pytest.raises(aiolock.StoreError, match="the client was closed"):
            await asking


@contextlib.asynccontextmanager
async def closing_at_last(ours: Peer, server: int) -> AsyncIterator[None]:
    """While its store closes; that server hears of it a second later than the others."""
    member = ours.store._session.membership.connections[server].member  # type: ignore[attr-defined]
    leave = member.leave

    async def leaves(patience: float) -> None:
        await asyncio.sleep(1)
        await leave(patience)

    member.leave = leaves
    closing = asyncio.create_task(ours.store.aclose())
    await asyncio.sleep(0.1)
    yield
    await closing


@virtual
async def test_lease_lost_during_aclose_leaves_no_timer() -> None:
    """That has no consequences: no timer is left."""
    of = servers()
    looks = list[NameQueue]()
    async with Peer(store_on(of)) as ours:
        grant = await ours.take("a")
        line = ours.store._session.acquisitions.table.queues["a"]  # type: ignore[attr-defined]
        line._due = looks.append
        async with closing_at_last(ours, 0):
            of[0].quorum_server.step("a", lambda step: step.take_away(grant.waiter))
        await asyncio.sleep(60)
        assert looks == []
        assert line._timer is None


@virtual
async def test_vote_that_comes_during_aclose_is_released() -> None:
    """Its waiter has ended, so the vote is released at once."""
    of = servers()
    async with Peer(store_on(of)) as ours, Peer(store_on(of)) as other:
        held = await other.take("a")
        await ours.queue("a")
        async with closing_at_last(ours, 0):
            assert await other.release("a", held) == WAS_HOLDER
            await asyncio.sleep(0.1)
            assert [server.quorum_server.states["a"].vote for server in of] == [None] * 3


@virtual
async def test_aclose_while_the_next_holder_is_undecided_frees_the_lock() -> None:
    """The lock is released, and no waiter of that client gets it."""
    of = servers()
    async with Peer(store_on(of)) as ours, Peer(store_on(of)) as other:
        first = await ours.take("a")
        await ours.queue("a")
        await asyncio.sleep(0.2)
        await ours.release("a", first)
        handed = await ours.handed()
        await ours.queue("a")
        await asyncio.sleep(0.012)
        left = ours.release("a", Grant(handed.waiter, handed.fence))
        assert not left.done()
        await ours.store.aclose()
        with contextlib.suppress(aiolock.StoreError):  # these servers may be left without an answer
            assert await left == WAS_HOLDER
        assert isinstance(await other.ask("a"), Granted)


@virtual
async def test_vote_whose_yield_fails_is_yielded_again_soon() -> None:
    """It is given back after a while, not when its lease ends: the first waiter gets it."""
    of = servers()
    async with Peer(store_on(of)) as first, Peer(store_on(of)) as second:
        of[1].kill()
        of[2].stop()
        await asyncio.sleep(0.05)
        asking = first.ask("a", ticket=1000)
        await asyncio.sleep(0.01)
        _ = second.ask("a", ticket=2000)
        await asyncio.sleep(0.01)
        of[2]._backlog.reverse()  # the second has come first there
        member = second.store._session.membership.connections[2].member  # type: ignore[attr-defined]
        yield_vote, failed = member.yield_vote, list[Any]()

        def fails(*question: Any) -> None:
            of[2].refuses = not failed
            failed.append(question)
            yield_vote(*question)
            of[2].refuses = False

        member.yield_vote = fails
        of[2].resume()
        async with asyncio.timeout(2):
            if not isinstance(await asking, Granted):
                await first.handed()
        assert len(failed) == 2


async def test_renewal_refused_by_a_server_is_repeated_after_a_while() -> None:
    """A vote whose renewal was refused is renewed again after a while."""

    def refuses(server: Server, number: int) -> None:
        server.refuses = number < 100

    async with about_to_enter(servers(), refuses) as (_, renewed):
        await asyncio.sleep(0.8)
        assert 2 <= len(renewed) <= 4


@virtual
@pytest.mark.parametrize(("durable", "not_voting"), [(True, 61_000), (False, 21_000)])
async def test_server_emptied_soon_after_its_start_does_not_vote_for_a_while(
    *, durable: bool, not_voting: int
) -> None:
    """What voted at once is silent from when it was emptied; what was silent, from its start."""
    (server,) = with_clocks(0.0)
    config = QuorumConfig(("a",), 60_000, durable)
    server.quorum_server.config = config
    server.quorum_server.restart(empty=False)
    assert (server.quorum_server.register(config, Memory.UNSAID).left == 0) is durable
    await asyncio.sleep(40)
    server.quorum_server.forget()
    assert server.quorum_server.register(config, Memory.UNSAID).left == not_voting


@virtual
async def test_waiter_that_reaches_a_minority_is_suspended_and_keeps_its_place() -> None:
    """It gives back its vote and leaves the line, and comes back with its ticket."""
    of = servers()
    async with clients(of, 2) as (ours, other):
        held = await later(other.lock("a"))
        waiting = later(ours.lock("a"))
        await queued(other.lock("a"), 1)
        mine = [server._members[0] for server in of]
        for member in mine[1:]:
            member.breaks()
        await asyncio.sleep(1)
        behind = later(other.lock("a"))
        await asyncio.sleep(1)
        assert [len(server.quorum_server.states["lock:a"].queue) for server in of] == [1, 1, 1]
        for member in mine[1:]:
            member.connects()
        await asyncio.sleep(1)
        assert [len(server.quorum_server.states["lock:a"].queue) for server in of] == [2, 2, 2]
        await held.release()
        first = await waiting
        assert not behind.done()
        await first.release()
        await (await behind).release()


@virtual
async def test_holder_that_died_blocks_waiters_only_until_its_lease_ends() -> None:
    """The waiter behind a dead holder enters when its leases have ended at a majority."""
    loop = asyncio.get_running_loop()
    of = servers()
    async with clients(of, 1) as (other,):
        dead = aiolock.connect(store_on(of), ttl=3)
        await dead.open()
        held = await later(dead.lock("a"))
        task = later(dead.lock("a"))
        await queued(other.lock("a"), 1)
        for server in of:
            server._members[1].breaks()
            server._members[1]._joined = False
        begun = loop.time()
        async with other.lock("a"):
            assert 1 < loop.time() - begun < 3.5
        task.cancel()
        await asyncio.wait([task])
        for server in of:
            server._members[1]._joined = True
            server._members[1].connects()
        await dead.aclose()
        assert held.state is not LeaseState.HELD


# Options of locks


@virtual
async def test_min_hold_and_lock_delay_close_the_lock_at_a_majority() -> None:
    """The lock stays closed at a majority, for any client that asks."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 2, ttl=4) as (ours, other):
        begun = loop.time()
        async with ours.lock("a", min_hold=7):
            waiting = later(other.lock("a"))
            await queued(ours.lock("a"), 1)
        assert (await ours.lock("a").status()).closed > 5
        of[0].stop()
        lease = await waiting
        assert 7 <= loop.time() - begun < 7.5
        of[0].resume()
        await lease.release()

        async def lose() -> None:
            async with ours.lock("b", lock_delay=5, ttl=4):
                for server in of[1:]:
                    server.stop()
                await asyncio.sleep(60)

        with pytest.raises(aiolock.LeaseLost):
            await lose()
        lost = loop.time()
        for server in of[1:]:
            server.resume()
        async with other.lock("b"):
            assert loop.time() - lost >= 4


@virtual
async def test_max_waiters_reached_at_a_majority_raises_queue_full() -> None:
    """The lock is full if a majority says so, and then no place is left in any line."""
    async with clients(of := servers(), 2) as (ours, other):
        held = await later(ours.lock("a"))
        waiting = later(other.lock("a"))
        await queued(ours.lock("a"), 1)
        with pytest.raises(aiolock.QueueFull):
            await ours.lock("a", max_waiters=1).acquire()
        assert [len(server.quorum_server.states["lock:a"].queue) for server in of] == [1, 1, 1]
        await held.release()
        await (await waiting).release()
        assert await left_behind(of) == []


@virtual
async def test_priority_orders_waiters_and_takes_nothing_from_the_holder() -> None:
    """A waiter with a higher priority is before all waiters, and takes nothing from a holder."""
    async with clients(servers(), 2) as (ours, other):
        order = list[str]()

        async def enter(client: LockClient, name: str, priority: int) -> None:
            async with client.lock("a", priority=priority):
                order.append(name)

        async with ours.lock("a") as lease:
            tasks = [asyncio.create_task(enter(ours, "later", 5))]
            await queued(ours.lock("a"), 1)
            tasks.append(asyncio.create_task(enter(other, "usual", 0)))
            await queued(ours.lock("a"), 2)
            tasks.append(asyncio.create_task(enter(ours, "urgent", -5)))
            await queued(ours.lock("a"), 3)
            assert lease.state is LeaseState.HELD
        await asyncio.gather(*tasks)
        assert order == ["urgent", "usual", "later"]


@virtual
async def test_quorum_client_serves_reentrant_multilock_break_and_periodic() -> None:
    """Re-entrant, several as one, periodic; extended and verified; broken and asked for."""
    async with clients(of := servers(), 2) as (ours, other):
        lock = ours.lock("a", reentrant=True)
        async with lock as lease, lock:
            assert await lease.verify()
            await lease.extend(50)
            assert lease.remaining() > 40
            assert not lease.requested.is_set()
            assert await other.lock("a").request_release()
            await asyncio.sleep(0.01)
            assert lease.requested.is_set()
        async with other.multilock("a", "b"):
            assert await ours.lock("b").locked()

        async def is_broken() -> None:
            async with ours.lock("c") as lease:
                assert await other.lock("c").break_(lease.fence)
                await asyncio.sleep(60)

        with pytest.raises(aiolock.LeaseLost):
            await is_broken()
        assert not await other.lock("c").break_()
        runs = list[float]()

        async def job() -> None:
            runs.append(asyncio.get_running_loop().time())

        instances = [client.periodic("job", every=60) for client in (ours, other)]
        jobs = [asyncio.create_task(each.run(job)) for each in instances]
        await asyncio.sleep(290)
        for task in jobs:
            task.cancel()
        await asyncio.wait(jobs)
        assert len(runs) in (5, 6)
        assert all(59 < b - a < 61 for a, b in itertools.pairwise(runs[1:]))
        assert [s for s in await ours.snapshot(kind="lock") if s.holders or s.waiters] == []
        closed = await left_behind(of)
        assert set(closed) == {"periodic:job"}
        assert len(closed) >= 2


@virtual
@pytest.mark.parametrize(
    "ahead", [(0.0, 0.01, 0.03), (0.03, 0.0, 0.01), (0.5, 0.0, 0.2), (0.0, 0.0, 9e8)]
)
async def test_periodic_job_by_clocks_that_differ_runs_once_in_a_period(
    ahead: tuple[float, ...],
) -> None:
    """A waiter with a vote of the last period does not run by that vote and one of this period."""
    time = asyncio.get_running_loop().time
    of = with_clocks(*ahead)
    async with clients(of, 3) as all_of_them:
        runs = list[float]()

        async def job() -> None:
            runs.append(time())

        instances = [client.periodic("job", every=60) for client in all_of_them]
        jobs = [asyncio.create_task(each.run(job)) for each in instances]
        for number in range(6):
            missed, away = of[number % 3], of[(number + 1) % 3]
            await asyncio.sleep(47)
            missed.stop()
            await asyncio.sleep(13.5)
            missed.resume()  # it votes for the next, and knows of no run in this period
            await asyncio.sleep(0.5)
            away.stop()
            await asyncio.sleep(230)
            away.resume()
            await asyncio.sleep(9)
        for task in jobs:
            task.cancel()
        await asyncio.wait(jobs)
        median = 1e9 + sorted(ahead)[1]
        periods = [int(run + median) // 60 for run in runs]
        assert len(set(periods)) == len(periods)
        if max(ahead) < 1:  # with one of them away, two have to agree on which period it is
            assert len(runs) == 31
            assert all((run + median) % 60 < 2 for run in runs[1:])


@virtual
@pytest.mark.parametrize(
    ("ahead", "warned"),
    [
        ((0.0, 10.0, 71.0), ["server 2 is 61 s off"]),
        ((0.0, 61.0, 70.0), ["server 0 is -61 s off"]),
        ((-900.0, 0.0, 9e8), ["server 0 is -900 s off", "server 2 is 900000000 s off"]),
        ((0.0, 10.0, 69.0), []),
    ],
)
async def test_clock_of_a_server_far_off_the_median_is_logged(
    ahead: tuple[float, ...], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A log names each whose clock is more than the longest lease off that in the middle."""
    of = with_clocks(*ahead)
    with caplog.at_level(logging.WARNING, "aiolock"):
        async with clients(of, 1, longest_ttl=60) as (client,):
            assert [round(each.clock) for each in client.servers()] == [
                round(seconds - ahead[1]) for seconds in ahead
            ]
            async with client.lock("a"):
                pass  # it does no harm
    assert [text.split("clock of ")[1].split(" that")[0] for text in caplog.messages] == warned


@virtual
async def test_holder_broken_at_one_server_after_another_loses_its_lease() -> None:
    """A broken holder has lost the lock with the second vote: it gets no vote back."""
    async with clients(of := servers(), 2) as (ours, other):
        lost = asyncio.get_running_loop().create_future()

        async def is_broken() -> None:
            async with ours.lock("a"):
                for server in of[:2]:
                    vote = server.quorum_server.states["lock:a"].vote
                    assert vote is not None
                    server._members[1].take_away("lock:a", vote.waiter, lambda *_: None)
                    await asyncio.sleep(1)
                lost.set_result(None)

        with pytest.raises(aiolock.LeaseLost, match="broke it"):
            await is_broken()
        assert not lost.done()
        async with other.lock("a"):
            pass
        assert await left_behind(of) == []


@virtual
async def test_snapshot_of_a_quorum_has_all_names_with_their_labels() -> None:
    """All held and waited-for names, from any server that knows of them, with labels."""
    async with clients(servers(), 2, label="billing") as (ours, other):
        async with ours.lock("a"), other.lock("b"):
            waiting = later(other.lock("a"))
            await queued(ours.lock("a"), 1)
            await asyncio.sleep(3)
            found = {status.name: status for status in await ours.snapshot()}
            assert sorted(found) == ["a", "b"]
            assert found["a"].waiters[0].client == other.id
            assert found["a"].holders[0].label.startswith("billing")
        await (await waiting).release()


# Cancelled anywhere


@pytest.mark.parametrize("fail", ["", "stop", "kill"])
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_lock_of_a_quorum_cancelled_at_any_step_leaves_nothing(kind: Kind, fail: str) -> None:
    """Nothing is left at any server, and at one that does not answer once it does."""
    async with clients(of := servers(), 2, ttl=60) as (ours, other):
        lock, wanted = ours.lock("a"), other.lock("a")

        async def scenario() -> None:
            async with lock:
                await ask_and_give_up(wanted)
            lease = await lock.try_acquire()
            if lease is not None:
                await lease.release()

        await check_left_behind(of, fail, scenario, kind)


@virtual
async def test_names_are_listed_after_idle_states_were_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page of names is that of the states that the servers have now."""
    monkeypatch.setattr(_memory, "_SWEEP_AT", 4)
    async with aiolock.connect(store_on(servers())) as client:
        names = [f"name:{number}" for number in range(10)]
        leases = [await client.lock(name).acquire() for name in names]
        assert [status.name for status in await client.snapshot()] == names
        for lease in leases:
            await lease.release()
