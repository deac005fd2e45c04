"""A number of tokens in a time, which nobody holds."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

import aiolock
from aiolock import AcquireTimeout, LimitMismatch, QueueFull, StoreError
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.worlds import World, empty, queued, virtual

SLOW: Final[dict[str, Any]] = {"limit": 1, "per": 3600}
"""A rate at which no token comes while a test runs."""


def at_most(taken: list[tuple[float, int]], burst: int, interval: float) -> None:
    """In any time of t seconds, at most burst + t / interval tokens were taken."""
    for first, (began, _) in enumerate(taken):
        tokens = 0
        for when, number in taken[first:]:
            tokens += number
            assert tokens <= burst + (when - began) / interval + 1e-6, (began, when, tokens)


# What is taken, and when


@virtual
async def test_acquire_under_contention_takes_no_more_than_burst_and_rate_allow() -> None:
    """However many want tokens, in however many processes: in each window no more than promised."""
    server, taken = MemoryServer(), list[tuple[float, int]]()
    dice, loop = random.Random(7), asyncio.get_running_loop()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:

        async def use(limit: aiolock.RateLimit, number: int, begins: float) -> None:
            await asyncio.sleep(begins)
            await limit.acquire(number)
            taken.append((loop.time(), number))

        async with asyncio.TaskGroup() as group:
            for each in range(300):
                limit = (ours, theirs)[each % 2].rate_limit("api", 10, per=1, burst=5)
                group.create_task(use(limit, dice.choice([1, 1, 3]), 20 * dice.random()))
        tokens = sum(number for _, number in taken)
        assert len(taken) == 300
        at_most(taken, 5, 0.1)
        # Nor are they late: a token that somebody waits for is taken within a few ms.
        assert taken[-1][0] <= tokens * 0.1 + 0.5


@virtual
async def test_acquire_in_a_queue_takes_tokens_in_the_order_of_arrival() -> None:
    """A waiter for many is not overtaken by those that want few, of whichever process."""
    server, order = MemoryServer(), list[int]()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        limits = [client.rate_limit("api", 10, per=1, burst=5) for client in (ours, theirs)]
        await limits[0].acquire(5)

        async def use(number: int) -> None:
            await limits[number % 2].acquire(1 + 4 * (number % 3 == 0))
            order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(use(number))
                await queued(limits[0], number + 1)
        assert order == [*range(12)]


@virtual
async def test_acquire_of_a_waiting_task_takes_its_token_when_it_is_there() -> None:
    """Not before, and at most some milliseconds later: nobody polls in between."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        loop = asyncio.get_running_loop()
        limit = client.rate_limit("api", 1, per=5)
        assert await limit.acquire()
        assert faulty.calls == {"open": 1, "acquire": 1}, "one command if a token is there"
        began = loop.time()
        await limit.acquire()
        assert 5 <= loop.time() - began < 5.01
        assert faulty.calls["acquire"] == 3, "one to get into the queue, one when it is there"
        assert faulty.calls["release"] == faulty.calls["renew"] == 0, "nothing is held"


