"""The status of a name, and of all names of a prefix, read in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aiolock._turns import in_parts
from aiolock.protocol import FEW, Page, ReadPage, ReadStatus, Status
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres._calls import Call
from aiolock.stores.postgres._codec import number

_PAGE: Final = 200
"""Names on one page of a snapshot."""
_PARTIES: Final = 128
"""Waiters, or holders, that are read at one moment; a page of a snapshot has some more."""


class StatusReader:
    """Reads what is kept under a prefix."""

    def __init__(self, call: Callable[[Call], asyncio.Future[Any]], prefix: str) -> None:
        self._call = call
        self._prefix = prefix

    async def status(self, asked: ReadStatus) -> Status:
        """The status of one name; see `ReadStatus` for one of many parties."""
        if not asked.waiters:
            return await self._few(asked.name)
        part = await self._ask(asked.name, waiters=_PARTIES, holders=_PARTIES)
        return await self._read(asked.name, part)

    async def page(self, asked: ReadPage) -> Page:
        """Some names, with the status of each."""
        own = codec.key(self._prefix, "")
        behind = bytes.fromhex(asked.start) or own
        arguments = (codec.bytea(own), codec.bytea(behind), number(_PAGE), number(_PARTIES))
        found: codec.Parts = await self._call(Call("snapshot", "", arguments, _page))
        parts, more = found
        return Page([await self._read(part.status.name, part) for part in parts], more)

    async def _few(self, name: str) -> Status:
        part = await self._ask(name, holders=FEW)
        few = len(part.status.holders)
        return replace(part.status, more_holders=part.holding - few if few == FEW else 0)

    async def _read(self, name: str, part: codec.Part) -> Status:
        """The status that begins with this part."""
        waiters = [*part.status.waiters]
        if max(len(waiters), len(part.status.holders)) < _PARTIES:
            return part.status
        while len(part.status.waiters) == _PARTIES:
            part = await self._ask(name, waiters=_PARTIES, behind=part.last, before=len(waiters))
            waiters += part.status.waiters
        part = await self._ask(name, holders=_PARTIES)
        holders = [*part.status.holders]
        while len(part.status.holders) == _PARTIES:
            part = await self._ask(name, holders=_PARTIES, fence=holders[-1].fence)
            holders += part.status.holders
        return await in_parts(codec.joined(name, waiters, holders, part.status))

    async def _ask(
        self,
        name: str,
        *,
        waiters: int = 0,
        behind: tuple[int, str, int] = codec.FIRST,
        before: int = 0,
        holders: int = 0,
        fence: int = 0,
    ) -> codec.Part:
        """A part of the status: so many waiters behind a place, so many holders behind a fence."""
        ticket, client, seq = behind
        key = codec.bytea(codec.key(self._prefix, name))
        arguments = (
            *(key, number(waiters), number(ticket), client.encode(), number(seq)),
            *(number(holders), number(fence)),
        )
        part: codec.Part = await self._call(
            Call("status", name, arguments, partial(_part, name, before))
        )
        return part


def _page(text: str, _: bool) -> codec.Parts:  # noqa: FBT001  # as `Decode`
    return codec.page(text)


def _part(name: str, before: int, text: str, _: bool) -> codec.Part:  # noqa: FBT001  # as `Decode`
    return codec.part(name, text, before)
