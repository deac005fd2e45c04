"""Searches a store for deadlocks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from aiolock._engine.labels import labelled
from aiolock._engine.snapshot import snapshot
from aiolock._engine.wait_graph import cycles, lasting, stuck_on
from aiolock._turns import in_parts, let_go
from aiolock.observer import Deadlock
from aiolock.store import Status, Store

_SURE: Final = 0.5
"""Seconds between two looks at a possible deadlock."""
_TOGETHER: Final = 100
"""Names that are asked for at a time."""


async def find_deadlocks(store: Store) -> list[Deadlock]:
    """The deadlocks at a store: parties that hold and wait at two looks, one after the other.

    The second look asks only for the names that stuck tasks waited for at the first.
    """
    statuses = await labelled(store, await snapshot(store, "*", None))
    suspects = sorted(await in_parts(stuck_on(statuses)))
    if not suspects:
        await let_go(statuses)
        return []
    await asyncio.sleep(_SURE)
    again = list[Status]()
    for start in range(0, len(suspects), _TOGETHER):
        keys = suspects[start : start + _TOGETHER]
        found = await asyncio.gather(*(store.status(f"{kind}:{name}") for kind, name in keys))
        again += [
            replace(status, kind=kind, name=name)
            for (kind, name), status in zip(keys, found, strict=True)
        ]
    again = await labelled(store, again)
    both = await in_parts(lasting(statuses, again))
    deadlocks = await in_parts(cycles(both))
    for done in (statuses, again, both):
        await let_go(done)
    return deadlocks