@virtual
async def test_acquire_of_many_waiters_asks_about_once_for_each_token() -> None:
    """However many tasks of a process wait, and for however many tokens each."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        limit = client.rate_limit("api", 10, per=1, burst=3)
        for waiters, most in ((200, 1), (60, 3)):
            faulty.calls.clear()
            async with asyncio.TaskGroup() as group:
                for number in range(waiters):
                    group.create_task(limit._take(limit._of(1 + number % most), None, ""))
            assert faulty.calls["acquire"] <= 2 * waiters


async def test_rate_limit_of_two_processes_lets_both_take_tokens(world: World) -> None:
    """On each store: tokens of one bucket, without a holder; what is left is as it was said."""
    async with world.client() as ours, world.client() as theirs:
        mine, other = (client.rate_limit("api", 200, per=1, burst=4) for client in (ours, theirs))
        assert (mine.name, mine.burst, mine.interval) == ("api", 4, 0.005)
        async with mine as verdict, other.acquire(2):
            assert verdict.ok
            status = await theirs.status("api", kind="rate_limit")
            assert (status.holders, status.limit, status.interval) == ((), 4, 0.005)
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task((mine, other)[number % 2]._take(mine._of(2), None, ""))
        assert await ours.snapshot(kind="rate_limit") == []


@virtual
async def test_shares_get_tokens_in_turn_however_many_wait_in_one_of_them() -> None:
    """A tenant with a hundred waiters does not keep one with five waiting."""
    async with aiolock.connect("memory://") as client:
        order = list[str]()

        async def use(tenant: str, weight: float) -> None:
            limit = client.rate_limit("api", 1, per=1, share=tenant, weight=weight)
            await limit.acquire()
            order.append(tenant)

        await client.rate_limit("api", 1, per=1).acquire()
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(use("busy", 1))
            await queued(client.rate_limit("api", 1, per=1), 100)
            for _ in range(5):
                group.create_task(use("calm", 1))
            for _ in range(30):
                group.create_task(use("paying", 3))
        assert order[:12].count("calm") == 2
        assert order[:25].count("calm") == 5
        assert 14 <= order[:25].count("paying") <= 16


@virtual
async def test_share_that_is_next_is_told_when_its_own_tokens_are_there() -> None:
    """It does not wait for those of a waiter that came first, and wants more."""
    async with aiolock.connect("memory://") as client:
        loop, limit = asyncio.get_running_loop(), client.rate_limit("api", 1, per=1, burst=5)
        await limit.acquire(5)
        shares = {name: client.rate_limit("api", 1, per=1, burst=5, share=name) for name in "ab"}
        came = list[tuple[str, int, float]]()

        async def use(tenant: str, number: int) -> None:
            await shares[tenant].acquire(number)
            came.append((tenant, number, round(loop.time(), 1)))

        async with asyncio.TaskGroup() as group:
            for number, (tenant, tokens) in enumerate((("a", 1), ("a", 4), ("b", 1), ("b", 1))):
                group.create_task(use(tenant, tokens))
                await queued(limit, number + 1)
        assert came == [("a", 1, 1.0), ("b", 1, 2.0), ("a", 4, 6.0), ("b", 1, 7.0)]


# What is said


@virtual
async def test_verdict_says_what_is_left_and_when_there_is_more() -> None:
    """For a client of a web service, and in the end for its users."""
    async with aiolock.connect("memory://") as client:
        limit = client.rate_limit("api", 60, per=timedelta(minutes=1), burst=10)
        verdict = await limit.try_acquire(4)
        assert (bool(verdict), verdict.retry_after) == (True, 0)
        assert (verdict.remaining, round(verdict.reset_after, 3)) == (6, 4)
        await asyncio.sleep(1.5)
        verdict = await limit.try_acquire(8)
        assert not verdict
        assert (verdict.remaining, round(verdict.reset_after, 3)) == (7, 2.5)
        assert round(verdict.retry_after, 3) == 0.5
        await asyncio.sleep(verdict.retry_after)
        verdict = await limit.try_acquire(8)
        assert verdict.ok
        assert verdict.remaining == 0


@virtual
async def test_try_acquire_while_others_wait_takes_nothing() -> None:
    """Who does not wait does not overtake; when its tokens would be there counts those before."""
    async with aiolock.connect("memory://") as client:
        limit = client.rate_limit("api", 1, per=1, burst=3)
        await limit.acquire(2)
        waiting = asyncio.create_task(limit._take(limit._of(3), None, ""))
        await queued(limit, 1)
        verdict = await limit.try_acquire()
        assert (verdict.ok, verdict.remaining) == (False, 0)
        assert round(verdict.retry_after, 2) == 3
        verdict = await limit.try_acquire(timeout=1)
        assert not verdict.ok
        assert 1.9 < verdict.retry_after <= 2.01
        assert await waiting


@virtual
async def test_acquire_that_times_out_says_when_its_tokens_are_there() -> None:
    """It has left the queue, and costs nobody a token."""
    async with aiolock.connect("memory://") as client:
        limit = client.rate_limit("api", 1, per=10, burst=2, timeout=4)
        await limit.acquire(2)
        with pytest.raises(AcquireTimeout, match=r"api' had too few tokens in 4 s: it is") as late:
            async with limit:
                raise AssertionError
        assert (late.value.kind, late.value.name) == ("rate_limit", "api")
        assert late.value.retry_after is not None
        assert 5.9 < late.value.retry_after <= 6.01
        assert 4 <= late.value.waited < 4.01
        with pytest.raises(AcquireTimeout, match=r"has too few tokens: all 2 are there in 1\d"):
            await limit.acquire(2, timeout=0)
        assert not (await limit.status()).waiters
        await asyncio.sleep(6.01)
        assert await limit.try_acquire()


async def test_acquire_with_a_full_queue_raises_queue_full(world: World) -> None:
    """No more wait than may."""
    async with world.client() as client:
        limit = client.rate_limit("api", **SLOW, max_waiters=1)
        await limit.acquire()
        waiting = asyncio.create_task(limit.acquire())
        await queued(limit, 1)
        with pytest.raises(QueueFull):
            await limit.acquire()
        waiting.cancel()
        await asyncio.wait([waiting])
        await empty(limit)


async def test_rate_limit_that_others_declare_otherwise_raises_limit_mismatch(
    world: World,
) -> None:
    """Nobody silently gets another rate, or another burst, than is written in the program."""
    async with world.client() as client:
        await client.rate_limit("api", 100, per=60, burst=20).acquire()
        for limit, per, burst in ((101, 60, 20), (100, 60, 21)):
            with pytest.raises(
                LimitMismatch, match=r"in use with a token every 0.6 s \(burst 20\)"
            ):
                await client.rate_limit("api", limit, per=per, burst=burst).acquire()


async def test_resize_changes_the_rate_for_all_clients(world: World) -> None:
    """Both rates can be declared from then on, and the bucket has as many tokens less."""
    async with world.client() as client:
        limit = client.rate_limit("api", **SLOW, burst=5)
        await limit.acquire(4)
        await limit.resize(1, per=7200, burst=6)
        other = client.rate_limit("api", 1, per=7200, burst=6)
        assert await other.acquire(2)
        assert not await limit.try_acquire()
        status = await other.status()
        assert (status.limit, status.interval) == (6, 7200)


# What goes wrong


@virtual
async def test_push_that_is_lost_costs_no_second_token() -> None:
    """The waiter asks when its token should be there, and is told that it has it."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        mine, other = (client.rate_limit("api", 1, per=1, burst=4) for client in (ours, theirs))
        await mine.acquire(4)
        waiting = asyncio.create_task(mine._take(mine._of(2), None, ""))
        await queued(mine, 1)
        asking = asyncio.create_task(other._take(other._of(1), None, ""))
        await queued(mine, 2)
        loop._now += 3.5  # type: ignore[attr-defined]  # past both times, in one step
        faulty.lose("push", math.inf)
        await waiting
        await asking
        verdict = await other.try_acquire(3)
        assert round(verdict.retry_after, 1) == round(3 + 4 + 3 - 4 - loop.time(), 1)


