"""The store of one client, in a database."""

from __future__ import annotations

import asyncio
import itertools
import re
from dataclasses import replace
from typing import Any, Final

from aiolock.copying import Uncopyable
from aiolock.protocol import Deliver, Operation, Resize
from aiolock.store import Features
from aiolock.stores._outcomes import closed
from aiolock.stores._protocols import both
from aiolock.stores.mysql._schema import PROTOCOL
from aiolock.stores.mysql._session import Session
from aiolock.stores.mysql._settings import Settings

_CLIENT: Final = re.compile(r"[\w-]{1,48}", re.ASCII)
"""A client's id: it is part of the names of the server's own locks."""


class MySQLStore(Uncopyable):
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

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        if self._session is None:
            return closed()
        if type(operation) is Resize:
            operation = replace(operation, token=f"{self._client}.{next(self._resizes)}")
        return self._session.submit(operation)
