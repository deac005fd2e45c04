"""The whole client on the memory store, in virtual time, in hundreds of shuffled schedules.

A seed decides everything: what the tasks do, what is lost on the way, and in which order what is
ready runs. A failure names its seed, and ``run_schedule(seed)`` is that run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import aiolock
from aiolock import LockClient
from aiolock.errors import LockError, QueueFull, StoreError
from aiolock.protocol import ReadStatus
from tests.proof.ledger import Ledger
from tests.proof.simulated import LATE_AFTER, LATE_WITHIN, Refuses, Server, Store
from tests.support import virtual
from tests.support.selection import ON_THE_TREE
from tests.support.worlds import abandon

NAMES = ("stock", "user", "pool", "boss", "job", "task")
PERMITS = 3
EVERY = 2.0
REMEMBER = 1.0
LONGEST_TTL = 30.0
"""Of all that is asked for here: an observer has the usual one."""


class Done(Exception):
    """It was done before."""


ENDS: tuple[tuple[type[BaseException], str], ...] = (
    (Done, "done before"),
    (aiolock.AcquireTimeout, "timed out"),
    (QueueFull, "full"),
    (aiolock.LeaseLost, "lost"),
    (StoreError, "nobody knows"),
    (aiolock.ClientClosed, "closed"),
    (asyncio.CancelledError, "cancelled"),
)
"""How a visit ends that raises; anything else is an error."""


@dataclass(eq=False)
class Inside:
    """A body that runs, and how much of the lock is its own."""

    lease: aiolock.Lease
    shared: bool
    permits: int


class World:
    """Some clients, their tasks, and what must hold at every moment."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.server = Server(self.dice)
        self.inside: dict[str, list[Inside]] = {name: [] for name in NAMES}
        self.fences: dict[tuple[str, bool], int] = defaultdict(int)  # the highest, by who shared
        self.outcomes: dict[str, int] = {}
        self.seen: list[list[int]] = []  # the leaders' fences, as each observer has seen them
        self.runs: set[int] = set()  # the periods of the job that were begun
        self.done_until = 0.0  # until when it is certainly remembered that the task is done
        self.tasks: list[asyncio.Task[None]] = []
        self.watches: list[asyncio.Task[None]] = []

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def enter(self, body: Inside) -> None:
        lease, name = body.lease, body.lease.name
        taken = body.permits
        for other in self.inside[name]:
            # Whoever breaks a lock lets two in until the first has heard of it.
            told = other.lease.state == "lost" or other.lease.fence in self.server.broken
            taken += 0 if told else other.permits
            beside = body.shared and other.shared
            assert told or beside, f"{lease} entered while {other.lease} was inside"
        assert taken <= PERMITS, "there are more permits than there are"
        for shared in (False, True):
            if not (shared and body.shared):
                last = self.fences[name, shared]
                assert lease.fence > last, "fences increase in the order of entry"
        key = name, body.shared
        self.fences[key] = max(self.fences[key], lease.fence)
        self.inside[name].append(body)

    def leave(self, body: Inside) -> None:
        if body in self.inside[body.lease.name]:  # or its client is dead
            self.inside[body.lease.name].remove(body)

    def entrance(
        self, client: LockClient, pool: aiolock.Semaphore
    ) -> tuple[AbstractAsyncContextManager[aiolock.Lease], bool, int]:
        """What one task asks for: whether it shares it, and how many permits it is."""
        dice = self.dice
        options: dict[str, Any] = {
            "ttl": dice.choice([0.5, 2.0, 20.0]),
            "renew": dice.random() < 0.8,
            "max_hold": dice.choice([None, None, 0.3]),
            "max_waiters": dice.choice([None, None, None, 2]),
        }
        timeout = dice.choice([None, 0.0, 0.05, 1.0, 5.0])
        name = dice.choices(NAMES, (4, 3, 4, 1, 2, 2))[0]
        shares: dict[str, Any] = {}
        if dice.random() < 0.3:
            shares = {"share": dice.choice("abc"), "weight": dice.choice([0.5, 1, 3])}
        kind = dice.choice(["lock", "lock", "read", "read", "write"])
        if name == "pool" and dice.random() < 0.3:
            return pool, True, 1  # one object for all the tasks
        if name == "pool":
            permits = dice.choice([1, 1, 2, PERMITS])
            pool = client.semaphore("pool", PERMITS, **options, **shares)
            return pool.acquire(permits, timeout=timeout), True, permits
        if name == "boss":
            return _led(client.election("boss", ttl=options["ttl"]), timeout), False, 0
        if name == "task":
            return _to_be_done(client.once("task", remember=REMEMBER)), False, 0
        if kind == "lock" or name == "job":
            job = client.periodic("job", every=EVERY, ttl=options["ttl"])
            lock = client.lock(name, **options, **shares)
            return job if name == "job" else lock.acquire(timeout=timeout), False, 0
        rates = client.rwlock(name, **options)
        part = rates.read() if kind == "read" else rates.write()
        return part.acquire(timeout=timeout), kind == "read", 0

    async def stay(self, client: LockClient, body: Inside) -> None:
        """In the body."""
        dice, lease = self.dice, body.lease
        stay = dice.choice([0.0, 0.0, 0.01, 0.2, 1.0])
        self.enter(body)
        try:
            await asyncio.sleep(stay)
            if lease._hold.policy.downgrades and dice.random() < 0.5:
                body.shared = True  # from before it is sent
                await lease.downgrade()
                await asyncio.sleep(stay)
            if dice.random() < 0.1 and lease._hold.policy.kind == "lock":
                await client.lock(lease.name).request_release()
            if dice.random() < 0.03 and lease._hold.policy.kind == "lock":
                await client.lock(lease.name).break_()
        finally:
            self.leave(body)

    def begin(self, lease: aiolock.Lease) -> None:
        """A run of the job begins: the first of its period."""
        period = lease.fence // round(EVERY * 1e6)
        assert period not in self.runs, "a job is run once in each period"
        self.runs.add(period)

    async def visit(self, client: LockClient, pool: aiolock.Semaphore) -> None:
        """One task: take a lock somehow, stay for a while, leave somehow."""
        try:
            entrance, shared, permits = self.entrance(client, pool)
            if entrance is pool and self.dice.random() < 0.5:
                async for lease in _thrown_away(pool):
                    await self.stay(client, Inside(lease, shared, permits))
                    break
            else:
                await self.pass_through(client, entrance, shared, permits)
            self.count("left")
        except (Done, LockError, asyncio.CancelledError) as error:
            self.count(next(end for kind, end in ENDS if isinstance(error, kind)))

    async def pass_through(
        self,
        client: LockClient,
        entrance: AbstractAsyncContextManager[aiolock.Lease],
        shared: bool,
        permits: int,
    ) -> None:
        """Enter it, and leave it."""
        loop = asyncio.get_running_loop()
        async with entrance as lease:
            if lease.name == "job":
                self.begin(lease)
            if lease.name == "task":
                assert loop.time() >= self.done_until, "it is done, and that is remembered"
            await self.stay(client, Inside(lease, shared, permits))
            ended = loop.time()
        if lease.name == "task":
            self.done_until = ended + REMEMBER

    async def observe(self, client: LockClient, seen: list[int], *, slow: bool) -> None:
        """Watch who is elected, from before the trouble until after it."""
        while True:
            last = 0
            with contextlib.suppress(StoreError):
                async with aclosing(client.election("boss").observe()) as leaders:
                    async for leader in leaders:
                        assert leader.fence > last, "an earlier leader after a later one"
                        last = leader.fence
                        seen.append(last)
                        await asyncio.sleep(self.dice.uniform(0, 2) if slow else 0)
            await asyncio.sleep(0.1)

    async def refuse(self) -> None:
        """The server answers nobody as he wants, for a while."""
        if self.dice.random() < 0.3:
            await asyncio.sleep(self.dice.uniform(0, 2))
            self.server.refuses = self.dice.choice([Refuses.WRITES, Refuses.EVERYTHING])
            await asyncio.sleep(self.dice.uniform(0, 2))
            self.server.refuses = Refuses.NOTHING

    async def resize(self, client: LockClient) -> None:
        """There are fewer permits for a while."""
        pool = client.semaphore("pool", PERMITS)
        for limit in (PERMITS - 1, PERMITS):
            await asyncio.sleep(self.dice.uniform(0, 1))
            while True:
                with contextlib.suppress(StoreError):
                    await pool.resize(limit)
                    break
                await asyncio.sleep(LATE_AFTER)  # until then it may still be carried out

    def start(
        self, client: LockClient, pool: aiolock.Semaphore, mine: list[asyncio.Task[None]]
    ) -> None:
        task = asyncio.create_task(self.visit(client, pool))
        mine.append(task)
        self.tasks.append(task)

    async def live(self) -> None:
        """The life of one client: tasks come, some are cancelled; it may die, or be closed."""
        dice = self.dice
        store = Store(self.server, dice)
        trips = dice.random() < 0.1
        ledger = Ledger(lambda: trips and dice.random() < 0.5)
        client = aiolock.connect(store, observer=ledger)
        await client.open()
        # What is thrown away cannot be cancelled by a loss: its body is elsewhere.
        pool = client.semaphore("pool", PERMITS, ttl=2.0, on_lost="signal")
        mine: list[asyncio.Task[None]] = []
        for _ in range(dice.randrange(2, 10)):
            self.start(client, pool, mine)
            await asyncio.sleep(dice.choice([0.0, 0.01, 0.3]))
            if dice.random() < 0.3:
                dice.choice(mine).cancel()
        if dice.random() < 0.2:
            await self.kill(store, client, mine)
            return
        if dice.random() < 0.8:
            await asyncio.wait(mine)
        await self.close(client, mine, ledger)

    async def kill(self, store: Store, client: LockClient, mine: list[asyncio.Task[None]]) -> None:
        """It sends and hears nothing more, and its bodies stop where they are."""
        store.dead = True
        self.server.leave(client.id)
        for task in mine:
            task.cancel()
        for inside in self.inside.values():
            ours = client._engine.watchdog
            inside[:] = [body for body in inside if body.lease._watchdog is not ours]
        await asyncio.wait(mine)
        abandon(client)

    async def close(
        self, client: LockClient, mine: list[asyncio.Task[None]], ledger: Ledger
    ) -> None:
        """Close it, whatever its tasks do; nothing is left in it, and whoever observed knows."""
        await client.aclose()
        await asyncio.wait(mine)
        engine = client._engine
        left = (
            engine.waiters.acquisitions,
            engine.waiters._queues,
            engine.watchdog.holds,
            engine.watchdog.owned,
        )
        assert left == ({}, {}, {}, {})
        assert (ledger.wrong, ledger.left) == ([], [])

    async def run(self) -> None:
        """Let some clients live, then see that the locks are free and nothing is left."""
        watcher = aiolock.connect(Store(self.server, self.dice))
        await watcher.open()
        for number in range(2):
            self.seen.append([])
            observing = self.observe(watcher, self.seen[-1], slow=number > 0)
            self.watches.append(asyncio.create_task(observing))
        lives = (self.live() for _ in range(self.dice.randrange(2, 5)))
        await asyncio.gather(self.refuse(), self.resize(watcher), *lives)
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None, task
        self.server.lossy = False
        await asyncio.sleep(LATE_WITHIN + 1)  # until the last copy has come
        assert self.server.ghosts == []
        await self.calm()
        for watch in self.watches:
            assert not watch.done(), watch
            watch.cancel()
        await asyncio.wait(self.watches)
        await watcher.aclose()
        # What was posted for the observers alone is not asked for again when it is not heard.
        await asyncio.sleep(LONGEST_TTL + 1)
        left = [self.seen_at(key) for key in self.server.names()]
        assert not any(left), left

    def seen_at(self, key: str) -> tuple[object, ...]:
        """Who holds it or waits, by the server; not whether it is closed for a while."""
        status = self.server.run(ReadStatus(key))
        return (*status.holders, *status.waiters)

    async def _all_have_seen(self, fence: int) -> None:
        while any(fence not in seen for seen in self.seen):  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.1)

    async def calm(self) -> None:
        """Everything can be taken, whoever watches sees who leads, and no period is left out."""
        async with aiolock.connect(self.server) as last:
            # The longest that anybody can be in the way: a lease of 20 s, each of the dead.
            for name in NAMES[:2]:
                async with last.lock(name, timeout=200).acquire():
                    pass
            async with last.semaphore("pool", PERMITS, timeout=200).acquire(PERMITS):
                pass
            async with last.election("boss").campaign("last", timeout=200) as term:
                async with asyncio.timeout(5):  # the slow one may be busy
                    await self._all_have_seen(term.fence)
            async with last.once("task", remember=REMEMBER, timeout=200) as lease:
                assert lease is not None, "that it was done is forgotten by now"
            job = last.periodic("job", every=EVERY)
            async with job as lease:
                self.begin(lease)
            first = max(self.runs)
            for _ in range(2):
                async with job as lease:
                    self.begin(lease)
            assert max(self.runs) == first + 2, "somebody was there in each period"


