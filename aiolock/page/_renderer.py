"""Renders what viewers see: one view at a time, and for a part of the time only."""

from __future__ import annotations

import asyncio
from time import thread_time
from typing import Protocol

from aiolock.page._history import History
from aiolock.page._limits import Limits
from aiolock.page._look import Look
from aiolock.page._view import Wanted, rendered


class Looks(Protocol):
    """The source of the last look."""

    @property
    def look(self) -> Look:
        """The look that is shown."""
        ...

    @property
    def history(self) -> History:
        """The history of the last minutes."""
        ...


class Renderer:
    """Renders views of looks; those who want the same of one look get the same."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = asyncio.Lock()
        self._rests = 0.0
        """The time until which it renders nothing else, by the loop's clock."""

    async def view(self, looks: Looks, wanted: Wanted) -> tuple[Look, bytes]:
        """The last look, and what such a viewer sees of it."""
        if (found := looks.look.rendered.get(wanted)) is not None:
            return looks.look, found.data
        time = asyncio.get_running_loop().time
        async with self._lock:
            if (left := self._rests - time()) > 0:
                await asyncio.sleep(left)
            look = looks.look
            if (found := look.rendered.get(wanted)) is None:
                used = thread_time()
                found = await rendered(look, wanted, looks.history, self._limits)
                self._rests = time() + self._limits.share * (thread_time() - used)
                look.rendered[wanted] = found
                if len(look.rendered) > self._limits.viewers:
                    del look.rendered[next(iter(look.rendered))]
        return look, found.data

    async def forget(self, look: Look) -> None:
        """Forget a look that is not shown any more."""
        async with self._lock:
            await look.forget()
