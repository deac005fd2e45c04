"""A periodic job: once in each period, in turn, whatever becomes of its instances."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import aiolock
from aiolock import AcquireTimeout, ClientClosed, LeaseLost
from aiolock._locks.periodic import Job
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.failures import until
from tests.support.worlds import World, virtual

EVERY = 60.0


class Runs:
    """What the instances of one job did: who, in which period of the server's clock."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.log: list[tuple[str, int]] = []
        self.running = 0

    def period(self) -> int:
        return int(self.server.now() // (EVERY * 1e6))

    def periods(self) -> list[int]:
        return [period for _, period in self.log]

    def job(self, who: str, lasts: float = 0.0) -> Job:
        async def job() -> None:
            assert not self.running
            self.running += 1
            self.log.append((who, self.period()))
            try:
                await asyncio.sleep(lasts)
            finally:
                self.running -= 1

        return job


async def cancelled(*tasks: asyncio.Task[object]) -> None:
    """Cancel them, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@virtual
async def test_periodic_of_five_instances_takes_turns_once_each_period() -> None:
    """Of 100 periods each of 5 instances runs 20, and no period is left out or run twice."""
    runs = Runs(MemoryServer())
    async with contextlib.AsyncExitStack() as stack:
        instances = []
        for who in "abcde":
            client = await stack.enter_async_context(aiolock.connect(runs.server))
            job = client.periodic("job", every=EVERY).run(runs.job(who, lasts=3))
            instances.append(asyncio.create_task(job))
        await asyncio.sleep(100 * EVERY)
        periods = runs.periods()
        assert periods == list(range(periods[0], periods[0] + len(periods)))
        assert len(periods) in (100, 101)
        shares = Counter(who for who, _ in runs.log)
        assert all(19 <= share <= 21 for share in shares.values()), shares
        turns = [who for who, _ in runs.log]
        assert all(len(set(turns[i : i + 5])) == 5 for i in range(len(turns) - 4)), "in turn"
        await cancelled(*instances)


@virtual
async def test_periodic_run_begins_with_its_period() -> None:
    """A period's run begins with it, by the store's clock, not when somebody happens to look."""
    server = MemoryServer()
    begun: list[float] = []

    async def job() -> None:
        begun.append(server.now() / 1e6)

    async with aiolock.connect(server) as client:
        running = asyncio.create_task(client.periodic("job", every=3600).run(job))
        await asyncio.sleep(10 * 3600)
        assert len(begun) in (10, 11)
        assert all(moment % 3600 < 0.1 for moment in begun[1:])
        await cancelled(running)


@virtual
async def test_periodic_instance_that_dies_leaves_later_periods_to_the_others() -> None:
    """Its period is not run again; from the next one on the others share its part."""
    runs = Runs(MemoryServer())
    faulty = FaultyStore(MemoryStore(runs.server))
    async with (
        aiolock.connect(faulty) as a,
        aiolock.connect(runs.server) as b,
        aiolock.connect(runs.server) as c,
    ):

        async def never_ends() -> None:
            runs.log.append(("a", runs.period()))
            await asyncio.Event().wait()

        dying = asyncio.create_task(a.periodic("job", every=EVERY, ttl=10).run(never_ends))
        await asyncio.sleep(1)
        assert runs.log
        others = [
            asyncio.create_task(client.periodic("job", every=EVERY, ttl=10).run(runs.job(who)))
            for who, client in (("b", b), ("c", c))
        ]
        for what in ("renew", "release", "acquire"):
            faulty.refuse(what, math.inf)
        await asyncio.sleep(10 * EVERY)
        assert runs.periods() == sorted(set(runs.periods()))
        assert runs.log[0][0] == "a"
        shares = Counter(who for who, _ in runs.log[1:])
        assert set(shares) == {"b", "c"}
        assert shares["b"] + shares["c"] >= 9
        assert abs(shares["b"] - shares["c"]) <= 1
        await cancelled(dying, *others)


@virtual
async def test_periodic_run_longer_than_its_period_skips_the_periods_between() -> None:
    """The next run begins as soon as it ends, and what lay between is left out."""
    runs = Runs(MemoryServer())
    async with aiolock.connect(runs.server) as a, aiolock.connect(runs.server) as b:
        instances = [
            asyncio.create_task(client.periodic("job", every=EVERY).run(runs.job(who, lasts=150)))
            for who, client in (("a", a), ("b", b))
        ]
        await asyncio.sleep(20 * EVERY)
        periods = runs.periods()
        assert periods == sorted(set(periods))
        assert 7 <= len(periods) <= 9
        await cancelled(*instances)


@virtual
async def test_max_hold_of_a_periodic_cancels_a_run_that_takes_too_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A run that takes too long is cancelled, and another period is another run."""
    caplog.set_level(logging.WARNING, "aiolock")
    runs = Runs(MemoryServer())
    async with aiolock.connect(runs.server) as client:
        job = client.periodic("job", every=EVERY, max_hold=20, ttl=5)
        running = asyncio.create_task(job.run(runs.job("a", lasts=1000)))
        await asyncio.sleep(5 * EVERY)
        assert len(runs.log) in (5, 6)
        assert "max_hold" in caplog.text
        await cancelled(running)


@virtual
async def test_min_hold_of_a_periodic_sets_the_least_time_between_runs() -> None:
    """Two runs are at least so far apart, also where the period ends before."""
    runs = Runs(MemoryServer())
    async with aiolock.connect(runs.server) as client:
        job = client.periodic("job", every=EVERY, min_hold=150)
        running = asyncio.create_task(job.run(runs.job("a")))
        await asyncio.sleep(30 * EVERY)
        assert 10 <= len(runs.log) <= 12
        await cancelled(running)


@virtual
async def test_periodic_job_that_raises_is_logged_and_run_in_the_next_period(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a job raises is logged, and it runs again in the next period; not in this one."""
    runs = Runs(MemoryServer())
    async with aiolock.connect(runs.server) as client:

        async def job() -> None:
            await runs.job("a")()
            raise AcquireTimeout("of another lock")

        running = asyncio.create_task(client.periodic("job", every=EVERY).run(job))
        await asyncio.sleep(5 * EVERY)
        assert runs.periods() == sorted(set(runs.periods()))
        assert len(runs.log) in (5, 6)
        assert caplog.text.count("a run of 'job' failed") == len(runs.log)
        await cancelled(running)


@virtual
async def test_periodic_run_during_an_outage_retries_rarely_and_goes_on_after(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried again, ever more rarely, and the job goes on when the store is back."""
    runs = Runs(MemoryServer())
    faulty = FaultyStore(MemoryStore(runs.server))
    async with aiolock.connect(faulty) as client:
        running = asyncio.create_task(client.periodic("job", every=EVERY).run(runs.job("a")))
        await asyncio.sleep(1)
        faulty.refuse("acquire", math.inf)
        await asyncio.sleep(8 * EVERY)
        assert faulty.calls["acquire"] < 100
        assert "is still waited for" in caplog.text
        faulty.refuse("acquire", 0)
        await asyncio.sleep(EVERY)
        runs.log.clear()
        await asyncio.sleep(5 * EVERY)
        assert len(runs.log) in (5, 6)
        await cancelled(running)


PHASES = ["in the queue", "in a run", "between two runs", "before it tries again"]


@contextlib.asynccontextmanager
async def in_phase(
    phase: str,
) -> AsyncGenerator[tuple[MemoryServer, aiolock.LockClient, asyncio.Task[Any]]]:
    """A server, a client of it, and the task in which it runs a job, which is there just now."""
    server, begun = MemoryServer(), list[int]()
    store = FaultyStore(MemoryStore(server))

    async def job() -> None:
        begun.append(1)
        if phase == "in a run":
            await asyncio.Event().wait()

    async with aiolock.connect(server) as other, aiolock.connect(store) as client:
        async with contextlib.AsyncExitStack() as stack:
            if phase == "in the queue":
                await stack.enter_async_context(other.periodic("job", every=EVERY))
            if phase == "before it tries again":
                store.refuse("acquire", math.inf)
            running = asyncio.create_task(client.periodic("job", every=EVERY).run(job))
            await asyncio.sleep(2)
            assert len(begun) == (phase in ("in a run", "between two runs"))
            status = await other.periodic("job", every=EVERY).status()
            seen = len(status.holders), len(status.waiters), store.calls["acquire"] > 1
            assert (
                seen
                == {
                    "in the queue": (1, 1, False),
                    "in a run": (1, 0, False),
                    "between two runs": (0, 1, True),
                    "before it tries again": (0, 0, True),
                }[phase]
            )
            yield server, client, running
        store.refuse("acquire", 0)
        status = await other.periodic("job", every=EVERY).status()
        assert (status.holders, status.waiters) == ((), ())


@pytest.mark.parametrize("phase", PHASES)
@virtual
async def test_periodic_run_in_any_phase_ends_when_the_client_closes(phase: str) -> None:
    """Closing the client ends `run`, wherever it is, and nothing is left of it."""
    async with in_phase(phase) as (_, client, running):
        await client.aclose()
        with pytest.raises(ClientClosed):
            await running


@pytest.mark.parametrize("phase", PHASES)
@virtual
async def test_periodic_run_cancelled_in_any_phase_leaves_nothing(phase: str) -> None:
    """Cancelling it ends `run`, wherever it is, and nothing is left of it."""
    async with in_phase(phase) as (_, _, running):
        await cancelled(running)
        assert running.cancelled()


@virtual
async def test_periodic_run_whose_lease_is_broken_is_cancelled_and_the_next_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The run is cancelled, and said so; its period is not begun again, and the next one is."""
    runs = Runs(MemoryServer())
    async with aiolock.connect(runs.server) as client:
        job = client.periodic("job", every=EVERY)
        running = asyncio.create_task(job.run(runs.job("a", lasts=30)))
        await until(lambda: len(runs.log) > 1 and runs.running, within=3 * EVERY)
        before = len(runs.log)
        assert await job.break_()
        await asyncio.sleep(1)
        assert not runs.running
        assert "a run of 'job' was cancelled" in caplog.text
        await asyncio.sleep(3 * EVERY)
        assert runs.periods() == sorted(set(runs.periods()))
        assert len(runs.log) >= before + 2
        await cancelled(running)


@virtual
async def test_periodic_job_with_a_cancelled_task_fails_and_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That is a failure of the job, and not the end of `run`, which nobody has cancelled."""
    runs = Runs(MemoryServer())

    async def job() -> None:
        await runs.job("a")()
        helper = asyncio.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)
        helper.cancel()
        await helper

    async with aiolock.connect(runs.server) as client:
        running = asyncio.create_task(client.periodic("job", every=EVERY).run(job))
        await asyncio.sleep(5 * EVERY)
        assert len(runs.log) in (5, 6)
        assert caplog.text.count("a task that it awaits was cancelled") == len(runs.log)
        await cancelled(running)
        assert running.cancelled()


async def test_periodic_entered_again_waits_for_the_next_period(world: World) -> None:
    """Without `run`: `async with` for each run, on every store."""
    async with world.client() as client:
        job = client.periodic("job", every=0.1)
        assert (job.name, job.every) == ("job", 0.1)
        assert repr(job) == "<Periodic 'job' every=0.1>"
        fences = []
        for _ in range(5):
            async with job as lease:
                fences.append(lease.fence)
                assert (await job.status()).holders
        periods = [fence // 100_000 for fence in fences]
        assert len(set(periods)) == 5
        await asyncio.sleep((await job.status()).closed)


@virtual
async def test_periodic_entered_beyond_max_hold_raises_lease_lost() -> None:
    """A body that is entered by hand raises `LeaseLost`, as of any lock."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        job = client.periodic("job", every=EVERY, max_hold=5)
        with pytest.raises(LeaseLost, match="max_hold"):
            async with job:
                await asyncio.sleep(10)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"every": 0}, ValueError, "every"),
        ({"every": None}, TypeError, "every"),
        ({"every": "1"}, TypeError, "every"),
        ({"every": 1, "min_hold": -1}, ValueError, "min_hold"),
        ({"every": 1, "max_hold": 0}, ValueError, "max_hold"),
        ({"every": 1, "min_hold": 2, "max_hold": 1}, ValueError, "max_hold"),
    ],
)
async def test_periodic_with_invalid_options_raises_type_or_value_error(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    """What cannot be is refused at once, by the name that the caller knows it by."""
    async with aiolock.connect("memory://") as client:
        with pytest.raises(error, match=match):
            client.periodic("job", **options)


async def test_periodic_run_of_what_is_no_function_raises_at_once() -> None:
    """Not in each period, which would begin for nothing."""

    async def work() -> None:
        """Nothing."""

    called = work()
    async with aiolock.connect("memory://") as client:
        with pytest.raises(TypeError, match="job must be an async function, not <coroutine"):
            await client.periodic("job", every=60).run(called)  # type: ignore[arg-type]  # no ()
        assert not (await client.status("job", kind="periodic")).closed
    await called