@virtual
async def test_pushes_that_are_lost_are_found_one_after_the_other() -> None:
    """Of several waiters of one client, whose tokens are all there: each asks for itself."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    loop = asyncio.get_running_loop()
    async with aiolock.connect(faulty) as client:
        limit = client.rate_limit("api", 1, per=1, burst=3)
        await limit.acquire(3)
        waiting = [asyncio.create_task(limit._take(limit._of(1), None, "")) for _ in range(3)]
        await queued(limit, 3)
        faulty.lose("push", math.inf)
        loop._now += 4  # type: ignore[attr-defined]  # past all times, in one step
        for task in waiting:
            await task
        assert loop.time() < 5
        assert not await limit.try_acquire()


@virtual
async def test_answer_that_is_lost_costs_no_second_token() -> None:
    """It is an error, as nobody knows; asked again by the store itself, it is the same grant."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        limit = client.rate_limit("api", **SLOW, burst=2)
        faulty.lose("acquire")
        with pytest.raises(StoreError):
            await limit.acquire()
        assert await limit.try_acquire()
        assert not await limit.try_acquire()


@virtual
async def test_process_that_dies_in_the_queue_costs_the_others_no_token() -> None:
    """Its tokens go to the next, at most as late as they would have come behind it."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(server) as theirs, aiolock.connect(faulty) as dying:
        loop, limit = asyncio.get_running_loop(), theirs.rate_limit("api", 1, per=1, burst=3)
        await limit.acquire(3)
        other = dying.rate_limit("api", 1, per=1, burst=3)
        gone = asyncio.create_task(other._take(other._of(3), None, ""))
        await queued(limit, 1)
        behind = asyncio.create_task(limit._take(limit._of(1), None, ""))
        await queued(limit, 2)
        faulty.refuse("acquire", math.inf)
        server.leave(dying.id)
        began = loop.time()
        await behind
        assert 1 <= loop.time() - began < 4.01
        assert await limit.try_acquire(2), "the others of the dead one are there"
        gone.cancel()
        await asyncio.wait([gone])


@virtual
async def test_waiter_that_gives_up_lets_those_behind_it_come_earlier() -> None:
    """Each of them, though only the first is told."""
    async with aiolock.connect("memory://") as client:
        loop, limit = asyncio.get_running_loop(), client.rate_limit("api", 1, per=1, burst=5)
        await limit.acquire(5)
        gone = asyncio.create_task(limit._take(limit._of(5), 0.5, ""))
        await queued(limit, 1)
        came = list[float]()

        async def wait() -> None:
            await limit.acquire()
            came.append(loop.time())

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(wait())
                await queued(limit, 2 + number)
        with pytest.raises(AcquireTimeout):
            await gone
        assert [round(when, 1) for when in came] == [1, 2, 3]


@virtual
async def test_waiter_told_to_ask_before_its_answer_came_comes_earlier() -> None:
    """Two connections keep no order: the answer is older than what its client was told since."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(server) as ours, aiolock.connect(faulty) as theirs:
        loop, limit = asyncio.get_running_loop(), ours.rate_limit("api", 1, per=1, burst=5)
        await limit.acquire(5)
        gone = asyncio.create_task(limit._take(limit._of(5), None, ""))
        await queued(limit, 1)
        faulty.hold("acquire")
        api = theirs.rate_limit("api", 1, per=1, burst=5)
        tries = asyncio.create_task(api.try_acquire())  # its answer is none that it is queued
        waits = asyncio.create_task(api._take(api._of(1), None, ""))
        await queued(limit, 2)
        gone.cancel()
        await queued(limit, 1)
        await asyncio.sleep(0.1)
        faulty.resume()
        await waits
        assert not await tries
        assert round(loop.time(), 1) == 1


