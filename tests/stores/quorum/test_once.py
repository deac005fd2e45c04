"""Work done once on several servers is not done again, in spite of any fault of a minority.

In one process, in virtual time. The safeguards are those of `aiolock.stores.quorum._done_markers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import aiolock
from aiolock import LockClient
from aiolock.protocol import Form, WaiterId
from aiolock.stores._member import VoteRequest
from aiolock.stores.quorum._cast_votes import RESERVED, Vote
from aiolock.stores.quorum._votes import Enter, QueryDone, VoteSet
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.quorums import Server, clients, dies, left_behind, servers
from tests.support.virtual import run
from tests.support.worlds import queued, virtual

DAY = 86_400.0
LONGEST = 10.0
"""Seconds: the longest lease, and so for how long a server is silent that has lost its memory."""


def mark(server: Server) -> Vote | None:
    """The mark that a server has."""
    vote = (
        server.quorum_server.states["once:a"].vote
        if "once:a" in server.quorum_server.states
        else None
    )
    return vote if vote is not None and vote.marks else None


def ends_in(server: Server, vote: Vote) -> float:
    """Milliseconds: their clocks differ, by when they were made."""
    return vote.end - server.memory.now() / 1000


def marked(of: Sequence[Server]) -> list[bool]:
    """Which of them have one."""
    return [mark(server) is not None for server in of]


async def do(client: LockClient, **options: Any) -> bool:
    """Whether it was done now."""
    async with client.once("a", **{"remember": DAY, **options}) as lease:
        return lease is not None


async def is_done(client: LockClient) -> bool:
    """Whether it is done, as far as this client is told within a while."""
    async with asyncio.timeout(60):
        return not await do(client)


async def dies_half_way(of: Sequence[Server], client: LockClient, number: int) -> None:
    """A client does it, and is killed when one server has heard of that."""
    entered = await client.once("a", remember=DAY)._lock.acquire()
    vote = of[0].quorum_server.states["once:a"].vote
    assert vote is not None
    request = VoteRequest("once:a", vote.waiter, vote.form, 0)
    of[0]._members[number].finish(request, entered.fence, int(DAY * 1000), 0, lambda *_: None)
    dies(of, number)
    assert marked(of) == [True, False, False]


@pytest.mark.parametrize("size", [3, 5])
@virtual
async def test_once_on_many_clients_is_done_by_one_and_told_to_all(size: int) -> None:
    """One client does it; the waiters are told at once, and so are later clients."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(size), 3) as all_of_them:
        runs = list[float]()

        async def deliver(client: LockClient) -> bool:
            async with client.once("a", remember=60) as lease:
                if lease is None:
                    return False
                await asyncio.sleep(5)
                runs.append(loop.time())
                return True

        tasks = [deliver(client) for client in all_of_them * 5]
        assert sum(await asyncio.gather(*tasks)) == 1
        assert loop.time() - runs[0] < 0.1
        assert not await deliver(all_of_them[1])
        assert all(marked(of))
        status = await all_of_them[2].once("a", remember=60).status()
        assert 59 < status.closed <= 60
        await asyncio.sleep(60)
        assert await deliver(all_of_them[1])


@virtual
async def test_once_result_is_returned_to_another_client_with_a_server_gone() -> None:
    """The result is kept beside the mark, at each server where either is read."""
    async with clients(of := servers(), 2) as (ours, other):

        async def work(text: str, _: aiolock.Lease) -> str:
            return text

        first = await ours.once("a", remember=DAY).outcome(partial(work, "é 1"))
        assert first == ("é 1", True)
        of[1].kill()
        again = await other.once("a", remember=DAY).outcome(partial(work, "2"))
        assert again == ("é 1", False)


@virtual
async def test_once_whose_work_fails_is_tried_by_the_next_client() -> None:
    """After a failure the next waiter tries; a client that does not wait is told at once."""
    async with clients(of := servers(), 2) as (ours, other):

        async def fails() -> None:
            async with ours.once("a", remember=DAY):
                assert not await do(other, wait=False)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        assert marked(of) == [False] * 3
        assert await do(other)
        assert not await do(ours, wait=False)
        assert not await ours.once("a", remember=DAY).break_()


