"""The store of one client, in etcd."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import Any, Final

from aiolock.copying import Uncopyable
from aiolock.protocol import Deliver, Operation
from aiolock.store import Features
from aiolock.stores._outcomes import closed
from aiolock.stores._protocols import both
from aiolock.stores.etcd._attempt import wall_clock
from aiolock.stores.etcd._keys import PROTOCOL
from aiolock.stores.etcd._session import Session
from aiolock.stores.etcd._settings import Settings

_CLIENT: Final = re.compile(r"[\w-]{1,48}", re.ASCII)
"""A client's id: it is a part of keys."""


class EtcdStore(Uncopyable):
    """Locks in an etcd cluster, through one connection to one of its servers at a time."""

    def __init__(
        self, settings: Settings, prefix: str, clock: Callable[[], int] = wall_clock
    ) -> None:
        if f"/v{PROTOCOL}" in f"/{settings.folder}{prefix}":
            raise ValueError(
                f"the path of an etcd URL, and the prefix, have no /v{PROTOCOL} in them"
            )
        self._settings, self._prefix, self._clock = settings, prefix, clock
        self._session: Session | None = None
        self._pid = os.getpid()
        self.features = Features(protocols=self._protocols)

    @staticmethod
    def _protocols() -> tuple[int, ...]:
        return both(PROTOCOL, PROTOCOL)

    def __repr__(self) -> str:
        return f"<EtcdStore {self._settings.where} prefix={self._prefix!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        if not _CLIENT.fullmatch(client):
            raise ValueError(f"a client is up to 48 letters, digits, _ and -, not {client!r}")
        session = Session(self._settings, self._prefix, client, deliver, self._clock)
        await session.open()
        self._session, self._pid = session, os.getpid()

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        if self._session is None or self._pid != os.getpid():
            return closed()
        return self._session.submit(operation)
