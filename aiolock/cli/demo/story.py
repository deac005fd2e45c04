"""The story, in two acts: a sale that nothing guards, and the same under the lock."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Final

from aiolock.cli.demo.figures import Act
from aiolock.cli.demo.options import Options
from aiolock.cli.demo.progress import Progress
from aiolock.cli.demo.stage import Stage, one_process, workers
from aiolock.cli.demo.worker import Order

_FIRST_ACT: Final = 500
"""Items of the first act, at most: the point is soon made."""


async def tell(options: Options, progress: Progress) -> tuple[Act, Act]:
    """Play both acts."""
    few = min(options.items, _FIRST_ACT)
    async with _stage(options, progress) as stage:
        progress.line(options.title)
        progress.begin(f"Without a lock, items: {few:,}", 2 * few, "requests")
        first = await _act(
            stage,
            Order(locked=False, items=few, at_once=options.requests, requests=2 * few),
            progress,
        )
        progress.begin(f"With the lock, items: {options.items:,}", options.items, "sold")
        second = await _act(
            stage, Order(locked=True, items=options.items, at_once=options.requests), progress
        )
    return first, second


def _stage(options: Options, progress: Progress) -> AbstractAsyncContextManager[Stage]:
    if options.in_memory:
        return one_process(options.ttl)
    tell_kill = progress.killed if options.kill else None
    return workers(options.url, options.workers, options.ttl, tell_kill)


async def _act(stage: Stage, order: Order, progress: Progress) -> Act:
    await stage.shop.open(order.items)
    stage.visits.clear()
    before = await stage.commands()
    began = monotonic()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(_watch(stage, progress))
        kills = await stage.serve(order)
        watching.cancel()
    seconds = monotonic() - began
    after = await stage.commands()
    sales = await stage.shop.sales()
    progress.line(f"  requests: {len(stage.visits):,}, sold: {len(sales):,} of {order.items:,}")
    return Act(
        locked=order.locked,
        items=order.items,
        left=await stage.shop.stock(),
        sales=sales,
        visits=stage.visits.copy(),
        kills=kills,
        seconds=seconds,
        commands=None if before is None or after is None else after - before,
    )


async def _watch(stage: Stage, progress: Progress) -> None:
    while True:
        await asyncio.sleep(0.1)
        progress.show(sum(visit.sold for visit in stage.visits))