@virtual
async def test_once_finished_without_a_majority_raises_store_error() -> None:
    """The client that has done it is told so, and it may be done again."""
    async with clients(of := servers(), 2, ttl=5) as (ours, other):

        async def alone() -> None:
            async with ours.once("a", remember=DAY):
                of[1].kill()
                of[2].kill()

        ending = asyncio.create_task(alone())
        await asyncio.sleep(20)
        for server in of[1:]:
            server.back()
        with pytest.raises(aiolock.StoreError, match="nobody knows whether that is remembered"):
            await ending
        await is_done(other)
        assert await is_done(other)


# The members refuse to remember it for a while


def unfinished(client: LockClient) -> int:
    """Of how many finishes the client keeps anything."""
    store: Any = client._engine.store
    return len(store._session.acquisitions.finishes._finishing)


async def refuse(of: Sequence[Server], seconds: float) -> None:
    """They refuse marks for so long."""
    for server in of:
        server.refuses_marks = True
    await asyncio.sleep(seconds)
    for server in of:
        server.refuses_marks = False


@pytest.mark.parametrize("those", [(0, 1, 2), (0, 1), (1, 2)])
@virtual
async def test_done_marker_refused_for_a_moment_is_sent_again(those: Sequence[int]) -> None:
    """The votes stand until then: whoever waits is told that it is done, also at this client."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 2) as (ours, other):
        done = asyncio.Event()

        async def work() -> None:
            async with ours.once("a", remember=60):
                await done.wait()

        working = asyncio.create_task(work())
        await asyncio.sleep(0.1)
        asking = [asyncio.create_task(do(client, remember=60)) for client in (other, ours)]
        await queued(ours.once("a", remember=60), 2)
        refusing = asyncio.create_task(refuse([of[n] for n in those], 1.5))
        await asyncio.sleep(0)
        done.set()
        start = loop.time()
        assert await asyncio.gather(*asking, working) == [False, False, None]
        assert 1.5 < loop.time() - start < 3
        await refusing
        assert all(marked(of))
        assert not unfinished(ours)
        assert not any(server.quorum_server.states["once:a"].queue for server in of)
        await asyncio.sleep(60)
        assert await do(other, remember=60)


@virtual
async def test_done_marker_refused_until_the_lease_ends_raises_store_error() -> None:
    """Then the votes are given back, and the next one does it, also where the lease is longer."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 2, ttl=20) as (ours, other):
        refusing = asyncio.create_task(refuse(of, 25))
        start = loop.time()
        with pytest.raises(aiolock.StoreError, match="nobody knows whether that is remembered"):
            await do(ours)
        assert unfinished(ours) == 1
        async with other.once("a", remember=DAY) as lease:
            assert lease is not None
            assert 19 < loop.time() - start < 20
            assert not unfinished(ours)
            await refusing
        assert all(marked(of))
        assert await is_done(ours)


@virtual
async def test_done_marker_refused_by_a_minority_is_written_back_later() -> None:
    """A majority knows, so the client is told at once, and the vote of the third is given back."""
    async with clients(of := servers(), 2) as (ours, other):
        of[2].refuses_marks = True
        assert await do(ours)
        assert not unfinished(ours)
        await asyncio.sleep(0.01)
        assert marked(of) == [True, True, False]
        assert not of[2].quorum_server.states["once:a"].out
        of[2].refuses_marks = False
        assert await is_done(other)
        await asyncio.sleep(0.01)
        assert all(marked(of))


@virtual
async def test_once_broken_while_its_marker_is_sent_again_raises_store_error() -> None:
    """A server that has voted for somebody else meanwhile refuses the mark: nobody knows."""
    async with clients(of := servers(), 2) as (ours, other):
        refusing = asyncio.create_task(refuse(of, 0.5))
        await asyncio.sleep(0)
        finishing = asyncio.create_task(do(ours))
        await asyncio.sleep(0.1)
        assert await other.once("a", remember=DAY).break_()
        async with other.once("a", remember=DAY) as lease:
            assert lease is not None
            with pytest.raises(aiolock.StoreError, match="nobody knows"):
                await finishing
            assert marked(of) == [False] * 3
        await refusing
        assert all(marked(of))
        assert not unfinished(ours)


