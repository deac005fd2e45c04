"""Snapshots: the statuses of everything that is held or waited for at a store, page by page."""

from __future__ import annotations

import asyncio
import heapq
from fnmatch import translate
from operator import attrgetter
from re import compile as compiled
from typing import Final

from aiolock._rate import shown
from aiolock._turns import turns
from aiolock.kinds import NEWS
from aiolock.protocol import ReadPage, Status
from aiolock.status import named
from aiolock.store import Store

_PAUSE: Final = 0.005
"""Seconds between two pages, so that other clients can use the store: a file has no fair queue."""

_by_name: Final = attrgetter("kind", "name")


async def snapshot(store: Store, pattern: str, kind: str | None) -> list[Status]:
    """The statuses of the names that match and are held or waited for, sorted by kind and name."""
    pages = list[list[Status]]()
    matches = compiled(translate(pattern)).match
    take = turns().take
    start = ""
    while True:
        page = await store.submit(ReadPage(start))
        found = list[Status]()
        for status in page.statuses:
            await take()
            # The kind ends with the first colon; see `Policy.key`.
            its_kind, _, name = status.name.partition(":")
            if not (status.holders or status.waiters):
                continue  # a name that is only closed or remembered is left out
            if (its_kind not in NEWS if kind is None else its_kind == kind) and matches(name):
                found.append(shown(named(status, its_kind, name)))
        found.sort(key=_by_name)
        pages.append(found)
        start = page.more
        if not start:
            break
        await asyncio.sleep(_PAUSE)
    merged = list[Status]()
    for status in heapq.merge(*pages, key=_by_name):
        await take()
        # A name may be on two pages, if it changed between them: the later one counts.
        if merged and _by_name(merged[-1]) == _by_name(status):
            merged[-1] = status
        else:
            merged.append(status)
    return merged
