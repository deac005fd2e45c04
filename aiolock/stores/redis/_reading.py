"""Reading a status in parts: the script answers with some of the participants at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiolock._turns import in_parts, turns
from aiolock.protocol import Status
from aiolock.stores.redis._replies import Seen

PARTIES: Final = 256
"""Holders, and waiters, that one answer of the server has at most: less than a millisecond."""
FIRST: Final = (PARTIES, "-inf", PARTIES, "", b"")
"""The limits of the first answer of a status."""
Ask = Callable[[int, str, int, str, bytes], asyncio.Future[Any]]
"""A function that asks for so many waiters from a ticket on, and so many holders from a lease end
on: of those that end then, only those behind that grant."""


async def read(seen: Seen, ask: Ask, first: asyncio.Future[Any]) -> Status:
    """The status of which this is the first answer; more answers, if it has many parties.

    The waiters come first then, and the holders after all of them: so a waiter that is granted the
    lock meanwhile is not missed.
    """
    take = turns().take
    reply = await first
    await take(1 + (len(reply[1]) + len(reply[2])) // 2)
    part = seen.read(reply)
    if max(part.waiters, part.holders) < PARTIES:
        return seen.status()
    most, at = PARTIES, part.ticket
    while part.waiters == most:
        reply = await ask(most, at, 0, "", b"")
        await take(len(reply[2]) // 2)
        part = seen.read(reply)
        # As many may have one score: then more are read from there.
        most, at = (2 * most, at) if part.ticket == at else (PARTIES, part.ticket)
    await _read_holders(seen, ask)
    return await in_parts(seen.in_parts())


async def read_holders(seen: Seen, ask: Ask) -> Status:
    """The status without the waiters."""
    await _read_holders(seen, ask)
    return await in_parts(seen.in_parts())


async def _read_holders(seen: Seen, ask: Ask) -> None:
    seen.begin_holders()
    end, grant = "", b""
    while True:
        reply = await ask(0, "-inf", PARTIES, end, grant)
        await turns().take(len(reply[1]) // 2)
        part = seen.read(reply)
        if part.holders < PARTIES:
            return
        end, grant = part.end, part.grant
