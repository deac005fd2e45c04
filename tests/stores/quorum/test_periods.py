"""Votes of a periodic job: those of one period count together, and others are exchanged in time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from aiolock import LockClient
from aiolock.protocol import CLAIM, Form, Renew
from aiolock.stores.quorum._counts import Renewing
from aiolock.stores.quorum._periods import UNKNOWN, Period, period_of
from aiolock.stores.quorum._votes import Enter, Raise, VoteSet, YieldVote
from aiolock.testing import Peer
from tests.support.quorums import clients, servers, store_on, with_clocks
from tests.support.virtual import run
from tests.support.worlds import virtual

MINUTE = 60_000


@pytest.mark.parametrize(
    ("periods", "together"),
    [
        ([1, 1, 1], [0, 1, 2]),
        ([1, 0, 1], [0, 2]),
        ([0, 1, 0], [0, 2]),
        ([1, 1, "none"], [0, 1]),
        ([None, None, 1], [2]),  # nobody knows of what period those two are
        (["none", "none", "none"], []),
    ],
)
def test_votes_of_the_most_frequent_period_count_together(
    periods: list[int | str | None], together: list[int]
) -> None:
    """Those of the period in which most were given count together; a client enters by these."""
    vote_set = VoteSet(3, periodic=True)
    for server, period in enumerate(periods):
        if not isinstance(period, str):
            vote_set.voted(server, 7, 9.0, Period(period, 99.0))
    assert vote_set.together == together
    assert vote_set.look(1.0) == ([Enter(7)] if len(together) > 1 else [])


def test_vote_of_an_ended_period_is_yielded_unless_confirmed() -> None:
    """Not before, and not if the client has entered and that is confirmed."""
    vote_set = VoteSet(3, periodic=True)
    vote_set.voted(0, 7, 99.0, Period(4, 5.0))
    vote_set.voted(1, 8, 99.0, Period(5, 65.0))
    assert vote_set.look(4.9) == []
    assert vote_set.look(5.0) == [YieldVote(0, 7)]
    vote_set.voted(0, 8, 99.0, Period(5, 65.0))
    assert vote_set.look(5.1) == [Enter(8)]
    vote_set.voted(2, 9, 99.0, Period(4, 5.0))
    assert vote_set.look(5.2) == [YieldVote(2, 9)]
    vote_set.voted(2, 10, 99.0, Period(4, 5.0))
    vote_set.confirm()
    assert vote_set.look(5.3) == []


def test_majority_of_votes_of_an_ended_period_is_yielded() -> None:
    """A majority of votes that are over is exchanged, though they are all of one period."""
    vote_set = VoteSet(3, periodic=True)
    vote_set.voted(0, 7, 99.0, Period(4, 5.0))
    vote_set.voted(1, 8, 99.0, Period(4, 5.0))
    assert vote_set.look(4.0) == [Raise(0, 7, 8)]
    assert vote_set.look(5.0) == [YieldVote(0, 7), YieldVote(1, 8)]


def test_votes_of_an_ended_period_are_yielded_during_a_raise() -> None:
    """The server that is told may have stopped: then a majority needs the next vote of another."""
    vote_set = VoteSet(3, periodic=True)
    vote_set.voted(0, 7, 99.0, Period(5, 65.0))
    vote_set.voted(1, 8, 99.0, Period(5, 65.0))
    vote_set.voted(2, 9, 99.0, Period(4, 5.0))
    assert vote_set.look(4.0) == [Raise(0, 7, 8)]
    assert vote_set.look(5.0) == [YieldVote(2, 9)]


def test_vote_set_that_was_given_back_is_not_confirmed() -> None:
    """The next time, the votes have to be of one period again."""
    vote_set = VoteSet(3, periodic=True)
    for server in (0, 1):
        vote_set.voted(server, 7, 99.0, Period(4, 5.0))
    assert vote_set.look(1.0) == [Enter(7)]
    vote_set.confirm()
    vote_set.give_back()
    vote_set.come_back()
    vote_set.voted(0, 8, 99.0, Period(4, 5.0))
    vote_set.voted(1, 8, 99.0, Period(5, 65.0))
    assert vote_set.look(2.0) == []


def test_vote_of_an_unknown_period_is_yielded_at_once() -> None:
    """It counts with no other vote, so the client gets one that was given just now."""
    vote_set = VoteSet(3, periodic=True)
    vote_set.voted(0, 7, 99.0, UNKNOWN)
    assert vote_set.look(0.0) == [YieldVote(0, 7)]


def test_votes_of_unknown_periods_do_not_count_together() -> None:
    """Also not of the first period of all, which has the number 0."""
    vote_set = VoteSet(3, periodic=True)
    vote_set.voted(0, 7, 99.0, UNKNOWN)
    vote_set.voted(1, 7, 99.0, UNKNOWN)
    assert vote_set.together == []
    vote_set.voted(2, 7, 99.0, Period(0, 60.0))
    assert vote_set.together == [2]


@pytest.mark.parametrize(("ttl", "confirms"), [(0, False), (1000, True)])
def test_renewal_confirms_a_periodic_run_only_with_a_ttl(ttl: int, *, confirms: bool) -> None:
    """To ask whether the votes still stand tells no server that the client is inside."""
    vote_set = VoteSet(3, periodic=True)
    for server in (0, 1):
        vote_set.voted(server, 7, 99.0, Period(4, 5.0))
    assert vote_set.look(1.0) == [Enter(7)]
    answers: list[bool | None] = []
    acquisition: Any = SimpleNamespace(vote_set=vote_set, over=False, promised=0.0)
    renewing = Renewing(acquisition, [0, 1], ttl, 90.0, answers.append)
    for _ in range(2):
        renewing.on_reply(still=True, error=None)
    assert answers == [True]
    vote_set.voted(2, 8, 99.0, Period(5, 65.0))
    assert vote_set.counts_with(4, 2) is confirms


@pytest.mark.parametrize(
    ("given", "number", "left"), [(0, 0, 60.0), (59_999_999, 0, 1e-6), (60_000_000, 1, 60.0)]
)
def test_period_of_a_vote_is_by_the_clock_of_its_server(
    given: int, number: int, left: float
) -> None:
    """By the server's clock; it is over after what is left of it, from when the vote was heard."""
    period = period_of(given, MINUTE, 1000.0)
    assert period.number == number
    assert period.over_at == pytest.approx(1000.0 + left)


