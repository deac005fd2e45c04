"""What all members have of a name: its status, the pages of all names, and breaking a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aiolock._turns import in_parts, turns
from aiolock.protocol import BREAK_UNKNOWN, FEW, Page, Participant, Status, WaiterId
from aiolock.stores._member import Member, OnReply
from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._statuses import merging, numbered
from aiolock.stores.quorum._table import AcquisitionTable

_TOGETHER: Final = 32
"""Statuses of a snapshot that are asked for at a time."""
_ASKED: Final = 30
"""Units of work to ask all members for one status: see `Turns`."""


class Inspection:
    """Locks of any client, as all members have them."""

    def __init__(self, membership: Membership, table: AcquisitionTable) -> None:
        """``table``: for the members, a lock that was handed off is still another waiter's."""
        self._membership = membership
        self._table = table

    async def status(self, name: str, *, waiters: bool = True) -> Status:
        """See `ReadStatus`."""
        membership = self._membership
        said: dict[int, Status] = await membership.ask(
            lambda member, on_reply: member.status(name, on_reply, waiters=waiters), dict
        )
        now = membership.clocks.now(membership.time()) / 1e6
        found = await in_parts(merging(name, said, membership.size, now))
        if not waiters:
            few, all_ = found.holders[:FEW], len(found.holders)
            found = replace(found, holders=few, waiters=(), more_holders=all_ - len(few))
        return await in_parts(_as_handed_off(self._table, found))

    async def page(self, start: str) -> Page:
        """See `ReadPage`: ask all members for a page, each from its own position.

        A member that did not answer keeps its position, so that a majority has listed all its names
        in the end. Once the members that answer have, the others are not waited for.
        """
        where = start.split(" ") if start else [""] * self._membership.size
        after, ended = [*where], True

        def conclude(said: dict[int, Any]) -> list[str]:
            nonlocal ended
            for server, (_, more) in said.items():
                after[server] = more or "-"
            ended = all(after[server] == "-" for server in said)
            return list(dict.fromkeys(name for names, _ in said.values() for name in names))

        numbers = {
            id(connection.member): connection.number for connection in self._membership.connections
        }

        def ask(member: Member, on_reply: Any) -> None:
            begin = where[numbers[id(member)]]
            if begin == "-":
                on_reply(((), ""), None)
            else:
                member.names(begin, on_reply)

        names = await self._membership.ask(ask, conclude)
        statuses = list[Status]()
        for first in range(0, len(names), _TOGETHER):
            asked = list[asyncio.Future[Status]]()
            for name in names[first : first + _TOGETHER]:
                await turns().take(_ASKED)
                asked.append(asyncio.ensure_future(self.status(name)))
            statuses += await asyncio.gather(*asked)
        return Page(statuses, "" if ended else " ".join(after))

    async def break_(self, name: str, fences: Sequence[int]) -> int:
        """See `Break`.

        Break by waiter: members identify a grant by their own numbers, one of which is its fence.
        """
        membership = self._membership
        said: dict[int, Status] = await membership.ask(
            lambda member, on_reply: member.status(name, on_reply), dict
        )
        status = await in_parts(merging(name, said, membership.size, 0.0))
        numbers = await in_parts(numbered(said))
        numbers |= await in_parts(_fences(self._table, name))
        wanted, holders, named = set(fences), set[WaiterId](), set[WaiterId]()
        for party in status.holders:
            await turns().take()
            waiter = WaiterId(party.client, party.seq)
            holders.add(waiter)
            if party.fence in wanted:
                named.add(waiter)
        # The fence of one reader may be the number of a vote of another reader.
        others = wanted - {party.fence for party in status.holders}
        named |= {numbers[fence] for fence in others if fence in numbers}
        broken, unknown = 0, False
        for waiter in named:
            taken = await membership.ask(partial(_take_away, name, waiter), _taken)
            if waiter in holders:
                broken += taken > 0
                unknown |= taken < 0
        return BREAK_UNKNOWN if unknown and not broken else broken


def _as_handed_off(table: AcquisitionTable, status: Status) -> Generator[int, None, Status]:
    """A status, part by part, that shows the holder in place of the waiter whose votes it has.

    A waiter that has come back is shown with the number that its client uses.
    """

    def present(party: Participant) -> Participant:
        acquisition = table.by_waiter.get(WaiterId(party.client, party.seq))
        if acquisition is None:
            return party
        fence = acquisition.vote_set.fence if party.fence and acquisition.inside else party.fence
        return replace(party, seq=acquisition.holder.seq, fence=fence)

    holders, waiters = list[Participant](), list[Participant]()
    for shown, parties in ((holders, status.holders), (waiters, status.waiters)):
        for party in parties:
            shown.append(present(party))
            yield len(shown) % 4 == 0
    return replace(status, holders=tuple(holders), waiters=tuple(waiters))


def _fences(table: AcquisitionTable, name: str) -> Generator[int, None, dict[int, WaiterId]]:
    """The fences that were handed off, with the waiter whose votes they rest on: part by
    part.
    """
    found, queue = dict[int, WaiterId](), table.queues.get(name)
    for number, each in enumerate(list(queue.acquisitions.values()) if queue else ()):
        if each.inside and each.holder != each.request.waiter:
            found[each.vote_set.fence] = each.request.waiter
        yield number % 8 == 0
    return found


def _take_away(name: str, waiter: WaiterId, member: Member, on_reply: OnReply) -> None:
    member.take_away(name, waiter, on_reply)


def _taken(said: dict[int, int]) -> int:
    """How many members have taken their vote away; less than 0 if that is unknown."""
    taken = sum(each for each in said.values() if each > 0)
    return taken or min(said.values(), default=0)
