"""What is done once, and what came of it: kept on every store, and told to whoever asks later."""

from __future__ import annotations

import asyncio
import math

import pytest

import aiolock
from aiolock import AcquireTimeout, Lease, LeaseLost, StoreError
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from aiolock.validation import LONGEST_RESULT
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.worlds import World, queued, virtual

DAY = 86400.0


async def test_outcome_asked_by_many_runs_once_and_is_the_same_for_all(world: World) -> None:
    """Of many in two processes one does it; all have what came of that, also later."""
    ran = list[int]()
    async with world.client() as ours, world.client() as theirs:

        async def work(lease: Lease) -> str:
            ran.append(lease.fence)
            await asyncio.sleep(0.02)
            return f"{len(ran)} done"

        async def ask(client: aiolock.LockClient) -> aiolock.Outcome:
            return await client.once("k", remember=60).outcome(work)

        outcomes = await asyncio.gather(*(ask(client) for client in (ours, theirs) * 5))
        assert {outcome.result for outcome in outcomes} == {"1 done"}
        assert sum(outcome.first for outcome in outcomes) == 1
    async with world.client() as later:
        assert await ask(later) == ("1 done", False)
        status = await later.once("k", remember=60).status()
        assert 50 < status.closed <= 60


async def test_outcome_keeps_any_text_up_to_the_longest_result(world: World) -> None:
    """What is kept is a text, of any characters, and not too long."""
    async with world.client() as client:
        texts = ["", " ", "1 2", "a\n\0\x7f", "'\"\\%{}", "…\U0001f600", "ä" * LONGEST_RESULT]
        for number, text in enumerate(texts):

            async def work(lease: Lease, text: str = text) -> str:
                return text

            once = client.once(f"k{number}", remember=60)
            assert await once.outcome(work) == (text, True)
            assert await once.outcome(work) == (text, False)


@pytest.mark.parametrize(
    ("result", "error"),
    [("x" * (LONGEST_RESULT + 1), ValueError), ("\ud800", ValueError), (b"x", TypeError)],
)
async def test_outcome_that_cannot_be_kept_raises_and_the_next_runs(
    result: str, error: type[Exception]
) -> None:
    """It is an error, and the next one does it."""
    async with aiolock.connect("memory://") as client:
        once = client.once("k", remember=60)

        async def work(lease: Lease) -> str:
            return result

        for _ in range(2):
            with pytest.raises(error, match=r"kept|utf-8"):
                await once.outcome(work)


async def test_outcome_of_a_run_that_fails_is_not_kept(world: World) -> None:
    """Nothing is kept of it; what it raised comes out, and the next one does it."""
    async with world.client() as client:
        once = client.once("k", remember=60)

        async def fails(lease: Lease) -> str:
            raise ZeroDivisionError

        async def works(lease: Lease) -> str:
            return "done"

        with pytest.raises(ZeroDivisionError):
            await once.outcome(fails)
        assert await once.outcome(works) == ("done", True)


async def test_outcome_with_wait_false_of_work_under_way_raises_acquire_timeout(
    world: World,
) -> None:
    """With ``wait=False`` who comes meanwhile is told so at once."""
    async with world.client() as ours, world.client() as theirs:

        async def inner(lease: Lease) -> str:
            raise AssertionError

        async def work(lease: Lease) -> str:
            with pytest.raises(AcquireTimeout):
                await theirs.once("k", remember=60, wait=False).outcome(inner)
            return "done"

        assert await ours.once("k", remember=60).outcome(work) == ("done", True)
        again = await theirs.once("k", remember=60, wait=False).outcome(inner)
        assert again == ("done", False)


async def test_outcome_of_a_run_that_lost_its_lease_overwrites_nothing(world: World) -> None:
    """One that lost its lease, and does not know it yet, overwrites nothing."""
    async with world.client() as ours, world.client() as theirs:
        once = ours.once("k", remember=60)
        fences = list[int]()
        entered, broken = asyncio.Event(), asyncio.Event()

        async def late(lease: Lease) -> str:
            fences.append(lease.fence)
            entered.set()
            await broken.wait()
            return "late"

        async def works(lease: Lease) -> str:
            return "done"

        first = asyncio.create_task(once.outcome(late))
        await entered.wait()
        second = asyncio.create_task(theirs.once("k", remember=60).outcome(works))
        await queued(once, 1)
        await theirs.once("k", remember=60).break_()
        assert await second == ("done", True)
        broken.set()
        with pytest.raises(LeaseLost):
            await first
        # As if it had been on its way when the other ended.
        await once._post(fences[0], "late")
        assert await once.outcome(works) == ("done", False)


