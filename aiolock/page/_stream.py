"""The stream of one viewer: server-sent events; it gets the latest state that it can take."""

from __future__ import annotations

import asyncio
import math
from typing import Final

import anyio

from aiolock.page._guard import HEADERS
from aiolock.page._http import Receive, Refused, Send, begin
from aiolock.page._limits import Limits
from aiolock.page._look import Look
from aiolock.page._poller import Poller
from aiolock.page._view import Wanted, dumped

_RETRY: Final = b"retry: 500\n\n"
"""Milliseconds after which a browser asks for the next stream."""
_BEAT: Final = b": still here\n\n"


async def stream(
    poller: Poller, wanted: Wanted, receive: Receive, send: Send, limits: Limits
) -> None:
    """Send changes until the viewer is gone, its time is over, or there is nothing to see."""
    async with poller.watched():
        look = await poller.first()
        if look.closed:
            raise Refused(503, look.error)
        viewer = _Viewer(poller, wanted, send, limits)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
            await viewer.serve(look)
            tasks.cancel_scope.cancel()


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class _Viewer:
    """One viewer."""

    def __init__(self, poller: Poller, wanted: Wanted, send: Send, limits: Limits) -> None:
        self._poller = poller
        self._wanted = wanted
        self._send = send
        self._limits = limits
        self._sent = -math.inf
        """The time up to which the viewer knows the history."""

    async def serve(self, look: Look) -> None:
        poller, limits = self._poller, self._limits
        end = poller.now() + limits.stream
        try:
            await begin(self._send, 200, [("Content-Type", "text/event-stream"), *HEADERS, *_OURS])
            await self._write(_RETRY)
            version = look.version
            if look.is_one:
                version = await self._show()
            while not (poller.ended or poller.look.closed):
                left = end - poller.now()
                if left <= 0 and not poller.looks:  # wait for a look that takes long
                    break
                beat = limits.heartbeat
                newer = await poller.newer(version, min(left, beat) if left > 0 else beat)
                if newer is not None:
                    version = await self._show()
                elif not poller.ended:
                    await self._write(_BEAT)
            await self._send({"type": "http.response.body", "body": b""})
        except (OSError, TimeoutError):
            return  # the viewer is gone, or does not accept data

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(self._limits.patience):
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _show(self) -> int:
        """Send the last look; returns its version.

        That is the view, which is the same for all who want the same, and this viewer's news.
        """
        poller = self._poller
        look, view = await poller.view(self._wanted)
        now = poller.now()
        points = poller.history.since(self._sent)
        times = {
            "age": round(now - look.at, 2),
            "every": round(look.every, 2),
            "all": self._sent < 0,
            "points": [
                [round(now - at, 2), held, waiting, round(longest, 2)]
                for at, held, waiting, longest in points
            ],
        }
        self._sent = points[-1].at if points else max(self._sent, 0.0)
        await self._write(
            b"event: view\ndata: %b\n\nevent: times\ndata: %b\n\n" % (view, dumped(times))
        )
        return look.version


_OURS: Final = (("X-Accel-Buffering", "no"),)
"""Tells proxies to pass data on at once."""
