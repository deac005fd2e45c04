"""One Redis server as a member of a quorum: each operation is one call of one script."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool

from aiolock.errors import QuorumMismatch, StoreError
from aiolock.protocol import WAS_ABSENT, Deliver, ReleaseRequested, Status, WaiterId
from aiolock.stores._member import (
    REMEMBERED,
    UNBOUNDED,
    DeliverMember,
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
from aiolock.stores.redis._codec import waiter_of
from aiolock.stores.redis._command import Called
from aiolock.stores.redis._errors import ClusterNodeError, Place, code_of, store_error
from aiolock.stores.redis._reading import FIRST, read, read_holders
from aiolock.stores.redis._scripts import KEPT, bulk
from aiolock.stores.redis._sentinel import is_managed
from aiolock.stores.redis._session import Session
from aiolock.stores.redis._subscription import Subscription
from aiolock.stores.redis._voting import Admitted, SeenVotes, VoteNames, VoteText

_PAGE: Final = 1000
"""Keys that the server looks at for each page of names: less than a millisecond."""


class _MemberSubscription(Subscription):
    """A subscription to which votes are pushed."""

    def _read(self, push: str) -> Any:
        kind = push[:2]
        if kind == "i ":
            waiter, number, key = push[2:].split(" ", 2)
            name, who = self._names.name(key), waiter_of(waiter)
            return VoteInquired(name, who, int(number))
        if kind == "r ":
            text, key = push[2:].split(" ", 1)
            vote = VoteText.read(text)
            name, who = self._names.name(key), waiter_of(vote.waiter)
            return ReleaseRequested(name, who, vote.number)
        return super()._read(push)


class RedisMember(Session):
    """A server that votes, through two connections: see `Member`."""

    kind = "Redis"
    _deliver: Deliver
    _probe_script = voting.ENROL

    def __init__(self, pool: ConnectionPool, prefix: str) -> None:
        if is_managed(pool):
            raise ValueError(
                "a member of a quorum is one server, and not one that Sentinel replaces by another:"
                " the other may not know whom it has voted for"
            )
        super().__init__(pool, prefix)
        self._names: VoteNames = VoteNames(prefix)
        # Cached, because the same names come again, with the same ttl and options.
        self._asks = lru_cache(maxsize=4096)(self._encode_asks)
        self._leaves = lru_cache(maxsize=4096)(self._encode_leaves)
        self._place = Place.of(pool, prefix)
        self.address = f"{self._place.address}/{self._place.database}"
        self._reading = set[asyncio.Task[Status]]()

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
        self._config = config
        self._patience = 0.0
        self._admitted = self._was_admitted
        self._deliver_member = deliver
        await self.open(client, deliver)

    async def leave(self, patience: float) -> None:
        self._patience = patience
        await self.aclose()
        for reading in self._reading:
            reading.cancel()
        if self._reading:
            await asyncio.wait(self._reading)

    def waits_for(self) -> float:
        return self._pipe.waits_for

    # Registration

    def _probe_arguments(self) -> tuple[int, bytes]:
        return self._registration(Memory.UNSAID)

    def _registration(self, memory: Memory) -> tuple[int, bytes]:
        config = self._config
        channel = self._names.channels + self._client
        what = (str(config), config.longest, int(config.durable), memory.value, channel)
        values = (1, self._names.marker, *what)
        return len(values), b"".join(map(bulk, values))

    def _was_admitted(self, said: Admitted) -> None:
        self._deliver_member(MemberRegistered(said.registered))

    def register(self, memory: Memory) -> None:
        def registered(said: Any, error: Exception | None) -> None:
            if error is None:
                self._was_admitted(said)
            else:
                self._deliver_member(RegistrationRefused(self.named(error)))

        self._call(voting.ENROL, *self._registration(memory), registered)

    async def _check_server(self) -> None:
        """Register it, before any other command is sent there."""
        self._was_admitted(await self._pipe.call(voting.ENROL, *self._probe_arguments()))
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

    async def _open(self) -> None:
        try:
            await super()._open()
        except StoreError as error:
            raise self.named(error) from error

    def named(self, error: Exception) -> Exception:
        """The error, or a clearer one if the server cannot be a member of this quorum."""
        cause = error.__cause__ if isinstance(error, StoreError) else error
        if not isinstance(cause, Exception):
            return error
        code = code_of(cause)
        if code == "READONLY" or isinstance(cause, ClusterNodeError):
            said = error if isinstance(error, StoreError) else store_error(cause, self._place)
            unfit = Unfit(str(said))
            unfit.__cause__ = cause
            return unfit
        if code != "QUORUM":
            return error
        its = str(cause).partition(" ")[2]
        return QuorumMismatch(
            f"Redis at {self.address} is a member of another quorum, of {its}, and this client says"
            f" {self._config}: all who use it must say the same"
        )

    async def _check_cluster(self) -> None:
        await super()._check_cluster()
        if self._slots_apart:
            raise store_error(ClusterNodeError("it is a node of a cluster"), self._place)

    def _lost(self, reason: Exception) -> None:
        super()._lost(self.named(reason))

    def _failing(self, reason: Exception) -> None:
        super()._failing(self.named(reason))

    def _make_subscription(self) -> Subscription:
        return _MemberSubscription(
            *(self._pool, self._names, self._client, self._deliver, self._links),
            again=self._ask_whether_counted,
        )

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
        reply = Called(on_reply)
        _ = self._pipe.call(
            voting.VOTE, 14, values, expires=True, waiter=who if new else None, reply=reply
        )

    def release(
        self, request: VoteRequest, highest: int, upto: int, *, entered: int, on_reply: OnReply
    ) -> None:
        who = self._text(request.name, request.waiter, request.form)
        final = upto == UNBOUNDED
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
        self._call(voting.GIVE_WAY, 9, self._names.three(request.name) + values, on_reply)

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
        self._call(voting.RECALL, 5, self._names.three(name), on_reply)

    def take_away(self, name: str, waiter: WaiterId, on_reply: OnReply) -> None:
        values = self._channels + bulk(f":{waiter.client}:{waiter.seq}")
        self._call(voting.BREAK, 7, self._names.three(name) + values, on_reply)

    def request(self, name: str, on_reply: OnReply) -> None:
        votes = self._names.keys(name)[0]
        values = bulk(1) + bulk(votes) + self._channels
        self._call(scripts.REQUEST, 3, values, on_reply, expires=True)

    def status(self, name: str, on_reply: OnReply, *, waiters: bool = True) -> None:
        reading = asyncio.get_running_loop().create_task(self._status(name, waiters=waiters))
        self._reading.add(reading)
        reading.add_done_callback(partial(self._has_read, on_reply))

    async def _status(self, name: str, *, waiters: bool) -> Status:
        ask, votes = partial(self._ask_for_status, name), SeenVotes(name)
        try:
            return await (read(votes, ask, ask(*FIRST)) if waiters else read_holders(votes, ask))
        except (TypeError, ValueError, LookupError) as wrong:
            raise StoreError(f"not an answer of aiolock's: {wrong}") from wrong

    def _ask_for_status(  # noqa: PLR0917  # as `Ask`
        self, name: str, waiters: int, ticket: str, holders: int, end: str, grant: bytes
    ) -> asyncio.Future[Any]:
        keys = b"".join(map(bulk, (2, *self._names.keys(name)[:2])))
        most = b"".join(map(bulk, (waiters, ticket, holders, end, grant)))
        return self._pipe.call(scripts.STATUS, 9, keys + self._channels + most)

    def _has_read(self, on_reply: OnReply, reading: asyncio.Task[Status]) -> None:
        self._reading.discard(reading)
        if reading.cancelled():
            on_reply(None, StoreError("the store is closed"))
        elif (error := reading.exception()) is None:
            on_reply(reading.result(), None)
        else:
            on_reply(None, error if isinstance(error, Exception) else StoreError(str(error)))

    def names(self, start: str, on_reply: OnReply) -> None:
        own = self._own_keys()
        values = (len(own), *own, start or 0, self._names.pattern, _PAGE)

        def listed(page: Any, error: Exception | None) -> None:
            if page is None:
                on_reply(None, error)
                return
            names = tuple(dict.fromkeys(self._names.name(key) for key in page.keys))
            on_reply((names, "" if page.cursor == "0" else page.cursor), None)

        self._call(scripts.LIST, len(values), b"".join(map(bulk, values)), listed)

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
