"""The store of one client, in a database."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from typing import Any, Final

from aiolock.protocol import Deliver, Page
from aiolock.store import Features
from aiolock.stores._operations import Operation, Operations, Steps
from aiolock.stores._outcomes import refusal
from aiolock.stores._protocols import both
from aiolock.stores.mysql._schema import PROTOCOL
from aiolock.stores.mysql._session import Session
from aiolock.stores.mysql._settings import Settings
from aiolock.stores.mysql._transaction import Transaction

_CLIENT: Final = re.compile(r"[\w-]{1,48}", re.ASCII)
"""A client's id: it is part of the names of the server's own locks."""


class MySQLStore(Operations):
    """Locks in one MySQL or MariaDB database, through two connections and two threads."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        self._client = ""
        self._resizes = itertools.count(1)
        self._session: Session | None = None
        self.features = Features(protocols=self._protocols)

    def _protocols(self) -> tuple[int, ...]:
        return both(PROTOCOL, self._session.protocol if self._session is not None else PROTOCOL)

    def __repr__(self) -> str:
        return f"<MySQLStore {self._settings.where} prefix={self._prefix!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        if not _CLIENT.fullmatch(client):
            raise ValueError(f"a client is up to 48 letters, digits, _ and -, not {client!r}")
        self._client = client
        session = Session(self._settings, self._prefix, client, deliver)
        await session.open()
        self._session = session

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.stop()
            await session.ended()

    def _token(self) -> str:
        return f"{self._client}.{next(self._resizes)}"

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
