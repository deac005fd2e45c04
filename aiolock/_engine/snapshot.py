"""The statuses of everything that is held or waited for at a store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from aiolock.store import Status, Store

_BREATH: Final = 0.005
"""Seconds between two pages, so that others can use the store: a file has no fair queue."""


async def snapshot(store: Store, pattern: str, kind: str | None) -> list[Status]:
    """The statuses of what is held or waited for, of these names and this kind; in order."""
    found = dict[tuple[str, str], Status]()
    start = ""
    while True:
        page = await store.snapshot(start)
        for status in page.statuses:
            # The kind ends with the first colon; see `Policy.key`.
            its_kind, _, name = status.name.partition(":")
            if not (status.holders or status.waiters):
                continue  # a name that is only closed or remembered is left out
            if kind in (None, its_kind) and fnmatchcase(name, pattern):
                found[its_kind, name] = replace(status, kind=its_kind, name=name)
        start = page.more
        if not start:
            return [found[key] for key in sorted(found)]
        await asyncio.sleep(_BREATH)