@pytest.mark.parametrize("world", ["memory", "redis"], indirect=True)  # the engine is the same
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_cancel_at_any_step_of_acquire_leaves_no_waiter(world: World, kind: Kind) -> None:
    """Free, in the queue, and when the tokens come at that moment."""
    async with world.client() as client:
        limit = client.rate_limit("api", 100, per=1, burst=1)

        async def scenario() -> None:
            await limit.acquire()
            await limit.acquire()

        async for _ in cancel_everywhere(scenario, [kind]):
            await empty(limit)
            assert not client._engine.waiters.acquisitions


@virtual
async def test_client_that_closes_ends_the_waiting() -> None:
    """Nobody waits for a token of a closed client."""
    async with aiolock.connect("memory://") as client:
        limit = client.rate_limit("api", **SLOW)
        await limit.acquire()
        waiting = asyncio.create_task(limit.acquire())
        await queued(limit, 1)
        await client.aclose()
        with pytest.raises(aiolock.ClientClosed):
            await waiting
        with pytest.raises(aiolock.ClientClosed):
            _ = limit.acquire()


# How it is used


@virtual
async def test_rate_limited_function_takes_a_token_of_the_name_of_its_call() -> None:
    """Each tenant has a bucket of its own."""
    client = aiolock.connect("memory://")

    @client.rate_limited("api:{tenant}", 1, per=10)
    async def call(tenant: str) -> str:
        return tenant.upper()

    async with client:
        loop = asyncio.get_running_loop()
        assert [await call("a"), await call("b")] == ["A", "B"]
        assert loop.time() == 0
        await call("a")
        assert 10 <= loop.time() < 10.01


