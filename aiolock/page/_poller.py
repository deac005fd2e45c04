"""The poller: looks at the store while there are viewers, once for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import thread_time
from typing import Final

import anyio

from aiolock import ClientClosed, LockClient, StoreError
from aiolock.page._glance import glance
from aiolock.page._history import History
from aiolock.page._http import Refused
from aiolock.page._limits import Limits
from aiolock.page._look import Look, seen, still, totals
from aiolock.page._renderer import Renderer
from aiolock.page._view import Wanted

_log: Final = logging.getLogger("aiolock")


class Poller:
    """Keeps the last look. The first viewer starts the polling, and the last one ends it."""

    def __init__(self, client: LockClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._search: asyncio.Task[None] | None = None
        """The last search for deadlocks."""
        self._glances: asyncio.Task[None] | None = None
        self._viewers = 0
        self._next = 0.0
        self._next_deadlocks = 0.0
        self._fresh = 0
        """The last version from before this run of polling."""
        self._nudged = asyncio.Event()
        self._changed = asyncio.Event()
        self._renderer = Renderer(limits)
        self.look = Look(0, 0.0)
        self.history = History(limits)
        self.looks = False
        """Whether a look is under way."""
        self.ended = False
        """Whether the page has ended, so that no viewer may watch."""

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Count a viewer; `Refused` if there are too many."""
        if self.ended:
            raise Refused(503, "this page is closed")
        if self._viewers >= self._limits.viewers:
            raise Refused(503, f"{self._viewers} are watching, and no more may")
        if not self._viewers:
            self._start()
        self._viewers += 1
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                await self._stop()

    async def first(self) -> Look:
        """The last look while the next is not due; else the next, if it comes soon."""
        if self.look.closed:  # checking whether it still is costs nothing
            self.nudge()
            await self.newer(self.look.version, self._limits.first)
        elif not self.look.is_one or self._next <= self.now():
            await self.newer(self._fresh, self._limits.first)
        return self.look

    async def newer(self, version: int, timeout: float) -> Look | None:
        """A look after that version; None if there is none in this time, or the page has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.look.version <= version and not self.ended:
                    await self._changed.wait()
        return self.look if self.look.version > version else None

    async def view(self, wanted: Wanted) -> tuple[Look, bytes]:
        """The last look, and what such a viewer sees of it."""
        return await self._renderer.view(self, wanted)

    def nudge(self) -> None:
        """Look at once: something was changed."""
        self._nudged.set()

    def now(self) -> float:
        """The loop's clock."""
        return asyncio.get_running_loop().time()

    def end(self) -> None:
        """End all watching, for good."""
        self.ended = True
        self._wake_viewers()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the application was restarted, with another clock
            self._loop = loop
            self._next = self._next_deadlocks = 0.0
            self._nudged, self._changed = asyncio.Event(), asyncio.Event()
            self._renderer = Renderer(self._limits)
            self._search = None
            self.look = Look(self.look.version + 1, loop.time())
            self.history = History(self._limits)
        self._fresh = self.look.version
        self._task = loop.create_task(self._run(), name="aiolock page")
        self._glances = loop.create_task(self._keep_glancing(), name="aiolock page, glances")

    async def _stop(self) -> None:
        all_ = self._task, self._search, self._glances
        tasks = [task for task in all_ if task is not None]
        self._task = self._glances = None
        for task in tasks:
            task.cancel()
        if tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next):
                    await self._nudged.wait()
            self._nudged.clear()
            # Set first, because this look may be cut short when the last viewer leaves.
            self._next = self.now() + self._limits.every
            self.looks = True
            try:
                await self._look()
            except ClientClosed as error:
                self._failed(str(error), closed=True)
            except StoreError as error:
                self._failed(str(error))
            except Exception:  # noqa: BLE001  # otherwise no viewer would hear of it
                _log.exception("aiolock: the page could not look at the locks")
                self._failed("the page could not look at the locks: the log of the server says why")
            finally:
                self.looks = False

    async def _look(self) -> None:
        limits = self._limits
        began, used = self.now(), thread_time()
        found = await self._client.snapshot()
        at = self.now()
        took = at - began
        locks = await seen(found)
        total = await totals(locks.values())
        await self.history.add(at, total, locks)
        known = self.look.deadlocks
        lasting = await still(known, locks)
        # A store that has much to do is spared for a while; what it does grows with our own work.
        rest = max(limits.every - took, min(took, limits.every))
        pause = max(rest, limits.share * (thread_time() - used))
        self._next = self.now() + min(pause, limits.slowest)
        before = self.look
        if before.deadlocks is not known:  # a search has ended meanwhile
            lasting = before.deadlocks
        every = self._next - began
        self._show(Look(before.version + 1, at, took, every, locks, total, lasting))
        await self._renderer.forget(before)
        # One that is cancelled before its first step could not say itself that it has ended.
        searches = self._search is not None and not self._search.done()
        if total.waiting > 1 and self._next_deadlocks <= at and not searches:
            self._search = asyncio.create_task(self._look_for_deadlocks())

    async def _look_for_deadlocks(self) -> None:
        """Beside the looks, for it takes longer than one of them."""
        limits = self._limits
        began, used = self.now(), thread_time()
        try:
            found = tuple(await self._client.deadlocks())
        except (ClientClosed, StoreError):
            return  # the next look shows that
        except Exception:  # noqa: BLE001  # nobody waits for this task
            _log.exception("aiolock: the page could not look for deadlocks")
            return
        finally:
            wait = max(self.now() - began, limits.share * (thread_time() - used))
            self._next_deadlocks = self.now() + max(limits.deadlocks_every, wait)
        if found != self.look.deadlocks:
            again = replace(self.look, version=self.look.version + 1, deadlocks=found, rendered={})
            self._show(again)

    async def _keep_glancing(self) -> None:
        """Show the rows as they are now, while the last look is older than it should be."""
        every = self._limits.every
        while True:
            await asyncio.sleep(every)
            before = self.look
            if before.rendered and not before.error and self.now() - before.at > 2 * every:
                again = await glance(self._client, before, self.history, self._limits)
                if self.look is before:
                    self._show(again)

    def _failed(self, why: str, *, closed: bool = False) -> None:
        self._next = self.now() + self._limits.every
        version = self.look.version + 1
        self._show(replace(self.look, version=version, error=why, closed=closed, rendered={}))

    def _show(self, look: Look) -> None:
        self.look = look
        self._wake_viewers()

    def _wake_viewers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