@asynccontextmanager
async def _led(
    election: aiolock.Election, timeout: float | None
) -> AsyncGenerator[aiolock.Lease, None]:
    async with election.campaign(timeout=timeout) as term:
        yield term.lease


@asynccontextmanager
async def _to_be_done(once: aiolock.Once) -> AsyncGenerator[aiolock.Lease, None]:
    async with once as lease:
        if lease is None:
            raise Done
        yield lease


async def _thrown_away(pool: aiolock.Semaphore) -> AsyncGenerator[aiolock.Lease, None]:
    """What a body is in that nobody leaves: the event loop closes it, in a task of its own."""
    async with pool as lease:
        yield lease


def run_schedule(seed: int) -> dict[str, int]:
    """One run; what became of its visits."""
    random.seed(seed)  # the watchdog's jitter
    loop = virtual.new_loop(seed)
    world = World(seed)
    try:
        loop.run_until_complete(world.run())
    except BaseException as error:
        error.add_note(f"in the schedule of seed {seed}")
        raise
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    late = {f"late {command}": times for command, times in world.server.late.items()}
    refused = {"copies that were refused": world.server.refused} if world.server.refused else {}
    return world.outcomes | late | refused


SCHEDULES = range(0, 400 if ON_THE_TREE else 200, 200)
"""The first seeds of the parts, each with enough for every kind of end."""
COMMANDS = (
    *("Acquire", "Release", "Renew", "ReadStatus", "Finish", "RequestRelease", "Downgrade"),
    *("Resize", "Post", "ReadPosted", "Break"),
)
"""Each comes late in each part; `ReportHandoff`, which is seldom sent here, in
`test_simulation_runs`.
"""


@pytest.mark.long
@pytest.mark.parametrize("first", SCHEDULES)
def test_simulation_in_hundreds_of_schedules_keeps_every_promise(first: int) -> None:
    """In each: no two bodies at once, fences increase, everybody's wait ends, nothing is left."""
    total: dict[str, int] = {}
    for seed in range(first, first + SCHEDULES.step):
        for outcome, times in run_schedule(seed).items():
            total[outcome] = total.get(outcome, 0) + times
    assert set(total) - {"late ReportHandoff"} == {
        "left",
        "timed out",
        "full",
        "lost",
        "nobody knows",
        "cancelled",
        "closed",
        "done before",
        "copies that were refused",
        *(f"late {command}" for command in COMMANDS),
    }, "every kind of end has come up, and each command came late"
