"""A store around another, to be changed where a test needs it."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from aiolock.protocol import Deliver, Operation
from aiolock.store import Store

Value = TypeVar("Value")


class Wrapped:
    """A store that does what the other store does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.features = store.features

    async def open(self, client: str, deliver: Deliver) -> None:
        await self._store.open(client, deliver)

    async def aclose(self) -> None:
        await self._store.aclose()

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        return self._store.submit(operation)
