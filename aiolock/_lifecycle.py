"""The openings and closings of a client: one at a time, whoever asks for it.

Each runs in a task of its own, for which those that asked for it wait: so the cancellation of one
of them neither ends the opening that others wait for, nor stops a closing.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, Final

import anyio

from aiolock._engine.engine import Engine, State
from aiolock.async_library import check_asyncio
from aiolock.errors import ClientClosed

_AT_REST: Final = (State.NEW, State.CLOSED)


class Lifecycle:
    """Opens and closes the engine of one client."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.opening: asyncio.Task[None] | None = None
        """The last; it may have ended."""
        self._openers = 0
        self._wanted = False
        """Whether any call of `open` has succeeded since the last opening began."""
        self.closing: asyncio.Task[None] | None = None
        """The last, which may have ended as well."""

    async def open(self) -> None:
        """See `LockClient.open`."""
        engine = self._engine
        check_asyncio()
        if engine.state not in _AT_REST and engine.loop_is_gone:
            self._forget()
        if engine.state not in _AT_REST:
            engine.watchdog.check_here()
            if _runs(self.closing):
                await self.aclose(asyncio.current_task())  # wait until that under way has ended
        if engine.is_open:
            self._wanted = True
            return
        # `opening` may be a task that has ended. It is not reset at its end, because an eager task
        # may end before it is stored there.
        opening = self.opening
        if opening is not None and not opening.done() and opening.cancelling():
            await asyncio.wait([opening])  # its last caller has given up
            await self.open()
            return
        if opening is None or opening.done():
            engine.begin()
            self._wanted = False
            # In a context of its own: the tasks and timers that it starts serve all tasks, and
            # outlive this one.
            opening = self.opening = asyncio.create_task(
                engine.open(), name="aiolock open", context=Context()
            )
            opening.add_done_callback(_seen)
        self._openers += 1
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            await asyncio.shield(opening)
            self._wanted = True
        except asyncio.CancelledError:
            if opening.cancelled() and (task is None or task.cancelling() == before):
                raise ClientClosed(
                    "this client was closed while it was being opened", closed=True
                ) from None
            if self._openers == 1 and not self._wanted:
                await self._abandon_opening(opening)
            raise
        finally:
            self._openers -= 1

    async def _abandon_opening(self, opening: asyncio.Task[None]) -> None:
        """The last caller that waited was cancelled: cancel the opening, or close the client."""
        opening.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([opening])
        if self._engine.is_open:
            await self.aclose(asyncio.current_task())

    async def aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Close it for this task, whose own bodies are not waited for."""
        engine = self._engine
        if engine.state in _AT_REST:
            return
        if engine.loop_is_gone:
            self._forget()
            return
        engine.watchdog.check_here()
        closing = self.closing
        if closing is None or closing.done():
            close = self._close(caller)
            closing = self.closing = asyncio.create_task(close, name="aiolock close")
        with anyio.CancelScope(shield=True):
            await asyncio.shield(closing)

    def _forget(self) -> None:
        """Its connections ended with its loop, and what it held is not renewed any more."""
        self._engine.forget()
        self.closing = self.opening = None

    async def _close(self, caller: asyncio.Task[Any] | None) -> None:
        opening = self.opening
        if opening is not None and not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
            # Also if it was cancelled before its first step: then `Engine.open` has not run at all.
            self._engine.state = State.CLOSED
        if self._engine.state is State.OPEN:
            await self._engine.aclose(caller)


def _runs(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()


def _seen(opening: asyncio.Task[None]) -> None:
    if not opening.cancelled():
        opening.exception()  # the caller that waits raises it; asyncio must not log it as well
