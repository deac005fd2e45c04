"""The whole client on the memory store, in virtual time, in thousands of shuffled schedules.

A seed decides everything: what the tasks do, what is lost on the way, and in which order what is
ready runs. A failure names its seed, and ``run_schedule(seed)`` is that run again.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import aiolock
from aiolock import LockClient
from aiolock.errors import LockError, QueueFull, StoreError
from aiolock.store import Answer, Inbox, Renewal, Status
from aiolock.stores.memory import MemoryServer, MemoryStore
from tests.virtual import VirtualLoop

NAMES = ("stock", "user", "semaphore:pool")
PERMITS = 3


class Server(MemoryServer):
    """A memory server that loses pushes, and writes down whom it granted what."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.lossy = True
        self.broken: set[int] = set()

    def now(self) -> int:
        return 1_800_000_000_000_000 + int(asyncio.get_running_loop().time() * 1e6)

    def push(self, client: str, deliver: Callable[[Inbox], None]) -> int:
        if self.lossy and client in self._inboxes and self.dice.random() < 0.05:
            # As when the subscription breaks: heard by the server, not by the client, which
            # notices and is told that pushes may have been missed.
            inbox = self._inboxes[client]
            asyncio.get_running_loop().call_later(self.dice.random(), self._again, client, inbox)
            return 1
        return super().push(client, deliver)

    def break_(self, name: str, fences: Sequence[int]) -> int:
        self.broken.update(fences)
        return super().break_(name, fences)

    def _again(self, client: str, inbox: Inbox) -> None:
        if self._inboxes.get(client) is inbox:
            inbox.reconnected()


