"""Several servers that vote, as one process sees them: all their answers are recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiolock.protocol import Form, GrantPushed, WaiterId
from aiolock.stores._member import (
    Answer,
    DeliverMember,
    DoneMarker,
    DoneRecord,
    InQueue,
    Kept,
    MemberEvent,
    Memory,
    OnReply,
    QuorumConfig,
    Voted,
    VoteRequest,
)
from aiolock.stores.quorum import QuorumStore, from_members
from aiolock.stores.redis._codec import encode
from aiolock.stores.redis._member import RedisMember
from aiolock.stores.redis._urls import pool_at
from tests.proof.chaos.faults import QUORUM_LONGEST
from tests.proof.chaos.history import History

_SEPARATOR: Final = ","


def url_of(urls: Sequence[str]) -> str:
    """All servers, as one word of a command line."""
    return _SEPARATOR.join(urls)


def quorum_at(url: str, prefix: str, history: History) -> QuorumStore:
    """A store of the servers that these URLs lead to."""
    members = [
        Witness(each, prefix, number, history) for number, each in enumerate(url.split(_SEPARATOR))
    ]
    return from_members(members, QUORUM_LONGEST, durable=False)


def charter_of(servers: int) -> QuorumConfig:
    """The properties that all clients of so many servers record."""
    names = tuple(_name(number) for number in range(servers))
    return QuorumConfig(names, round(QUORUM_LONGEST * 1000), durable=False)


def _name(number: int) -> str:
    """The name of a server, the same for all, though each process has its own link to it."""
    return f"server-{number}"


class Witness(RedisMember):
    """One server."""

    def __init__(self, url: str, prefix: str, number: int, history: History) -> None:
        super().__init__(pool_at(url), prefix)
        self.address = _name(number)
        self._number = number
        self._history = history

    async def join(self, client: str, deliver: DeliverMember, config: QuorumConfig) -> None:
        def overhear(event: MemberEvent) -> None:
            if isinstance(event, GrantPushed):
                self.pushed(event.waiter, event.form, event.now)
            deliver(event)

        await super().join(client, overhear, config)

    def pushed(self, waiter: WaiterId, form: Form, granted: int) -> None:
        """A server has pushed a vote that it gave at that time (µs)."""
        self._voted(encode(waiter, form, blind=False), granted)

    def _voted(self, waiter: str, granted: int) -> None:
        self._history.note("voted", w=waiter, server=self._number, granted=granted)

    def _hears(self, request: VoteRequest, since: float, lease: int, on_reply: OnReply) -> OnReply:
        """Record the answer to a question, which may come with such a lease."""

        def hear(answer: Answer | None, error: Exception | None) -> None:
            waiter = encode(request.waiter, request.form, blind=False)
            if isinstance(answer, Voted | InQueue):
                self._history.note(
                    "stands", w=waiter, server=self._number, since=since, ticket=request.ticket
                )
            if isinstance(answer, DoneMarker):
                self._note_marked(request.name, answer.number, since)
            if isinstance(answer, Voted):
                # A vote with less left was given earlier.
                self._voted(waiter, answer.now if answer.lease == lease else 0)
            on_reply(answer, error)

        return hear

    def vote(
        self,
        request: VoteRequest,
        ttl: int,
        proposal: int,
        *,
        wait: bool,
        most: int,
        new: bool,
        on_reply: OnReply,
    ) -> None:
        hears = self._hears(request, self._history.now(), ttl, on_reply)
        super().vote(request, ttl, proposal, wait=wait, most=most, new=new, on_reply=hears)

    def yield_vote(self, request: VoteRequest, number: int, on_reply: OnReply) -> None:
        hears = self._hears(request, self._history.now(), request.form.claim, on_reply)
        super().yield_vote(request, number, hears)

    # What is done once

    def _note_marked(self, name: str, fence: int, since: float) -> None:
        self._history.note("marked", n=name, server=self._number, fence=fence, since=since)

    def finish(
        self, request: VoteRequest, fence: int, remember: int, until: int, on_reply: OnReply
    ) -> None:
        since = self._history.now()

        def hear(known: int | None, error: Exception | None) -> None:
            if known:
                self._note_marked(request.name, fence, since)
            on_reply(known, error)

        super().finish(request, fence, remember, until, hear)

    def query_done(self, name: str, on_reply: OnReply) -> None:
        since = self._history.now()

        def hear(answer: DoneRecord | None, error: Exception | None) -> None:
            if answer is not None and answer.number:
                self._note_marked(name, answer.number, since)
            on_reply(answer, error)

        super().query_done(name, hear)

    def register(self, memory: Memory) -> None:
        if memory is Memory.NEW:
            self._history.note("enrols", server=self._number)
        super().register(memory)

    # What is put up

    def _note_kept(self, name: str, count: int, since: float) -> None:
        self._history.note("kept", n=name, server=self._number, count=count, since=since)

    def post(self, name: str, count: int, value: str, remember: int, on_reply: OnReply) -> None:
        since = self._history.now()

        def hear(known: int | None, error: Exception | None) -> None:
            if known is not None:
                self._note_kept(name, known, since)
            on_reply(known, error)

        super().post(name, count, value, remember, hear)

    def read(self, name: str, on_reply: OnReply) -> None:
        since = self._history.now()

        def hear(answer: Kept | None, error: Exception | None) -> None:
            if answer is not None:
                self._note_kept(name, answer.count, since)
            on_reply(answer, error)

        super().read(name, hear)

    def take_away(self, name: str, waiter: WaiterId, on_reply: OnReply) -> None:
        text = encode(waiter, Form(claim=0), blind=False)
        self._history.note("taking", n=name, w=text, server=self._number)
        super().take_away(name, waiter, on_reply)
