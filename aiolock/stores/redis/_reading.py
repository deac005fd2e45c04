"""Reading a status in parts: the script answers with some of the participants at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from aiolock._turns import at_once, in_parts, turns
from aiolock.errors import StoreError
from aiolock.protocol import FEW, Page, Status
from aiolock.stores.redis._called import Called
from aiolock.stores.redis._errors import code_of
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._replies import Listed
from aiolock.stores.redis._scripts import LIST, STATUS, bulk
from aiolock.stores.redis._status import Part, Seen

PARTIES: Final = 256
"""Holders, and waiters, that one answer of the server has at most: less than a millisecond."""
FIRST: Final = (PARTIES, "-inf", PARTIES, "", b"")
"""The limits of the first answer of a status."""
_PAGE: Final = 1000
"""Keys that the server looks at for each page of names: less than a millisecond."""
_FOREIGN: Final = "WRONGTYPE"
"""The error for a key that has a name of ours, but that others have written."""
_ASKED: Final = 3
"""Units of work to ask for a status: see `Turns`."""


class Parts(Protocol):
    """The parts of one name's status that were read."""

    @property
    def name(self) -> str: ...

    def read(self, reply: Any, /) -> Part:
        """Add what an answer says."""
        ...

    def begin_holders(self) -> None:
        """Read the holders once more, from the first on."""

    def in_parts(self) -> Generator[int, None, Status]:
        """The status of all that was read, part by part."""
        ...


class StatusReader:
    """Reads the statuses of the names at one server."""

    def __init__(self, pipe: Pipeline, names: Names, own_keys: Callable[[], Sequence[str]]) -> None:
        """``own_keys`` gives the keys of the server itself: see `Presence`."""
        self._pipe = pipe
        self._names = names
        self._own_keys = own_keys
        self._channels = bulk(names.channels)

    async def status(self, name: str, *, waiters: bool) -> Status:
        """The status; without ``waiters``, as of `ReadStatus`."""
        if waiters:
            return await self.read(Seen(name), self.ask(name, *FIRST))
        seen = Seen(name)
        part = seen.read(await self.ask(name, 0, "-inf", FEW, "", b""))
        return replace(seen.status(), more_holders=seen.holding - part.holders)

    async def page(self, start: str) -> Page:
        """The status of some names, from ``start`` on."""
        cursor, keys = await self.list(start)
        asked, statuses = dict[str, asyncio.Future[Any]](), list[Status]()
        try:
            for key in keys:
                name = self._names.name(key)
                if name not in asked:
                    await turns().take(_ASKED)
                    asked[name] = self.ask(name, *FIRST)
            for name, first in asked.items():
                try:
                    statuses.append(await self.read(Seen(name), first))
                except StoreError as error:
                    cause = error.__cause__
                    if not isinstance(cause, Exception) or code_of(cause) != _FOREIGN:
                        raise
        finally:
            for first in asked.values():
                if not first.cancel() and not first.cancelled():
                    first.exception()  # it is raised for the first of them
        return Page(statuses, "" if cursor == "0" else cursor)

    def list(self, start: str, reply: Called | None = None) -> asyncio.Future[Listed]:
        """Some of the keys of names, from ``start`` on."""
        own = self._own_keys()
        values = (len(own), *own, start or 0, self._names.pattern, _PAGE)
        return self._pipe.call(LIST, len(values), b"".join(map(bulk, values)), reply=reply)

    def ask(  # noqa: PLR0917  # in the order of the script's arguments
        self, name: str, waiters: int, ticket: str, holders: int, end: str, grant: bytes
    ) -> asyncio.Future[Any]:
        """Ask for so many waiters from a ticket on, and so many holders from a lease end on.

        Of the holders whose leases end then, only those behind that grant.
        """
        keys = b"".join(map(bulk, (2, *self._names.keys(name)[:2])))
        most = b"".join(map(bulk, (waiters, ticket, holders, end, grant)))
        return self._pipe.call(STATUS, 9, keys + self._channels + most)

    async def read(self, seen: Parts, first: asyncio.Future[Any]) -> Status:
        """The status of which this is the first answer; more answers, if it has many parties.

        The waiters come first then, and the holders after all of them: so a waiter that is granted
        the lock meanwhile is not missed.
        """
        name, take = seen.name, turns().take
        reply = await first
        await take(1 + (len(reply[1]) + len(reply[2])) // 2)
        part = seen.read(reply)
        if max(part.waiters, part.holders) < PARTIES:
            return at_once(seen.in_parts())
        most, at = PARTIES, part.ticket
        while part.waiters == most:
            reply = await self.ask(name, most, at, 0, "", b"")
            await take(len(reply[2]) // 2)
            part = seen.read(reply)
            # As many may have one score: then more are read from there.
            most, at = (2 * most, at) if part.ticket == at else (PARTIES, part.ticket)
        return await self.read_holders(seen)

    async def read_holders(self, seen: Parts) -> Status:
        """The status with all holders, and with the waiters that were read before."""
        ask = partial(self.ask, seen.name, 0, "-inf", PARTIES)
        seen.begin_holders()
        end, grant = "", b""
        while True:
            reply = await ask(end, grant)
            await turns().take(len(reply[1]) // 2)
            part = seen.read(reply)
            if part.holders < PARTIES:
                return await in_parts(seen.in_parts())
            end, grant = part.end, part.grant
