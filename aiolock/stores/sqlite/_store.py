"""The store of one client, in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiolock.copying import Uncopyable
from aiolock.protocol import Deliver, Operation
from aiolock.store import Features
from aiolock.stores._outcomes import closed
from aiolock.stores._protocols import both
from aiolock.stores.sqlite._connection import VERSION
from aiolock.stores.sqlite._session import Session


class SQLiteStore(Uncopyable):
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

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        return closed() if self._session is None else self._session.submit(operation)