async def test_outcome_after_it_was_forgotten_is_that_of_the_new_run(world: World) -> None:
    """When it is not remembered any more, what comes of it then is kept."""
    results = iter(["one", "two"])
    async with world.client() as client:
        once = client.once("k", remember=0.2)

        async def work(lease: Lease) -> str:
            return next(results)

        assert await once.outcome(work) == ("one", True)
        async with asyncio.timeout(20):
            while (outcome := await once.outcome(work)) == ("one", False):  # noqa: ASYNC110  # the store's time
                await asyncio.sleep(0.02)
        assert outcome == ("two", True)


async def test_outcome_of_work_done_without_a_result_raises_result_gone() -> None:
    """What was done by `async with` has none; that is said."""
    async with aiolock.connect("memory://") as client:
        once = client.once("k", remember=60)
        async with once:
            pass

        async def work(lease: Lease) -> str:
            raise AssertionError

        with pytest.raises(aiolock.ResultGone, match="'k' is done, but the store has no result"):
            await once.outcome(work)


@virtual
async def test_outcome_whose_post_fails_for_a_moment_is_kept() -> None:
    """The work is done, so it is kept as soon as the store works."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        for fault in (faulty.refuse, faulty.lose):
            fault("post", 3)
            once = client.once(fault.__name__, remember=60)

            async def work(lease: Lease) -> str:
                return "done"

            assert await once.outcome(work) == ("done", True)
            assert await once.outcome(work) == ("done", False)


@virtual
@pytest.mark.parametrize(("ttl", "seconds"), [(3600, 30), (10, 10)])
async def test_outcome_whose_post_is_refused_for_a_lease_raises_store_error(
    ttl: float, seconds: float
) -> None:
    """It is asked for as long as a lease; then nothing is remembered, and the next one does it."""
    loop = asyncio.get_running_loop()
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty, deadlock_after=None) as client:
        once = client.once("k", remember=60, ttl=ttl)

        async def work(lease: Lease) -> str:
            return "done"

        faulty.refuse("post", math.inf)
        start = loop.time()
        with pytest.raises(StoreError):
            await once.outcome(work)
        assert seconds - 1.1 < loop.time() - start < seconds + 0.1
        faulty.resume()
        assert await once.outcome(work) == ("done", True)
        faulty.refuse("read")
        with pytest.raises(StoreError):
            await once.outcome(work)
        assert await once.outcome(work) == ("done", False)


@virtual
@pytest.mark.parametrize("ends", ["released", "closed"])
async def test_outcome_of_work_that_ended_its_lease_is_posted_at_most_once(ends: str) -> None:
    """Others may do it by then, so a store that does not take the result is not asked again."""
    loop = asyncio.get_running_loop()
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    client = aiolock.connect(faulty, deadlock_after=None)
    async with client:

        async def work(lease: Lease) -> str:
            if ends == "released":
                await lease.release()
            else:
                await client.aclose()
            return "done"

        faulty.refuse("post", math.inf)
        start = loop.time()
        with pytest.raises(StoreError):
            await client.once("k", remember=60).outcome(work)
        assert loop.time() - start < 0.1
        assert faulty.calls["post"] <= 1


@pytest.mark.parametrize("kind", KINDS)
async def test_outcome_cancelled_at_any_step_is_done_or_run_by_the_next(kind: Kind) -> None:
    """Whoever comes after one that was cancelled does it, or has what came of it."""
    server = MemoryServer()
    done = set[str]()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        key = "k 0"
        ran = 0

        async def work(lease: Lease) -> str:
            await asyncio.sleep(0)
            done.add(key)
            return key

        async def scenario() -> None:
            assert (await ours.once(key, remember=DAY).outcome(work)).result == key

        async for _ in cancel_everywhere(scenario, [kind]):
            outcome = await theirs.once(key, remember=DAY, timeout=10).outcome(work)
            assert outcome.result == key
            assert key in done
            assert not ours._engine.watchdog.holds
            ran += 1
            key = f"k {ran}"
        assert ran >= 3
