"""`QuorumStore`: several independent servers as one store, of which a majority decides.

It has no clock of its own. Its answers are in µs of its client's clock, by which the client
computes deadlines: so a grant's deadline is exactly the time until which a majority of its votes
stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aiolock._adapters import ByMethods
from aiolock._turns import at_once, in_parts, turns
from aiolock.copying import Uncopyable
from aiolock.errors import StoreError, Unsupported
from aiolock.protocol import (
    BREAK_UNKNOWN,
    FEW,
    Answer,
    Deliver,
    Form,
    LinkChanged,
    Page,
    Posted,
    Reconnected,
    Renewal,
    ReportHandoff,
    Rule,
    Status,
    WaiterId,
)
from aiolock.store import Features, ServerStatus
from aiolock.stores._member import Kept, Member, OnReply, QuorumConfig, Registered
from aiolock.stores._opening import Opening
from aiolock.stores.quorum._candidates import Candidates
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._membership import ANSWER_TIMEOUT, Membership
from aiolock.stores.quorum._statuses import merging, numbered

_NOT_COUNTED: Final = (
    "what different servers count does not add up, where each knows of some only: use one server"
)
_RENEWAL_TIMEOUT: Final = 1.0
"""Seconds for the members to answer a renewal; after that its outcome is unknown."""
_NO_DOWNGRADE: Final = (
    "who writes on several servers cannot go on as a reader: those that have not heard of it would"
    " take it for somebody else. Release it and acquire the read lock, or use one server"
)
_TOGETHER: Final = 32
"""Statuses of a snapshot that are asked for at a time."""
_ASKED: Final = 30
"""Units of work to ask all members for one status: see `Turns`."""
_A_MOMENT: Final = 1_000
"""Milliseconds: a value that ends sooner than this is not written back."""


class QuorumStore(ByMethods, Uncopyable):
    """Locks on several servers: a waiter with the votes of a majority holds the lock."""

    def __init__(self, members: Sequence[Member], longest_ttl: float, *, durable: bool) -> None:
        self.members = members
        self._size = len(members)
        self.features = Features(
            missing=self._missing(), longest_ttl=longest_ttl, servers=self._servers
        )
        addresses = tuple(sorted(member.address for member in members))
        self.config = QuorumConfig(addresses, round(longest_ttl * 1000), durable)
        self._membership: Membership | None = None
        self._opening = Opening()
        self._able = True

    def __repr__(self) -> str:
        return f"<QuorumStore of {', '.join(member.address for member in self.members)}>"

    def _missing(self) -> dict[str, str]:
        """The kinds that a majority cannot decide, and why: see `Features.missing`."""
        n, most = self._size, self._size // 2 + 1
        return {
            "latch": _NOT_COUNTED,
            "event": _NOT_COUNTED,
            "barrier": _NOT_COUNTED,
            "semaphore": (
                f"of {n} servers, 3 holders of 2 permits may each have a majority, which is {most}:"
                " use one server, or locks"
            ),
        }

    def _servers(self) -> list[ServerStatus]:
        if self._membership is None:
            return [ServerStatus(member.address, "out") for member in self.members]
        return self._membership.servers(self._candidates.votes.__getitem__)

    async def open(self, client: str, deliver: Deliver) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._able = False
        membership = Membership(self.members, self.config, self)
        self._candidates = Candidates(membership, deliver)
        self._membership = membership
        await self._opening.run(self._open(membership, client), self.aclose)

    async def _open(self, membership: Membership, client: str) -> None:
        try:
            await membership.join(client)
        except BaseException:
            self._membership = None
            await self._close(membership)
            raise
        self._able = True
        membership.decides = membership.has_majority_of_votes

    async def aclose(self) -> None:
        if self._opening.under_way:
            await self._opening.end()
        membership, self._membership = self._membership, None
        if membership is not None:
            await self._close(membership)

    async def _close(self, membership: Membership) -> None:
        steps = self._candidates.closing()
        next(steps)  # at once: what comes from now on has no effect
        try:
            await asyncio.sleep(0)
            await in_parts(steps)
        finally:
            at_once(steps)  # the rest, if this is cancelled
            await membership.leave()

    # Events of the connections

    def joined(self, connection: MemberConnection) -> None:
        """See `Host`."""
        if self._membership is not None:
            self._membership.joined()
            if connection.is_joined:
                self.reach_changed(connection)

    def registered(self, connection: MemberConnection, registered: Registered) -> None:
        """See `Host`."""
        if self._membership is not None:
            if connection.run != registered.run:
                self._candidates.forget_clock(connection.number)
            self._membership.registered(connection, registered)
            if connection.in_reach:
                self._loop.call_soon(self._ask_there, connection.number)

    def reach_changed(self, connection: MemberConnection) -> None:
        """See `Host`."""
        membership = self._membership
        if membership is None:
            return
        able, before = membership.able, self._able
        if self._opening.under_way:
            return
        self._able = able
        self.voting_changed()
        if before and not able:
            self._deliver(LinkChanged(membership.too_few()))
        elif able and not before:
            self._deliver(LinkChanged(None))
            self._deliver(Reconnected())
        elif connection.in_reach:
            self._candidates.ask_there(connection.number)
        elif able:
            self._candidates.out_of_reach()

    def voting_changed(self) -> None:
        """See `Host`."""
        membership = self._membership
        if membership is None or self._opening.under_way:
            return
        membership.decides = membership.has_majority_of_votes
        self._candidates.voting_changed()

    def ask_there(self, server: int) -> None:
        """See `Host`."""
        if self._membership is not None:
            self._candidates.ask_there(server)
            self._candidates.may_be_inquired(server)

    def _ask_there(self, server: int) -> None:
        if self._membership is not None:
            self._candidates.ask_there(server)

    def knows(self, waiter: WaiterId) -> bool:
        """See `Host`."""
        return waiter in self._candidates.acquisitions

    def granted(self, server: int, waiter: WaiterId, number: int, lease: int, now: int) -> None:
        """See `Host`."""
        self._candidates.granted(server, waiter, number, lease, now)

    def foreign(self, server: int, name: str, waiter: WaiterId, form: Form) -> None:
        """See `Host`."""
        self._candidates.foreign(server, name, waiter, form)

    def inquired(self, server: int, waiter: WaiterId, number: int) -> None:
        """See `Host`."""
        self._candidates.inquired(server, waiter, number)

    def vote_lost(self, server: int, name: str, waiter: WaiterId, number: int, reason: str) -> None:
        """See `Host`."""
        self._candidates.vote_lost(server, name, waiter, number, reason)

    def closed(self, name: str) -> None:
        """See `Host`."""
        self._candidates.closed(name)

    def requested(self, waiter: WaiterId) -> None:
        """See `Host`."""
        self._candidates.requested(waiter)

    # The operations

    def acquire(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        if self._membership is None:
            return self._failed(_closed())
        if form.shared and form.rule is not Rule.ALWAYS and not form.counts:
            return self._failed(Unsupported(f"{name!r} is of a kind that a quorum does not offer"))
        candidates = self._candidates
        return candidates.acquire(
            name, waiter, form, ttl, ticket=ticket, wait=wait, most=max_waiters
        )

    def release(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        if self._membership is None:
            return self._failed(_closed())
        return self._candidates.release(name, waiter, form, fence, entered=entered, lost=lost)

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        if self._membership is None:
            return self._failed(_closed())
        return self._candidates.finish(name, waiter, form, fence, remember)

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        if self._membership is None:
            return self._failed(_closed())
        future: asyncio.Future[list[bool | None]] = self._loop.create_future()
        answers: list[bool | None] = [None] * len(renewals)
        left = len(renewals)

        def over() -> None:
            if not future.done():
                future.set_result(list(answers))

        timer = self._loop.call_later(ANSWER_TIMEOUT, over)  # unless it is closed before

        def concluded(number: int, still: bool | None) -> None:  # noqa: FBT001
            nonlocal left
            answers[number] = still
            left -= 1
            if left == 0 and not future.done():
                timer.cancel()
                future.set_result(answers)

        def sent() -> None:
            nonlocal timer
            timer.cancel()
            if not future.done():
                timer = self._loop.call_later(_RENEWAL_TIMEOUT, over)

        self._candidates.renew_all(renewals, concluded, sent)
        return future

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._status(name, waiters=waiters))

    async def _status(self, name: str, *, waiters: bool = True) -> Status:
        membership = self._membership
        if membership is None:
            raise _closed()
        said: dict[int, Status] = await membership.ask(
            lambda member, on_reply: member.status(name, on_reply, waiters=waiters), dict
        )
        now = membership.clocks.now(membership.time()) / 1e6
        found = await in_parts(merging(name, said, membership.size, now))
        if not waiters:
            few, all_ = found.holders[:FEW], len(found.holders)
            found = replace(found, holders=few, waiters=(), more_holders=all_ - len(few))
        return await in_parts(self._candidates.as_handed_off(found))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        return asyncio.ensure_future(self._snapshot(start))

    async def _snapshot(self, start: str) -> Page:
        """Ask all members for a page, each from its own position.

        A member that did not answer keeps its position, so that a majority has listed all its names
        in the end. Once the members that answer have, the others are not waited for.
        """
        if self._membership is None:
            raise _closed()
        where = start.split(" ") if start else [""] * self._size
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
                asked.append(self.status(name))
            statuses += await asyncio.gather(*asked)
        return Page(statuses, "" if ended else " ".join(after))

    def request(self, name: str) -> asyncio.Future[int]:
        if self._membership is None:
            return self._failed(_closed())
        return self._membership.ask(
            lambda member, on_reply: member.request(name, on_reply),
            lambda said: max(said.values(), default=0),
        )

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return asyncio.ensure_future(self._break(name, fences))

    async def _break(self, name: str, fences: Sequence[int]) -> int:
        """Break by waiter: members identify a grant by their own numbers, one of which is its
        fence.
        """
        if self._membership is None:
            raise _closed()
        membership = self._membership
        said: dict[int, Status] = await membership.ask(
            lambda member, on_reply: member.status(name, on_reply), dict
        )
        status = await in_parts(merging(name, said, membership.size, 0.0))
        numbers = await in_parts(numbered(said))
        numbers |= await in_parts(self._candidates.fences(name))
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

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        if self._membership is None:
            return self._failed(_closed())
        if token or declared:
            return self._failed(Unsupported(f"{name!r}: {_NOT_COUNTED}"))
        return self._membership.ask(
            lambda member, on_reply: member.post(name, count, value, remember, on_reply),
            lambda said: max(said.values()),
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        if self._membership is None:
            return self._failed(_closed())
        said: asyncio.Future[dict[int, Kept]] = self._membership.ask(
            lambda member, on_reply: member.read(name, on_reply), dict
        )
        return asyncio.ensure_future(self._read(name, self._membership, said))

    async def _read(
        self, name: str, membership: Membership, asked: asyncio.Future[dict[int, Kept]]
    ) -> Posted:
        """The highest count of a majority; a majority has to have it before the client gets it.

        It is written back to members that have less in any case: they may have lost their memory. A
        value that ends in a moment is not written back, because copies of copies would keep it
        alive.
        """
        said = await asked
        best = max(said.values(), key=lambda kept: kept.count)
        behind = sum(each.count < best.count for each in said.values())
        if behind and best.left > _A_MOMENT:
            value = best.value
            told = self.post(
                name, best.count, token="", declared=0, value=value, remember=best.left
            )
            if len(said) - behind < membership.quorum:
                await told
            else:
                told.add_done_callback(_retrieve)
        return Posted(best.count, best.value)

    # Operations that are not offered

    def report_handoff(self, passed: ReportHandoff) -> asyncio.Future[int]:
        """Never called: no answer has a `before`. Local hand-offs are made in `_handing`."""
        return self._unsupported()

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        return self._failed(Unsupported(f"{name!r}: {_NO_DOWNGRADE}"))

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        return self._unsupported()

    def _unsupported(self) -> asyncio.Future[Any]:
        return self._failed(Unsupported("a quorum of servers does not offer this: use one server"))

    def _failed(self, error: Exception) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future


def _take_away(name: str, waiter: WaiterId, member: Member, on_reply: OnReply) -> None:
    member.take_away(name, waiter, on_reply)


def _retrieve(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()


def _taken(said: dict[int, int]) -> int:
    """How many members have taken their vote away; less than 0 if that is unknown."""
    taken = sum(each for each in said.values() if each > 0)
    return taken or min(said.values(), default=0)


def _closed() -> StoreError:
    error = StoreError("the store is closed")
    error.refused = True
    return error