@virtual
async def test_aclose_while_a_done_marker_is_sent_again_gives_the_votes_back() -> None:
    """It is told once more; then the votes are given back, and no timer is left."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 1) as (other,):
        async with clients(of, 1) as (ours,):
            refusing = asyncio.create_task(refuse(of, 5))
            await asyncio.sleep(0)
            finishing = asyncio.create_task(do(ours))
            await asyncio.sleep(0.1)
            assert unfinished(ours) == 1
            acquisitions = ours._engine.store._session.acquisitions
        with pytest.raises(aiolock.StoreError, match="nobody knows"):
            await finishing
        assert not acquisitions.finishes._finishing
        start = loop.time()
        async with other.once("a", remember=DAY) as lease:
            assert lease is not None
            assert loop.time() - start < 1
            await refusing
        assert all(marked(of))


# The client that did it died half way


@virtual
async def test_done_marker_at_a_minority_is_written_back_before_it_is_told() -> None:
    """The mark of a minority is written back before any client is told, and then holds."""
    async with clients(of := servers(), 3, ttl=4) as (ours, other, third):
        await dies_half_way(of, ours, 0)
        assert await is_done(other)
        assert sum(marked(of)) >= 2
        of[0].kill()
        assert await is_done(third)


@virtual
async def test_done_marker_at_a_minority_is_told_to_all_earlier_waiters() -> None:
    """A client with waiters from before is told as well: one of them, for all."""
    async with clients(of := servers(), 3, ttl=4) as (ours, other, third):
        lease = await ours.once("a", remember=DAY)._lock.acquire()
        waiting = [asyncio.create_task(is_done(client)) for client in (other, third, other)]
        await queued(ours.once("a", remember=DAY), 3)
        vote = of[2].quorum_server.states["once:a"].vote
        assert vote is not None
        request = VoteRequest("once:a", vote.waiter, vote.form, 0)
        of[2]._members[0].finish(request, lease.fence, int(DAY * 1000), 0, lambda *_: None)
        dies(of, 0)
        assert await asyncio.gather(*waiting) == [True] * 3
        assert sum(marked(of)) >= 2


@virtual
async def test_done_marker_at_a_missing_server_is_replaced_by_a_new_one() -> None:
    """It may be done again; then the new mark is remembered, also at the server of the old one."""
    async with clients(of := servers(), 3, ttl=4) as (ours, other, third):

        async def work(_: aiolock.Lease) -> str:
            return "again"

        await dies_half_way(of, ours, 0)
        of[0].kill()
        await asyncio.sleep(5)
        assert (await other.once("a", remember=DAY).outcome(work)).first
        of[0].back()
        assert await third.once("a", remember=DAY).outcome(work) == ("again", False)
        of[1].kill()
        assert await third.once("a", remember=DAY).outcome(work) == ("again", False)


@virtual
async def test_done_marker_written_back_ends_no_later_than_the_original() -> None:
    """A copy that is written back late ends no later than the mark that was read."""
    async with clients(of := servers(), 2, ttl=4) as (ours, other):
        await dies_half_way(of, ours, 0)
        await asyncio.sleep(5)  # the votes of the dead have ended
        original = mark(of[0])
        assert original is not None
        asked = asyncio.create_task(is_done(other))
        for _ in range(100):
            await asyncio.sleep(0)
            if of[1].quorum_server.states["once:a"].vote is not None:
                of[1].stop()  # it has voted, and is told of the mark later
            if of[0].asked and mark(of[1]):
                break
        await asyncio.sleep(3)
        of[1].resume()
        assert await asked
        await asyncio.sleep(1)
        for server in of:
            copy = mark(server)
            assert copy is not None
            assert ends_in(server, copy) <= ends_in(of[0], original) + 1  # each counts whole ms
        assert all(marked(of))


@virtual
async def test_done_markers_that_end_unevenly_hold_while_a_majority_has_them() -> None:
    """No client does it while a majority remembers; and clients that ask do not keep it alive."""
    loop = asyncio.get_running_loop()
    async with clients(of := servers(), 3) as all_of_them:
        assert await do(all_of_them[0], remember=20)
        for number, server in enumerate(of):
            found = mark(server)
            assert found is not None
            found.end += 500 * number
        begun, ran = loop.time(), 0.0
        await asyncio.sleep(19.8)
        while not ran:
            for client in all_of_them:
                if await do(client, remember=20):
                    ran = loop.time() - begun
            await asyncio.sleep(0.05)
        assert 20 <= ran < 21.1


# Servers that have forgotten


async def forgets(server: Server) -> None:
    """It is restarted empty, and votes again when the longest lease has ended."""
    server.kill()
    server.start(empty=True)
    await asyncio.sleep(LONGEST + 2)


@virtual
async def test_done_marker_forgotten_by_each_server_in_turn_is_written_back() -> None:
    """A client that asks tells them again: so the mark survives that all forget in turn."""
    async with clients(of := servers(), 2, longest_ttl=LONGEST, ttl=5) as (ours, other):
        assert await do(ours)
        for server in of:
            await forgets(server)
            assert await is_done(other)
            await asyncio.sleep(1)
            assert all(marked(of))


@virtual
async def test_done_marker_known_to_one_server_is_asked_for_before_a_new_run() -> None:
    """Two servers have forgotten, and no client has asked: the third is asked before a new run."""
    async with clients(of := servers(), 2, longest_ttl=LONGEST, ttl=5) as (ours, other):
        assert await do(ours)
        await forgets(of[0])
        await forgets(of[1])
        assert marked(of) == [False, False, True]
        of[2].stop()
        asking = asyncio.create_task(is_done(other))
        await asyncio.sleep(4)
        assert not asking.done()
        of[2].resume()
        assert await asking
        await forgets(of[2])
        assert await is_done(other)


@virtual
async def test_once_whose_last_marker_is_out_of_reach_raises_store_error() -> None:
    """The one that was not there and the one that has forgotten do not say that it is not done."""
    async with clients(of := servers(), 2, longest_ttl=LONGEST, ttl=5) as (ours, other):
        of[2].kill()
        assert await do(ours)
        of[2].back()
        of[2].quorum_server.states.pop("once:a", None)
        await forgets(of[0])
        assert marked(of) == [False, True, False]
        of[1].stop()
        with pytest.raises(
            aiolock.StoreError, match="nobody knows whether 'a' is done: 2 of 3 serv"
        ):
            await do(other)
        of[1].resume()
        assert await is_done(other)
        assert sum(marked(of)) >= 2


@virtual
async def test_server_that_forgot_counts_again_after_the_remember_time() -> None:
    """A server counts as any other once everything it may have known is over."""
    async with clients(of := servers(), 1, longest_ttl=LONGEST, ttl=5) as (client,):
        await forgets(of[0])
        of[1].kill()
        with pytest.raises(aiolock.StoreError, match="of which 1 have forgotten"):
            await do(client, remember=60)
        await asyncio.sleep(60)
        assert await do(client, remember=60)


@virtual
async def test_once_forgotten_by_all_servers_is_done_again() -> None:
    """Then it is done again: no server is left that knows."""
    async with clients(of := servers(), 1, longest_ttl=LONGEST, ttl=5) as (client,):
        assert await do(client)
        for server in of:
            await forgets(server)
        assert await do(client)
        assert await is_done(client)


# All of it


class Jobs:
    """Some work that is to be done once, by any client, and what the clients know of it.

    Half of the runs fail.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.told: dict[str, int] = {}
        """For each: how often a client was told that it is done."""
        self.too_often: list[str] = []
        """Work that was begun though a client had been told that it is done."""

    async def deliver(self, client: LockClient) -> None:
        """Do one after the other."""
        dice = self._dice
        while True:
            await asyncio.sleep(dice.uniform(0, 1))
            name = f"job {dice.randrange(20)}"
            with contextlib.suppress(ZeroDivisionError, aiolock.LeaseLost, aiolock.StoreError):
                async with client.once(name, remember=DAY, timeout=20) as lease:
                    if lease is not None:
                        self.too_often += [name] * self.told.get(name, 0)
                        await asyncio.sleep(dice.uniform(0, 2))
                        _ = 1 / dice.randrange(2)
                self.told[name] = self.told.get(name, 0) + 1


