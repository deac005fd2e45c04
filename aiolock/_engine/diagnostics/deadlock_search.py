"""The search for deadlocks across all clients of a store: reads statuses, and asks `wait_graph`.

A snapshot is not of one moment, so a cycle found in it may never have existed. A second look
confirms it: a holder or waiter that is there at both looks was there all the time in between.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiolock._engine.diagnostics.labels import labelled
from aiolock._engine.diagnostics.snapshot import snapshot
from aiolock._engine.diagnostics.wait_graph import cycles, lasting, stuck_on
from aiolock._turns import clear_in_parts, in_parts
from aiolock.observer import Deadlock
from aiolock.protocol import ReadStatus, Status
from aiolock.status import named
from aiolock.store import Store

_SURE: Final = 0.5
"""Seconds between the two looks at a possible deadlock."""
_TOGETHER: Final = 100
"""Names that are asked for at a time."""


async def find_deadlocks(store: Store) -> list[Deadlock]:
    """The deadlocks at a store, among holders and waiters that are there at both of two looks.

    The second look reads only the names that stuck tasks waited for at the first.
    """
    statuses = await labelled(store, await snapshot(store, "*", None))
    suspects = sorted(await in_parts(stuck_on(statuses)))
    if not suspects:
        await clear_in_parts(statuses)
        return []
    await asyncio.sleep(_SURE)
    again = list[Status]()
    for start in range(0, len(suspects), _TOGETHER):
        keys = suspects[start : start + _TOGETHER]
        found = await asyncio.gather(
            *(store.submit(ReadStatus(f"{kind}:{name}")) for kind, name in keys)
        )
        again += [
            named(status, kind, name) for (kind, name), status in zip(keys, found, strict=True)
        ]
    again = await labelled(store, again)
    both = await in_parts(lasting(statuses, again))
    deadlocks = await in_parts(cycles(both))
    for done in (statuses, again, both):
        await clear_in_parts(done)
    return deadlocks
