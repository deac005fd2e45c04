"""The story: a sale without a lock, the same with aiolock, and with redis-py's `Lock`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from time import monotonic, monotonic_ns
from typing import Final, NamedTuple

from aiolock.cli.demo.figures import Act
from aiolock.cli.demo.options import Options
from aiolock.cli.demo.progress import Progress
from aiolock.cli.demo.stage import Stage, one_process, workers
from aiolock.cli.demo.worker import Order

_CLOSING: Final = 10.0
"""Seconds for which the sale under redis-py's `Lock` may last: it polls, which may take long."""


class Acts(NamedTuple):
    """The records of the acts."""

    without: Act
    ours: Act
    peer: Act | None
    """None without a Redis server."""


async def tell(options: Options, progress: Progress) -> Acts:
    """Play all acts: of the same size, and on the same store."""
    ours = Order("aiolock", options.items, options.requests)
    # As many requests as under a lock: one for each item, and each customer's last one, in vain.
    without = replace(ours, guard="nothing", requests=options.items + options.requests)
    peer = replace(ours, guard="redis-py", seconds=_CLOSING)
    async with _stage(options, progress) as stage:
        progress.line(options.title)
        progress.line("Each request reads the stock, does some work, and writes it back less one.")
        acts = Acts(
            without=await _act(stage, without, "Without a lock", progress),
            ours=await _act(stage, ours, "With aiolock", progress),
            peer=None,
        )
    if not options.on_redis:
        return acts
    # With new workers, because some of the others are dead.
    async with _stage(options, progress) as stage:
        title = f"With redis-py's own Lock, for {_CLOSING:.0f} s at most"
        return acts._replace(peer=await _act(stage, peer, title, progress))


def _stage(options: Options, progress: Progress) -> AbstractAsyncContextManager[Stage]:
    if options.in_memory:
        return one_process(options.ttl)
    progress.meanwhile("the worker processes start")
    tell_kill = progress.killed if options.kill else None
    return workers(options.url, options.workers, options.ttl, tell_kill)


async def _act(stage: Stage, order: Order, title: str, progress: Progress) -> Act:
    progress.begin(f"{title}, items: {order.items:,}", order.requests or order.items)
    await stage.shop.open(order.items)
    stage.visits.clear()
    before = await stage.commands()
    began = monotonic()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(_watch(stage, progress))
        kills = await stage.serve(order)
        watching.cancel()
    seconds = monotonic() - began
    ended = monotonic_ns()
    after = await stage.commands()
    sales = await stage.shop.sales()
    left = await stage.shop.stock()
    progress.line(f"  sold: {len(sales):,} of {order.items:,}")
    return Act(
        locked=order.guard != "nothing",
        items=order.items,
        left=left,
        sales=sales,
        visits=stage.visits.copy(),
        kills=kills,
        seconds=seconds,
        ended=ended,
        closed_after=order.seconds if left and seconds >= order.seconds else None,
        commands=None if before is None or after is None else after - before,
    )


async def _watch(stage: Stage, progress: Progress) -> None:
    while True:
        await asyncio.sleep(0.1)
        progress.show(sum(visit.sold for visit in stage.visits))