async def test_acquire_that_is_not_awaited_warns() -> None:
    """It has waited for nothing, so what follows is not limited."""
    async with aiolock.connect("memory://") as client:
        limit = client.rate_limit("api", 1, per=1)
        dropped = limit.acquire()
        with pytest.warns(RuntimeWarning, match="never awaited, so it has waited for nothing"):
            del dropped
        once = limit.acquire()
        await once
        with pytest.raises(RuntimeError, match="call acquire"):
            await once


@pytest.mark.parametrize(
    ("describe", "error", "text"),
    [
        (lambda c: c.rate_limit("a", 0, per=1), ValueError, "limit must be from 1"),
        (lambda c: c.rate_limit("a", 1.5, per=1), TypeError, "limit must be an int"),
        (lambda c: c.rate_limit("a", 1, per=0), ValueError, "per must be from 0.01"),
        (lambda c: c.rate_limit("a", 1, per="1"), TypeError, "per must be a number of seconds"),
        (lambda c: c.rate_limit("a", 1, per=1, burst=0), ValueError, "burst must be from 1"),
        (lambda c: c.rate_limit("a", 10**9, per=60), ValueError, "count in larger units"),
        (lambda c: c.rate_limit("a", 1, per=60, burst=10**9), ValueError, "after a year at most"),
        (lambda c: c.rate_limit("a", 1, per=1, max_waiters=0), ValueError, "max_waiters must be"),
        (lambda c: c.rate_limit("a", 1, per=1, priority=10), ValueError, "priority must be"),
        (lambda c: c.rate_limit("", 1, per=1), ValueError, "name must have"),
        (lambda c: c.rate_limit("a", 2, per=1).acquire(3), ValueError, r"has 2 tokens \(burst\)"),
        (lambda c: c.rate_limit("a", 2, per=1).acquire(0), ValueError, "n must be from 1"),
        (lambda c: c.rate_limit("a", 2, per=1).acquire(blocking=False), TypeError, "try_acquire"),
    ],
)
async def test_rate_limit_with_invalid_arguments_raises_before_any_command(
    describe: Callable[[Any], object], error: type[Exception], text: str
) -> None:
    """Each error names what is wrong, and what is right."""
    async with aiolock.connect("memory://") as client:
        with pytest.raises(error, match=text):
            describe(client)


def test_interval_is_rounded_up_to_whole_microseconds() -> None:
    """So the rate is never more than was asked for, and at most one per cent less."""
    client = aiolock.connect("memory://")
    assert client.rate_limit("a", 3, per=1).interval == 0.333334
    assert client.rate_limit("a", 450_000, per=60).interval == 0.000134
    assert client.rate_limit("a", 1, per=timedelta(days=30)).interval == 2_592_000
