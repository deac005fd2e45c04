"""The token of a user, asked for when it is first needed, and again when it has become invalid."""

from __future__ import annotations

import asyncio

from aiolock.stores.etcd._connection import Connection, Metadata
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._messages import authenticate_request
from aiolock.stores.etcd._replies import read_token
from aiolock.stores.etcd._settings import Settings


class Login:
    """The login of one client; without a user there is no token."""

    def __init__(self, settings: Settings) -> None:
        self._user, self._password = settings.user, settings.password
        self._token = ""
        self._asking = asyncio.Lock()
        self._needed = bool(self._user)

    def __repr__(self) -> str:
        return f"<Login {self._user!r}>"

    async def metadata(self, connection: Connection, seconds: float) -> Metadata:
        """What each call has to carry; `CallError` if there is no token to be had."""
        if self._needed and not self._token:
            async with self._asking:
                if not self._token:
                    await self._ask(connection, seconds)
        return (("token", self._token),) if self._token else ()

    async def _ask(self, connection: Connection, seconds: float) -> None:
        request = authenticate_request(self._user, self._password)
        try:
            reply = await connection.call("Auth/Authenticate", request, seconds)
        except CallError as error:
            # As etcd's own clients: a login is no error where everybody may do everything.
            if "authentication is not enabled" not in str(error):
                raise
            self._needed = False
        else:
            self._token = read_token(reply)

    def forget(self, used: Metadata) -> None:
        """The token that was used is invalid: it has expired, or the servers have restarted."""
        if used == (("token", self._token),):
            self._token = ""
