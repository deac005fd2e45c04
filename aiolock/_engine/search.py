"""Looks for deadlocks at a store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from aiolock._engine.circles import circles, same, stuck_on
from aiolock._engine.labels import labelled
from aiolock._engine.snapshot import snapshot
from aiolock.observer import Deadlock
from aiolock.store import Status, Store

_SURE: Final = 0.5
"""Seconds between two looks at what may be one."""


async def find_deadlocks(store: Store) -> list[Deadlock]:
    """The deadlocks at a store: those that are there at two looks, one after the other.

    The second looks only at what those wait for that were stuck at the first.
    """
    statuses = await labelled(store, await snapshot(store, "*", None))
    suspects = circles(statuses)
    if not suspects:
        return []
    await asyncio.sleep(_SURE)
    again = list[Status]()
    for kind, name in sorted(stuck_on(statuses)):
        status = await store.status(f"{kind}:{name}")
        again.append(replace(status, kind=kind, name=name))
    return same(suspects, circles(await labelled(store, again)))
