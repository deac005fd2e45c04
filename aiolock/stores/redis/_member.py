"""One Redis server as a member of a quorum: each operation is one call of one script."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import Any

from redis.asyncio.connection import ConnectionPool

from aiolock.copying import Uncopyable
from aiolock.errors import QuorumMismatch, StoreError
from aiolock.protocol import (
    WAS_ABSENT,
    Event,
    LinkChanged,
    ReleaseRequested,
    Status,
    WaiterId,
)
from aiolock.stores._member import (
    REMEMBERED,
    UNBOUNDED,
    DeliverMember,
    InQueue,
    MemberRegistered,
    Memory,
    OnReply,
    QuorumConfig,
    RegistrationRefused,
    Unfit,
    VoteInquired,
    VoteRequest,
)
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis import _voting as voting
from aiolock.stores.redis._called import Called
from aiolock.stores.redis._codec import waiter_of
from aiolock.stores.redis._encoding import Texts
from aiolock.stores.redis._errors import ClusterNodeError, Place, code_of, store_error
from aiolock.stores.redis._lone_node import is_node
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._pushes import read_push
from aiolock.stores.redis._reading import FIRST, StatusReader
from aiolock.stores.redis._scripts import KEPT, bulk
from aiolock.stores.redis._sentinel import is_managed
from aiolock.stores.redis._session import Session
from aiolock.stores.redis._store import shown
from aiolock.stores.redis._voting import Admitted, SeenVotes, VoteNames, VoteText


def read_member_push(names: VoteNames, push: str) -> Any:
    """What a push to a client of a quorum says; otherwise as `read_push`."""
    kind = push[:2]
    if kind == "i ":
        waiter, number, key = push[2:].split(" ", 2)
        return VoteInquired(names.name(key), waiter_of(waiter), int(number))
    if kind == "r ":
        text, key = push[2:].split(" ", 1)
        vote = VoteText.read(text)
        return ReleaseRequested(names.name(key), waiter_of(vote.waiter), vote.number)
    return read_push(names, push)


class RedisMember(Uncopyable):
    """A server that votes, through two connections: see `Member`."""

    kind = "Redis"

    def __init__(self, pool: ConnectionPool, prefix: str) -> None:
        if is_managed(pool):
            raise ValueError(
                "a member of a quorum is one server, and not one that Sentinel replaces by another:"
                " the other may not know whom it has voted for"
            )
        self._pool = pool
        self._names = VoteNames(prefix)
        self._channels = bulk(self._names.channels)
        # Cached, because the same names come again, with the same ttl and options.
        self._asks = lru_cache(maxsize=4096)(self._encode_asks)
        self._leaves = lru_cache(maxsize=4096)(self._encode_leaves)
        self._place = Place.of(pool, prefix)
        self.address = f"{self._place.address}/{self._place.database}"
        self._session: Session | None = None
        self._reading = set[asyncio.Task[Status]]()
        self._trying = set[str]()
        """The waiters that do not wait, until they are answered or released: they ask again while
        ended votes or dead waiters are still to be removed."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self._pool, self._names.prefix)}>"

    def _encode_asks(
        self,
        name: str,
        ttl: int,
        closes: int,
        most: int,
        wait: bool,  # noqa: FBT001
    ) -> bytes:
        """The arguments that are the same for each request for a vote with these options."""
        kept = bulk(ttl + KEPT + closes) + bulk(ttl + REMEMBERED)
        values = bulk(ttl) + kept + bulk(most) + bulk(int(wait))
        return self._names.three(name) + self._channels + values

    def _encode_leaves(self, name: str, simple: bool, upto: int = UNBOUNDED) -> bytes:  # noqa: FBT001
        """The arguments that are the same for each release of a vote of this name."""
        return self._names.three(name) + self._channels + bulk(upto) + bulk(int(simple))

    async def join(self, client: str, deliver: DeliverMember, config: QuorumConfig) -> None:
        self._client = client
        self._config = config
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._session = session = Session(
            *(self._pool, self._names, client, self._on_event),
            read=partial(read_member_push, self._names),
            make_pipe=self._make_pipe,
        )
        session.patience = 0.0
        self._pipe = session.pipe
        self._reader = StatusReader(session.pipe, self._names, session.presence.own_keys)
        try:
            await session.open(
                register=self._register_first, check=partial(self._check_cluster, session)
            )
        except StoreError as error:
            raise self.named(error) from error
        self._text = Texts(client, blind=not session.health.counted).text

    def _make_pipe(self, pool: ConnectionPool, prefix: str, **callbacks: Any) -> Pipeline:
        """The command connection; nothing is sent on it before the registration."""
        callbacks["probe"] = partial(self._registration, Memory.UNSAID)
        return Pipeline(
            pool, prefix, probe_script=voting.REGISTER, on_admitted=self._was_admitted, **callbacks
        )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, LinkChanged) and event.error is not None:
            event = LinkChanged(self.named(event.error))
        self._deliver(event)

    async def leave(self, patience: float) -> None:
        if self._session is not None:
            self._session.patience = patience
            await self._session.aclose()
        for reading in self._reading:
            reading.cancel()
        if self._reading:
            await asyncio.wait(self._reading)

    def waits_for(self) -> float:
        return self._pipe.waits_for

    # Registration

    def _registration(self, memory: Memory) -> tuple[int, bytes]:
        config = self._config
        channel = self._names.channels + self._client
        what = (str(config), config.longest, int(config.durable), memory.value, channel)
        values = (1, self._names.marker, *what)
        return len(values), b"".join(map(bulk, values))

    def _was_admitted(self, said: Admitted) -> None:
        self._deliver(MemberRegistered(said.registered))

    def register(self, memory: Memory) -> None:
        def registered(said: Any, error: Exception | None) -> None:
            if error is None:
                self._was_admitted(said)
            else:
                self._deliver(RegistrationRefused(self.named(error)))

        self._call(voting.REGISTER, *self._registration(memory), registered)

    async def _register_first(self) -> None:
        """Register it, before any other command is sent there."""
        self._was_admitted(
            await self._pipe.call(voting.REGISTER, *self._registration(Memory.UNSAID))
        )
        if self._config.durable:
            await self._check_durable()

    async def _check_durable(self) -> None:
        place = self._place.address
        try:
            known = await self._pipe.call(voting.PERSISTENCE, 0, b"")
        except StoreError as error:
            raise Unfit(
                f"durable=True, and Redis at {place} does not say whether it is: grant the user"
                f" +config|get ({error.__cause__})"
            ) from error
        found = {name: known.get(name, "") for name in ("appendonly", "appendfsync")}
        if found != {"appendonly": "yes", "appendfsync": "always"}:
            said = ", ".join(f"{name} {value}" for name, value in found.items())
            raise Unfit(
                f"durable=True, and Redis at {place} may forget what it has answered: it needs"
                f" appendonly yes and appendfsync always, and has {said}"
            )

    def named(self, error: Exception) -> Exception:
        """The error, or a clearer one if the server cannot be a member of this quorum."""
        cause = error.__cause__ if isinstance(error, StoreError) else error
        if not isinstance(cause, Exception):
            return error
        code = code_of(cause)
        if code == "READONLY" or isinstance(cause, ClusterNodeError):
            unfit = Unfit(str(store_error(cause, self._place)))
            unfit.__cause__ = cause
            return unfit
        if code != "QUORUM":
            return error
        its = str(cause).partition(" ")[2]
        return QuorumMismatch(
            f"Redis at {self.address} is a member of another quorum, of {its}, and this client says"
            f" {self._config}: all who use it must say the same"
        )

    async def _check_cluster(self, session: Session) -> None:
        if await is_node(session.pipe, self._names, session.presence, self._place):
            raise store_error(ClusterNodeError("it is a node of a cluster"), self._place)

    # The operations

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
        who = self._text(request.name, request.waiter, request.form)
        ticket, number = str(request.ticket), str(proposal)
        own = (
            f"${len(who)}\r\n{who}\r\n${len(ticket)}\r\n{ticket}\r\n${len(number)}\r\n{number}\r\n"
        )
        values = self._asks(request.name, ttl, request.form.closes, most, wait) + own.encode(
            "ascii"
        )

        command = partial(
            self._pipe.call,
            *(voting.VOTE, 14, values),
            expires=True,
            waiter=who if new else None,
        )
        if wait:
            _ = command(reply=Called(on_reply))
            return

        def replied(answer: Any, error: Exception | None) -> None:
            if isinstance(answer, InQueue) and answer.until < 0 and who in self._trying:
                _ = command(reply=Called(replied))  # each question removes a part of them
            else:
                self._trying.discard(who)
                on_reply(answer, error)

        self._trying.add(who)
        _ = command(reply=Called(replied))

    def release(
        self, request: VoteRequest, highest: int, upto: int, *, entered: int, on_reply: OnReply
    ) -> None:
        who = self._text(request.name, request.waiter, request.form)
        final = upto == UNBOUNDED
        if final:
            self._trying.discard(who)
        if final and self._pipe.forget(who):
            self._loop.call_soon(on_reply, WAS_ABSENT, None)
            return
        number, inside = str(highest), str(entered)
        own = (
            f"${len(who)}\r\n{who}\r\n${len(number)}\r\n{number}\r\n${len(inside)}\r\n{inside}\r\n"
        )
        simple = not (request.form.shared or request.form.closes)
        if final:
            values = self._leaves(request.name, simple) + own.encode("ascii")
            reply = Called(on_reply)
            _ = self._pipe.call(voting.RELEASE, 11, values, leaves_tombstone=True, reply=reply)
        else:  # the waiter comes back
            values = self._encode_leaves(request.name, simple, upto) + own.encode("ascii")
            self._call(voting.RELEASE, 12, values + bulk(0), on_reply)

    def yield_vote(self, request: VoteRequest, number: int, on_reply: OnReply) -> None:
        who = self._text(request.name, request.waiter, request.form)
        values = bulk(who) + bulk(number) + bulk(request.ticket) + self._channels
        self._call(voting.YIELD_VOTE, 9, self._names.three(request.name) + values, on_reply)

    def renew(
        self,
        request: VoteRequest,
        number: int,
        ttl: int,
        fence: int,
        *,
        entered: bool,
        on_reply: OnReply,
    ) -> None:
        who = self._text(request.name, request.waiter, request.form)
        values = b"".join(
            (
                self._names.three(request.name),
                *(bulk(who), bulk(number), bulk(ttl), bulk(fence), bulk(int(entered))),
            )
        )
        self._call(voting.RENEW, 10, values, on_reply, expires=True)

    def reserve(self, request: VoteRequest, number: int, fence: int, on_reply: OnReply) -> None:
        who = self._text(request.name, request.waiter, request.form)
        values = bulk(who) + bulk(number) + bulk(fence)
        self._call(voting.RESERVE, 8, self._names.three(request.name) + values, on_reply)

    def finish(
        self, request: VoteRequest, fence: int, remember: int, until: int, on_reply: OnReply
    ) -> None:
        who = self._text(request.name, request.waiter, request.form)
        values = b"".join(map(bulk, (who, fence, remember, until))) + self._channels
        self._call(
            voting.FINISH, 10, self._names.three(request.name) + values, on_reply, expires=True
        )

    def query_done(self, name: str, on_reply: OnReply) -> None:
        self._call(voting.QUERY_DONE, 5, self._names.three(name), on_reply)

    def take_away(self, name: str, waiter: WaiterId, on_reply: OnReply) -> None:
        values = self._channels + bulk(f":{waiter.client}:{waiter.seq}")
        self._call(voting.BREAK, 7, self._names.three(name) + values, on_reply)

    def request(self, name: str, on_reply: OnReply) -> None:
        self._request(name, (b"", b""), 0, on_reply)

    def _request(
        self, name: str, behind: tuple[bytes, bytes], before: int, on_reply: OnReply
    ) -> None:
        """Ask those behind that place; ``before``: how many were asked."""

        def asked(reply: Any, error: Exception | None) -> None:
            if error is not None:
                on_reply(None, error)
                return
            told, last = reply
            if last is None:
                on_reply(before + told, None)
            else:
                self._request(name, last, before + told, on_reply)

        votes = self._names.keys(name)[0]
        values = b"".join((bulk(1), bulk(votes), self._channels, *map(bulk, behind)))
        self._call(scripts.REQUEST, 5, values, asked, expires=True)

    def status(self, name: str, on_reply: OnReply, *, waiters: bool = True) -> None:
        reading = asyncio.get_running_loop().create_task(self._status(name, waiters=waiters))
        self._reading.add(reading)
        reading.add_done_callback(partial(self._has_read, on_reply))

    async def _status(self, name: str, *, waiters: bool) -> Status:
        reader, votes = self._reader, SeenVotes(name)
        try:
            if waiters:
                return await reader.read(votes, reader.ask(name, *FIRST))
            return await reader.read_holders(votes)
        except (TypeError, ValueError, LookupError) as wrong:
            raise StoreError(f"not an answer of aiolock's: {wrong}") from wrong

    def _has_read(self, on_reply: OnReply, reading: asyncio.Task[Status]) -> None:
        self._reading.discard(reading)
        if reading.cancelled():
            on_reply(None, StoreError("the store is closed"))
        elif (error := reading.exception()) is None:
            on_reply(reading.result(), None)
        else:
            on_reply(None, error if isinstance(error, Exception) else StoreError(str(error)))

    def names(self, start: str, on_reply: OnReply) -> None:
        def listed(page: Any, error: Exception | None) -> None:
            if page is None:
                on_reply(None, error)
                return
            names = tuple(dict.fromkeys(self._names.name(key) for key in page.keys))
            on_reply((names, "" if page.cursor == "0" else page.cursor), None)

        _ = self._reader.list(start, reply=Called(listed))

    def post(self, name: str, count: int, value: str, remember: int, on_reply: OnReply) -> None:
        keys = (5, *self._names.keys(name), self._names.value(name))
        values = b"".join(map(bulk, (*keys, count, value, remember))) + self._channels
        self._call(voting.POST, 10, values, on_reply, expires=True)

    def read(self, name: str, on_reply: OnReply) -> None:
        keys = (2, self._names.keys(name)[0], self._names.value(name))
        self._call(voting.READ, 3, b"".join(map(bulk, keys)), on_reply)

    def _call(  # calls a script, whose answer goes to `on_reply`
        self,
        script: scripts.Script,
        count: int,
        values: bytes,
        on_reply: OnReply,
        *,
        expires: bool = False,
        leaves_tombstone: bool = False,
        waiter: str | None = None,
    ) -> None:
        reply = Called(on_reply)
        _ = self._pipe.call(
            *(script, count, values),
            expires=expires,
            leaves_tombstone=leaves_tombstone,
            waiter=waiter,
            reply=reply,
        )