class Store(MemoryStore):
    """A link that is slow, may die with its client, and loses replies (as errors: nobody knows)."""

    def __init__(self, server: Server, dice: random.Random) -> None:
        super().__init__(server)
        self.dice = dice
        self.dead = False

    def _soon(self, answer: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        lost = self.server.lossy and self.dice.random() < 0.02  # type: ignore[attr-defined]
        delay = self.dice.choice([0.0, 0.0, 0.001, 0.05])

        def arrive() -> None:
            if not future.done():
                if lost:
                    future.set_exception(StoreError("the reply was lost"))
                else:
                    future.set_result(answer)

        self._loop.call_later(delay, arrive)
        return future

    def _never(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def acquire(self, *args: Any, **options: Any) -> asyncio.Future[Answer]:
        return self._never() if self.dead else super().acquire(*args, **options)

    def release(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        return self._never() if self.dead else super().release(name, waiter, fence)

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        return self._never() if self.dead else super().renew(renewals)

    def status(self, name: str) -> asyncio.Future[Status]:
        return self._never() if self.dead else super().status(name)

    def downgrade(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        return self._never() if self.dead else super().downgrade(name, waiter, fence)


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
        self.tasks: list[asyncio.Task[None]] = []

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

    def entrance(self, client: LockClient) -> tuple[aiolock.Acquisition, bool, int]:
        """What one task asks for: whether it shares it, and how many permits it is."""
        dice = self.dice
        options: dict[str, Any] = {
            "ttl": dice.choice([0.5, 2.0, 20.0]),
            "renew": dice.random() < 0.8,
            "max_hold": dice.choice([None, None, 0.3]),
            "max_waiters": dice.choice([None, None, None, 5]),
        }
        timeout = dice.choice([None, 0.0, 0.05, 1.0, 5.0])
        name = dice.choice(NAMES)
        kind = dice.choice(["lock", "lock", "read", "read", "write"])
        if name == "semaphore:pool":
            permits = dice.choice([1, 1, 2, PERMITS])
            pool = client.semaphore("pool", PERMITS, **options)
            return pool.acquire(permits, timeout=timeout), True, permits
        if kind == "lock":
            return client.lock(name, **options).acquire(timeout=timeout), False, 0
        rates = client.rwlock(name, **options)
        part = rates.read() if kind == "read" else rates.write()
        return part.acquire(timeout=timeout), kind == "read", 0

    async def visit(self, client: LockClient) -> None:
        """One task: take a lock somehow, stay for a while, leave somehow."""
        dice = self.dice
        stay = dice.choice([0.0, 0.0, 0.01, 0.2, 1.0])
        try:
            entrance, shared, permits = self.entrance(client)
            async with entrance as lease:
                body = Inside(lease, shared, permits)
                self.enter(body)
                try:
                    await asyncio.sleep(stay)
                    if lease._hold.policy.downgrades and dice.random() < 0.5:
                        body.shared = True  # from before it is sent
                        await lease.downgrade()
                        await asyncio.sleep(stay)
                    if dice.random() < 0.03 and not permits:
                        await client.lock(lease.name).break_()
                finally:
                    self.leave(body)
            self.count("left")
        except aiolock.AcquireTimeout:
            self.count("timed out")
        except QueueFull:
            self.count("full")
        except aiolock.LeaseLost:
            self.count("lost")
        except StoreError:
            self.count("nobody knows")
        except aiolock.ClientClosed:
            self.count("closed")
        except asyncio.CancelledError:
            self.count("cancelled")

    def start(self, client: LockClient, mine: list[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(self.visit(client))
        mine.append(task)
        self.tasks.append(task)

    async def live(self) -> None:
        """The life of one client: tasks come, some are cancelled; it may die, or be closed."""
        dice = self.dice
        store = Store(self.server, dice)
        client = aiolock.connect(store)
        await client.open()
        mine: list[asyncio.Task[None]] = []
        for _ in range(dice.randrange(2, 10)):
            self.start(client, mine)
            await asyncio.sleep(dice.choice([0.0, 0.01, 0.3]))
            if dice.random() < 0.3:
                dice.choice(mine).cancel()
        if dice.random() < 0.2:
            # Killed: it sends and hears nothing more, and its bodies stop where they are.
            store.dead = True
            self.server.leave(client.id)
            for task in mine:
                task.cancel()
            for inside in self.inside.values():
                ours = client._room.keeper
                inside[:] = [body for body in inside if body.lease._keeper is not ours]
            await asyncio.wait(mine)
            client._room.keeper.holds.clear()
            if client._room.keeper._timer is not None:
                client._room.keeper._timer.cancel()
            return
        if dice.random() < 0.8:
            await asyncio.wait(mine)
        await client.aclose()
        await asyncio.wait(mine)
        room = client._room
        left = (room._waiters, room._lines, room.keeper.holds, room.keeper.owned)
        assert left == ({}, {}, {}, {})

    async def run(self) -> None:
        """Let some clients live, then see that the locks are free and nothing is left."""
        await asyncio.gather(*(self.live() for _ in range(self.dice.randrange(2, 5))))
        for task in self.tasks:
            assert task.cancelled() or task.exception() is None, task
        self.server.lossy = False
        async with aiolock.connect(self.server) as last:
            # The longest that anybody can be in the way: a lease of 20 s, each of the dead.
            for name in NAMES[:2]:
                async with last.lock(name, timeout=200).acquire():
                    pass
            async with last.semaphore("pool", PERMITS, timeout=200).acquire(PERMITS):
                pass
        assert self.server.names() == []


def run_schedule(seed: int) -> dict[str, int]:
    """One run; what became of its visits."""
    random.seed(seed)  # the keeper's jitter
    loop = VirtualLoop(seed)
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
    return world.outcomes


SCHEDULES = 2_000


@pytest.mark.parametrize("part", range(4))
def test_thousands_of_schedules(part: int) -> None:
    """In each: no two bodies at once, fences increase, everybody's wait ends, nothing is left."""
    total: dict[str, int] = {}
    for seed in range(part * SCHEDULES // 4, (part + 1) * SCHEDULES // 4):
        for outcome, times in run_schedule(seed).items():
            total[outcome] = total.get(outcome, 0) + times
    assert set(total) == {
        "left",
        "timed out",
        "full",
        "lost",
        "nobody knows",
        "cancelled",
        "closed",
    }, "every kind of end has come up"
    assert issubclass(aiolock.LeaseLost, LockError)
