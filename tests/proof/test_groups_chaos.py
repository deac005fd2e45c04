"""Shards in real processes that are started, killed, stopped and ended, on a real Redis."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from contextlib import AsyncExitStack

import pytest

from tests.support.children.sharer import SHARDS
from tests.support.procs import Worker
from tests.support.servers import RedisServer

TTL = 2.0
STEPS = 10
MOST = 5


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
async def test_shards_of_killed_and_stopped_processes_are_held_by_one_at_a_time(
    own_server: RedisServer, seed: int
) -> None:
    """Once a fence of a shard was used, no lower one is; in the end, all are held, evenly."""
    dice = random.Random(seed)
    workers, all_workers = list[Worker](), list[Worker]()
    async with asyncio.timeout(100), AsyncExitStack() as stack:

        async def start() -> None:
            module = "tests.support.children.sharer"
            worker = Worker("-m", module, own_server.url, f"chaos-{seed}", str(TTL))
            workers.append(await stack.enter_async_context(worker))
            all_workers.append(worker)

        for _ in range(3):
            await start()
        await settled(workers)
        for _ in range(STEPS):
            worker = dice.choice(workers)
            what = dice.choice(["start", "kill", "end", "pause"])
            if what == "start" or len(workers) < 3:
                if len(workers) < MOST:
                    await start()
            elif what == "pause":
                worker.stop()
                await asyncio.sleep(dice.uniform(0.5, 2 * TTL))
                worker.cont()
            elif what == "kill":
                workers.remove(worker)
                worker.kill()
            else:
                workers.remove(worker)
                await worker.ask_to_end()
            await asyncio.sleep(dice.uniform(0, 1.5))
        await settled(workers)
        for worker in workers:
            await worker.ask_to_end()
        for worker in workers:
            assert await worker.wait() == 0
    check_fences(all_workers)


def check_fences(workers: list[Worker]) -> None:
    """Once a fence of a shard was used, by a lease that certainly lasted, no lower one is."""
    said = sorted(
        (message["t"], message["shard"], message["fence"])
        for worker in workers
        for message in worker.history
        if message["event"] == "holds"
    )
    highest = defaultdict[int, int](int)
    for _, shard, fence in said:
        assert fence >= highest[shard], f"shard {shard}"
        highest[shard] = fence
    assert len(highest) == SHARDS


async def settled(workers: list[Worker]) -> None:
    """Wait until all shards are held by these, and nobody has more than its part."""
    most = math.ceil(SHARDS / len(workers))
    async with asyncio.timeout(30):
        while True:
            held = [
                shard
                for worker in workers
                for shard, event in last_events(worker)
                if event == "holds"
            ]
            sizes = [
                sum(event == "holds" for _, event in last_events(worker)) for worker in workers
            ]
            if len(held) == len(set(held)) == SHARDS and max(sizes) <= most:
                return
            await asyncio.sleep(0.1)


def last_events(worker: Worker) -> list[tuple[int, str]]:
    """For each shard that a worker had, whether it holds it, as far as it has said."""
    last = {message["shard"]: message["event"] for message in worker.history if "shard" in message}
    return [*last.items()]