@virtual
async def test_periodic_votes_whose_pushes_were_lost_end_up_in_one_period() -> None:
    """Nobody knows when two votes were given: they do not count together, whatever they are of."""
    first, second, third = of = servers()
    form = Form(CLAIM, period=MINUTE)
    async with Peer(store_on(of)) as ours, Peer(store_on(of)) as other:
        await asyncio.sleep((MINUTE - first.quorum_server.now() / 1000 % MINUTE) / 1000 - 1)
        grant = await other.take("a", other.waiter(form))
        await ours.queue("a", ours.waiter(form))
        third.stop()
        for server in (first, second):
            deaf: Any = SimpleNamespace(granted=lambda *_: None)  # pushes are lost
            server.quorum_server.listeners[ours.client] = deaf
        second.stop()
        releasing = other.release("a", grant, entered=False)
        await asyncio.sleep(1.5)
        second.resume()
        await releasing
        await asyncio.sleep(0.1)
        for server in (first, second):
            server._members[0].breaks()
            server._members[0].connects()
        await ours.handed()
        votes = [server.quorum_server.states["a"].vote for server in (first, second)]
        assert len({vote.granted // MINUTE for vote in votes if vote}) == 1


@virtual
async def test_release_of_a_periodic_grant_keeps_no_renewal() -> None:
    """Its renewals included."""
    async with Peer(store_on(servers())) as ours:
        form = Form(CLAIM, period=MINUTE)
        grant = await ours.take("a", ours.waiter(form))
        renewal = ours.renewal("a", grant, 9_000)
        assert await ours.store.submit(Renew([renewal])) == [True]
        await ours.release("a", grant)
        store: Any = ours.store
        assert not store._session.acquisitions.renewals._latest
        assert not store._session.acquisitions.table.by_waiter


@virtual
async def test_late_answer_to_a_renewal_after_giving_back_confirms_nothing() -> None:
    """An answer that comes when the votes were given back confirms nothing that is entered next."""
    _, second, third = of = servers()
    form = Form(CLAIM, period=MINUTE)
    async with Peer(store_on(of)) as ours:
        third.stop()
        waiter = ours.waiter(form)
        grant = await ours.take("a", waiter)
        second.stop()
        confirming = ours.store.submit(Renew([ours.renewal("a", grant, CLAIM)]))
        await asyncio.sleep(0.1)
        assert not confirming.done()
        given_back = ours.release("a", grant, entered=False)
        assert await confirming == [False]
        asked = ours.ask("a", waiter, ticket=1)
        second.resume()
        third.resume()
        await given_back
        await asked
        store: Any = ours.store
        acquisition = store._session.acquisitions.table.by_waiter[waiter]
        assert acquisition.inside
        assert not acquisition.vote_set._confirmed


@virtual
async def test_periodic_newcomer_at_the_turn_of_a_period_runs_once_two_agree() -> None:
    """Two servers differ about it, and the third is away: a client runs once the two agree."""
    now = asyncio.get_running_loop().time
    of = with_clocks(0, 1, 2)
    async with clients(of, 1) as (client,):
        of[2].kill()
        await asyncio.sleep(60 - (1e9 + now()) % 60 - 0.5)

        async def job() -> None:
            ran.set_result((1e9 + now()) % 60)

        ran = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(client.periodic("job", every=60).run(job))
        assert await ran < 0.05
        running.cancel()


async def begun(
    all_of_them: Sequence[LockClient],
    every: float,
    job: Callable[[int], Awaitable[None]],
    *,
    apart: float,
) -> list[asyncio.Task[None]]:
    """One instance of a job on each client, that many seconds one after the other."""
    jobs = list[asyncio.Task[None]]()
    for number, client in enumerate(all_of_them):
        instance = client.periodic("job", every=every)
        jobs.append(asyncio.create_task(instance.run(partial(job, number))))
        await asyncio.sleep(apart)
    return jobs


@virtual
@pytest.mark.parametrize("forgetful", [0, 1, 2])
@pytest.mark.parametrize("ahead", [(0.0, 0.01, 0.03), (0.03, 0.0, 0.01), (2.5, 0.0, 0.2)])
async def test_periodic_instances_keep_their_turns_beside_a_forgetful_server(
    ahead: tuple[float, ...], forgetful: int
) -> None:
    """Also where it has, at the turn of a period, a vote of the period before."""
    time = asyncio.get_running_loop().time
    of = with_clocks(*ahead)
    async with clients(of, 3) as all_of_them:
        runs = list[tuple[int, float]]()

        async def job(instance: int) -> None:
            runs.append((instance, time()))
            await asyncio.sleep(5)  # so that all servers vote for it, and remember it

        jobs = await begun(all_of_them, 60, job, apart=0.1)
        for _ in range(12):
            await asyncio.sleep(40)
            of[forgetful].quorum_server.states.clear()  # it votes for the next, and knows of no run
            await asyncio.sleep(20)
        for task in jobs:
            task.cancel()
        await asyncio.wait(jobs)
        assert [instance for instance, _ in runs] == [run % 3 for run in range(len(runs))]
        median = 1e9 + sorted(ahead)[1]
        assert [int(at + median) // 60 for _, at in runs] == [
            int(runs[0][1] + median) // 60 + period for period in range(len(runs))
        ]
        assert len(runs) in {12, 13}


@pytest.mark.parametrize(
    ("size", "seed"),
    [
        *product((3, 5), range(8)),
        (3, 107),
        (3, 371),
        (5, 315),
        (3, 5301),
        (7, 6193),
        (3, 6005),
        (5, 459),
        (3, 5365),
    ],
)
def test_periodic_instances_run_in_turn_while_a_minority_stops(size: int, seed: int) -> None:
    """Clocks differ, a minority stops now and then: no period has two runs, and each its turn."""
    chance = random.Random(seed)

    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        ahead = [chance.choice([0.0, 0.003, 0.2, 1.5]) * chance.random() for _ in range(size)]
        of = with_clocks(*ahead)
        runs = list[tuple[int, float]]()

        async def job(instance: int) -> None:
            runs.append((instance, now()))
            await asyncio.sleep(chance.choice([0.0, 0.5, 3.0]))

        async with clients(of, 3) as all_of_them:
            jobs = await begun(all_of_them, 10, job, apart=11)
            for _ in range(20):
                stopped = chance.sample(of, size // 2)
                for server in stopped:
                    server.stop()
                await asyncio.sleep(chance.choice([0.1, 1.0, 5.0, 12.0]))
                for server in stopped:
                    server.resume()
                await asyncio.sleep(chance.choice([0.0, 0.01, 1.0, 7.0]))
            for task in jobs:
                task.cancel()
            await asyncio.wait(jobs)
        turns = [instance for instance, _ in runs]
        settled = turns[turns.index(2) :]
        if max(ahead) - min(ahead) < 1:
            assert settled == [settled[turn % 3] for turn in range(len(settled))]
        assert set(settled) == {0, 1, 2}
        median = 1e9 + sorted(ahead)[size // 2]
        periods = [int(at + median) // 10 for _, at in runs]
        assert periods == sorted(set(periods))
        # A server that goes on after the turn takes a run of the period before for one of this.
        assert periods[-1] - periods[0] <= len(periods)

    run(scenario())


@virtual
async def test_periodic_run_outlives_an_empty_restart_of_each_server() -> None:
    """It has begun by votes of one period; those of later periods keep others out as well."""
    async with clients(of := servers(), 1, longest_ttl=6, ttl=4) as (client,):
        votes = list[int]()

        async def job() -> None:
            for server in of:
                server.kill()
                server.start(empty=True)
                await asyncio.sleep(10)
                votes.extend(each.votes for each in client.servers())

        running = asyncio.create_task(client.periodic("job", every=7).run(job))
        await asyncio.sleep(35)
        running.cancel()
        assert votes[:9] == [1] * 9
