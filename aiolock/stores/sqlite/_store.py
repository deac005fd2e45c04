"""The store of one client, in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiolock.protocol import Deliver, Page
from aiolock.store import Features
from aiolock.stores._operations import Operation, Operations, Steps
from aiolock.stores._outcomes import refusal
from aiolock.stores._protocols import both
from aiolock.stores.sqlite._connection import VERSION
from aiolock.stores.sqlite._session import Session
from aiolock.stores.sqlite._transaction import Transaction


class SQLiteStore(Operations):
    """Locks in one SQLite file, for the processes of one machine."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._session: Session | None = None
        self.features = Features(protocols=self._protocols)

    def _protocols(self) -> tuple[int, ...]:
        return both(VERSION, self._session.protocol if self._session is not None else VERSION)

    def __repr__(self) -> str:
        return f"<SQLiteStore {self._path} prefix={self._prefix!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        session = Session(self._path, self._prefix, client, deliver)
        await session.open()
        self._session = session

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.stop()
            await session.ended()

    def _call(self, operation: Operation) -> asyncio.Future[Any]:
        if self._session is not None:
            return self._session.call(operation)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(refusal("the store is closed"))
        return future

    def _call_each(self, operations: Sequence[Operation]) -> asyncio.Future[list[Any]]:
        if self._session is None:
            return super()._call_each(operations)
        return self._session.call_each(operations)

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        def read(steps: Steps) -> Page:
            assert isinstance(steps, Transaction)
            return steps.snapshot(start)

        return self._call(Operation((), read))
