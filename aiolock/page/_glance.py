"""Glances: between two looks at all locks, those at the top of what viewers see are read again.

A look takes long where there are many locks, or where the store is far away.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiolock import LockClient, Status
from aiolock.page._history import History
from aiolock.page._limits import Limits
from aiolock.page._look import Look, Seen, seen
from aiolock.page._view import with_rows


async def glance(client: LockClient, look: Look, history: History, limits: Limits) -> Look:
    """The look, with the rows at the top of each view as they are now. It must be shown at once.

    A lock that is free by now keeps its row, without a holder; the next look leaves it out.
    """
    views = list(look.rendered.items())
    keys = {lock.key for _, view in views for lock in view.rows.locks[: limits.glanced]}
    found = await asyncio.gather(
        *(client.status(name, kind=kind) for kind, name in keys),
        return_exceptions=True,  # what fails stays as it was, and the next look says why
    )
    fresh = await seen(each for each in found if isinstance(each, Status))

    def now(lock: Seen) -> Seen:
        return fresh.get(lock.key, lock)

    again = replace(look, version=look.version + 1, rendered={})
    for wanted, view in views:
        rows = view.rows._replace(locks=[now(lock) for lock in view.rows.locks])
        again.rendered[wanted] = with_rows(again, rows, history, limits)
        await asyncio.sleep(0)
    return again
