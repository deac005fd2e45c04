"""Groups and shards on the memory store, in virtual time, in shuffled schedules with faults.

Workers join, end, are killed, and are removed although they live, while replies and pushes are
lost, links are dropped, and the server refuses. At every moment, no shard has two bodies, and the
fences of a shard rise. Once there are no more faults, all see the same members, and each shard is
held by the member that it is for.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import suppress

import pytest

import aiolock
from aiolock import GroupChange, Joined, Left, LockError, Members, Shard
from aiolock._locks.placement import placed
from aiolock._turns import at_once
from tests.proof.simulated import Refuses, Server, Store
from tests.support import virtual
from tests.support.worlds import abandon

SHARDS = 12
STEPS = 14
CALM = 90.0
"""Seconds without faults, after which all is at its place."""


class Worker:
    """One process: its client, its part of the shards, and the changes that it has seen."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = Store(world.server, world.dice)
        self.client = aiolock.connect(self.store)
        self.dead = False
        self.seen: list[GroupChange] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take part, and watch."""
        await self.client.open()
        self.tasks = [asyncio.create_task(self._take_part()), asyncio.create_task(self._watch())]

    async def _take_part(self) -> None:
        while not self.dead:
            with suppress(LockError):
                await self.client.shards("t", SHARDS, ttl=6).run(self._serve, grace=20)
            await asyncio.sleep(1)

    async def _watch(self) -> None:
        while not self.dead:
            with suppress(LockError):
                async for change in self.client.group("t", ttl=6).watch():
                    if isinstance(change, Members):
                        self.seen.clear()
                    self.seen.append(change)
            await asyncio.sleep(1)

    async def _serve(self, shard: Shard) -> None:
        if self.dead:
            return
        world = self.world
        world.begins(self, shard)
        try:
            if world.dice.random() < 0.1:  # does not give up by itself
                await asyncio.get_running_loop().create_future()
            await shard.giving_up.wait()
            await asyncio.sleep(world.dice.choice([0.0, 0.3]))
        finally:
            world.ends(self, shard)

    def kill(self) -> None:
        """Its process is killed: nothing of it counts any more."""
        self.dead = self.store.dead = True
        self.world.server.leave(self.client.id)
        for index in [at for at, worker in self.world.held.items() if worker is self]:
            del self.world.held[index]

    async def stop(self) -> None:
        """End in good order, or what is left of a process that was killed."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        if self.dead:
            abandon(self.client)
        else:
            await self.client.aclose()


class World:
    """The workers, and what must hold at every moment."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.server = Server(self.dice)
        self.workers: list[Worker] = []
        self.gone: list[Worker] = []
        self.held: dict[int, Worker] = {}
        self.fences = defaultdict[int, int](int)
        self.bodies = 0

    def begins(self, worker: Worker, shard: Shard) -> None:
        """A body begins."""
        other = self.held.get(shard.index)
        assert other is None, f"two bodies of shard {shard.index}"
        assert shard.fence > self.fences[shard.index]
        self.held[shard.index], self.fences[shard.index] = worker, shard.fence
        self.bodies += 1

    def ends(self, worker: Worker, shard: Shard) -> None:
        """A body ends."""
        if self.held.get(shard.index) is worker:
            del self.held[shard.index]

    async def step(self) -> None:
        """Do one of the things that happen."""
        what = self.dice.choice(["join", "join", "stop", "kill", "remove", "refuse", "wait"])
        if what == "join" and len(self.workers) < 5:
            worker = Worker(self)
            self.workers.append(worker)
            await worker.start()
        elif what in {"stop", "kill"} and len(self.workers) > 1:
            worker = self.workers.pop(self.dice.randrange(len(self.workers)))
            if what == "kill":
                worker.kill()
                self.gone.append(worker)
            else:
                await worker.stop()
        elif what == "remove":
            with suppress(LockError):
                group = self.dice.choice(self.workers).client.group("t", ttl=6)
                if members := await group.members():
                    await group.break_(self.dice.choice(members).fence)
        elif what == "refuse":
            self.server.refuses = self.dice.choice([Refuses.WRITES, Refuses.EVERYTHING])
            await asyncio.sleep(self.dice.uniform(0, 3))
            self.server.refuses = Refuses.NOTHING
        await asyncio.sleep(self.dice.choice([0.0, 0.05, 1.0, self.dice.uniform(0, 8)]))

    async def run(self) -> None:
        """Some steps with faults, and then a while without."""
        for _ in range(2):
            self.workers.append(Worker(self))
            await self.workers[-1].start()
        for _ in range(STEPS):
            await self.step()
        self.server.lossy = False
        await asyncio.sleep(CALM)
        await self.check()
        for worker in [*self.workers, *self.gone]:
            await worker.stop()
        assert not self.server.wrong

    async def check(self) -> None:
        """All is at its place."""
        group = self.workers[0].client.group("t", ttl=6)
        members = await group.members()
        assert Counter(each.client for each in members) == Counter(
            worker.client.id for worker in self.workers
        )
        owners = at_once(placed("t", SHARDS, [member.id for member in members]))
        by_id = {member.id: member.client for member in members}
        now = {index: worker.client.id for index, worker in self.held.items()}
        assert now == {index: by_id[owner] for index, owner in enumerate(owners)}
        for worker in self.workers:
            last = worker.seen[-1]
            assert [each.id for each in last.members] == [each.id for each in members]
            epochs = [change.epoch for change in worker.seen]
            assert epochs == sorted(epochs)
            here = {each.id for each in worker.seen[0].members}
            for change in worker.seen[1:]:
                if isinstance(change, Joined):
                    assert change.member.id not in here
                elif isinstance(change, Left):
                    assert change.member.id in here
                here = {each.id for each in change.members}


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_shards_have_one_body_each_and_come_to_their_places_in_any_schedule(part: int) -> None:
    """Whatever is lost, whoever is killed or removed, and in whichever order things happen."""
    bodies = 0
    for seed in range(25 * part, 25 * part + 25):
        world = World(seed)
        try:
            virtual.run(world.run(), seed)
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
        bodies += world.bodies
    assert bodies > 25 * SHARDS
