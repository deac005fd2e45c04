"""The same small application in each web framework, and a real server for it in the test's loop.

Each has these routes, which answer with what `Bodies` says:

==============================  ==================================================
``POST /orders/{order}``        ``order:{order}``, with the body of the request
``POST /now/{order}``           ``order:{order}``, without waiting
``POST /few/{order}``           ``order:{order}``, where one may wait
``POST /search?q=``             ``search:{q}``, from the query
``POST /twice/{order}``         a mistake: it asks again for what it holds
``POST /stream/{order}``        ``order:{order}``, sent in two pieces
``POST /endless/{order}``       ``order:{order}``, sent on and on, for so long only
``POST /brief/{order}``         ``order:{order}``, ended before it is sent
==============================  ==================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import aiolock

PATIENCE = 60.0
"""Seconds: for ever, as tests go."""


@dataclass
class Bodies:
    """What the handlers do under their lock."""

    client: aiolock.LockClient
    patience: float = PATIENCE
    send_timeout: float | None = PATIENCE
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """Handlers wait for it."""
    entered: list[aiolock.Lease] = field(default_factory=list)
    left: int = 0
    inside: int = 0

    async def run(self, lease: aiolock.Lease, body: bytes = b"") -> dict[str, Any]:
        """Do it; two at once are an error."""
        self.inside += 1
        assert self.inside == 1
        self.entered.append(lease)
        try:
            await self.go.wait()
            await asyncio.sleep(0)
        finally:
            self.inside -= 1
            self.left += 1
        return {"name": lease.name, "fence": lease.fence, "body": body.decode()}

    async def stream(self, lease: aiolock.Lease) -> AsyncGenerator[bytes]:
        """Do it while a response is sent."""
        yield b"begun "
        self.entered.append(lease)
        try:
            await self.go.wait()
            yield lease.state.encode()
        finally:
            self.left += 1

    async def endless(self, lease: aiolock.Lease) -> AsyncGenerator[bytes]:
        """Send without end."""
        self.entered.append(lease)
        try:
            while True:
                yield b"x" * 65_536
                await asyncio.sleep(0)
        finally:
            self.left += 1

    async def twice(self, lease: aiolock.Lease) -> dict[str, Any]:
        """Wait for oneself, which is refused."""
        async with self.client.lock(lease.name):
            raise AssertionError