async def trouble(dice: random.Random, of: Sequence[Server]) -> None:
    """A minority of them stops, dies, or loses its memory."""
    forgetful = dice.sample(of, len(of) // 2)
    while True:
        await asyncio.sleep(dice.uniform(0, 5))
        those = dice.sample(of, dice.randint(1, len(of) // 2))
        how = dice.choice(["stop", "kill", "forget"])
        for server in those:
            server.stop() if how == "stop" else server.kill()
        await asyncio.sleep(dice.uniform(0, 4))
        for server in those:
            if how == "stop":
                server.resume()
            elif how == "forget" and server in forgetful:
                server.start(empty=True)
            else:
                server.back()


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_once_told_as_done_never_runs_again_under_random_faults(size: int, seed: int) -> None:
    """Once a client was told that it is done no body begins, while a minority fails and forgets."""

    async def scenario() -> None:
        dice, of = random.Random(seed), servers(size)
        jobs = Jobs(dice)
        async with clients(of, 4, longest_ttl=5.0, ttl=5) as all_of_them:
            tasks = [asyncio.create_task(trouble(dice, of))]
            tasks += [asyncio.create_task(jobs.deliver(client)) for client in all_of_them * 2]
            await asyncio.sleep(30)
            assert [task for task in tasks if task.done()] == []
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert jobs.too_often == []
        assert len(jobs.told) > 12

    run(scenario(), seed)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_once_cancelled_at_any_step_leaves_only_done_markers(kind: Kind) -> None:
    """A cancellation at any step leaves nothing but a mark, and no task waits for anything."""
    async with clients(of := servers(), 2, ttl=60) as (ours, other):
        steps = 0

        async def scenario() -> None:
            async with ours.once("a", remember=60):
                pass
            async with other.once("a", remember=60):
                pass

        async for _ in cancel_everywhere(scenario, [kind]):
            steps += 1
            names = await left_behind(of)
            assert len(names) == sum(marked(of))
            for server in of:
                server.quorum_server.states.clear()
        assert steps >= 3


# The decision of a majority


def test_vote_set_of_a_once_asks_if_it_is_done_before_it_enters() -> None:
    """A waiter with a majority asks; it asks again if it had none in between."""
    vote_set = VoteSet(3, once=True)
    for server in (0, 1):
        vote_set.voted(server, 5, 9.0)
    assert vote_set.look(0.0) == [QueryDone()]
    vote_set.unsure = False
    vote_set.turned(1)
    vote_set.look(1.0)
    assert vote_set.unsure
    assert vote_set.voted(1, 5, 9.0) is None
    assert vote_set.look(1.0) == []
    vote_set.voted(2, 5, 9.0)
    assert vote_set.look(1.0) == [QueryDone()]
    vote_set.unsure = False
    assert vote_set.look(1.0) == [Enter(5)]


@virtual
async def test_done_marker_is_refused_by_a_server_that_voted_for_another() -> None:
    """A server refuses a mark if it has voted for another waiter, and else takes it."""
    async with clients(of := servers(), 1) as (client,):
        lease = await client.lock("a").acquire()
        form = Form(3000, once=True)
        said = list[Any]()

        def finish(name: str, number: int) -> None:
            request = VoteRequest(name, WaiterId("other", number), form, 0)
            of[0]._members[0].finish(request, 7, 60_000, 0, lambda *each: said.append(each))

        finish("lock:a", 1)
        finish("lock:b", 1)
        await asyncio.sleep(0.01)
        assert said == [(0, None), (1, None)]
        vote = of[0].quorum_server.states["lock:b"].vote
        assert vote is not None
        assert vote.waiter.client == RESERVED
        await lease.release()
