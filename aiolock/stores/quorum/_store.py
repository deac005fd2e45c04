"""`QuorumStore`: several independent servers as one store, of which a majority decides.

It has no clock of its own. Its answers are in µs of its client's clock, by which the client
computes deadlines: so a grant's deadline is exactly the time until which a majority of its votes
stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from aiolock.copying import Uncopyable
from aiolock.errors import StoreError, Unsupported
from aiolock.protocol import (
    Acquire,
    Adopt,
    Break,
    Deliver,
    Detach,
    Discard,
    Downgrade,
    Finish,
    Operation,
    Post,
    ReadPage,
    ReadPosted,
    ReadStatus,
    Release,
    Renew,
    ReportHandoff,
    RequestRelease,
    Resize,
    Rule,
)
from aiolock.store import Features, ServerStatus
from aiolock.stores._member import Member, QuorumConfig
from aiolock.stores._opening import Opening
from aiolock.stores.quorum._session import Session
from aiolock.trees import MakeFence

Value = TypeVar("Value")

_NO_BUCKET: Final = (
    "each server would have a bucket of its own, and a majority of counts is no count: use one"
    " server"
)
_NOT_COUNTED: Final = (
    "what different servers count does not add up, where each knows of some only: use one server"
)
_NO_HANDING_ON: Final = (
    "a quorum cannot hand a lease on: the votes of its holder would have to move on a majority of"
    " the servers in one step. Use one server"
)
_NO_DOWNGRADE: Final = (
    "who writes on several servers cannot go on as a reader: those that have not heard of it would"
    " take it for somebody else. Release it and acquire the read lock, or use one server"
)


class QuorumStore(Uncopyable):
    """Locks on several servers: a waiter with the votes of a majority holds the lock."""

    def __init__(self, members: Sequence[Member], longest_ttl: float, *, durable: bool) -> None:
        self.members = members
        self._size = len(members)
        self.features = Features(
            missing=self._missing(), longest_ttl=longest_ttl, servers=self._servers
        )
        addresses = tuple(sorted(member.address for member in members))
        self.config = QuorumConfig(addresses, round(longest_ttl * 1000), durable)
        self._session: Session | None = None
        self._opening = Opening()

    def __repr__(self) -> str:
        return f"<QuorumStore of {', '.join(member.address for member in self.members)}>"

    def _missing(self) -> dict[str, str]:
        """The kinds and options that a majority cannot decide, and why: see `Features.missing`."""
        n, most = self._size, self._size // 2 + 1
        return {
            "latch": _NOT_COUNTED,
            "event": _NOT_COUNTED,
            "barrier": _NOT_COUNTED,
            "rate_limit": _NO_BUCKET,
            "share": (
                "each server would keep accounts of its own, and the orders of a majority are no"
                " order: use one server"
            ),
            "path": (
                "who shares a node is counted there, and "
                f"{_NOT_COUNTED}, or an rwlock for each subtree"
            ),
            "semaphore": (
                f"of {n} servers, 3 holders of 2 permits may each have a majority, which is {most}:"
                " use one server, or locks"
            ),
        }

    def _servers(self) -> list[ServerStatus]:
        if self._session is None:
            return [ServerStatus(member.address, "out") for member in self.members]
        votes = self._session.acquisitions.table.votes
        return self._session.membership.servers(votes.__getitem__)

    async def open(self, client: str, deliver: Deliver) -> None:
        self._session = session = Session(self.members, self.config, deliver)
        await self._opening.run(self._open(session, client), self.aclose)

    async def _open(self, session: Session, client: str) -> None:
        try:
            await session.open(client)
        except BaseException:
            self._session = None
            await session.aclose()
            raise

    async def aclose(self) -> None:
        if self._opening.under_way:
            await self._opening.end()
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        session = self._session
        if session is None:
            return _failed(_closed())
        return _FUNCTIONS[type(operation)](session, operation)


def _acquire(session: Session, operation: Acquire) -> asyncio.Future[Any]:
    form = operation.form
    if form.shared and form.rule is not Rule.ALWAYS and not form.counts:
        return _unsupported(f"{operation.name!r} is of a kind that a quorum does not offer")
    return session.acquisitions.acquire(operation)


def _release(session: Session, operation: Release) -> asyncio.Future[int]:
    return session.acquisitions.release(operation)


def _renew(session: Session, operation: Renew) -> asyncio.Future[list[bool | None]]:
    return session.acquisitions.renewals.renew_all(operation.renewals)


def _finish(session: Session, operation: Finish) -> asyncio.Future[int]:
    return session.acquisitions.finishes.finish(operation)


def _read_status(session: Session, operation: ReadStatus) -> asyncio.Future[Any]:
    status = session.inspection.status(operation.name, waiters=operation.waiters)
    return asyncio.ensure_future(status)


def _read_page(session: Session, operation: ReadPage) -> asyncio.Future[Any]:
    return asyncio.ensure_future(session.inspection.page(operation.start))


def _break(session: Session, operation: Break) -> asyncio.Future[int]:
    return asyncio.ensure_future(session.inspection.break_(operation.name, operation.fences))


def _request_release(session: Session, operation: RequestRelease) -> asyncio.Future[int]:
    name = operation.name
    return session.membership.ask(
        lambda member, on_reply: member.request(name, on_reply),
        lambda said: max(said.values(), default=0),
    )


def _post(session: Session, operation: Post) -> asyncio.Future[int]:
    if operation.token or operation.declared:
        return _unsupported(f"{operation.name!r}: {_NOT_COUNTED}")
    return session.posted.post(operation)


def _read_posted(session: Session, operation: ReadPosted) -> asyncio.Future[Any]:
    return session.posted.read(operation)


def _downgrade(_: Session, operation: Downgrade) -> asyncio.Future[int]:
    return _unsupported(f"{operation.name!r}: {_NO_DOWNGRADE}")


def _not_handed_on(_: Session, operation: Detach | Adopt | Discard) -> asyncio.Future[Any]:
    return _unsupported(f"{operation.name!r}: {_NO_HANDING_ON}")


def _not_offered(_: Session, __: Resize | MakeFence | ReportHandoff) -> asyncio.Future[int]:
    """`ReportHandoff` is never submitted: no answer has a `before`; see `_handoffs`."""
    return _unsupported("a quorum of servers does not offer this: use one server")


_FUNCTIONS: Final[dict[type, Callable[[Session, Any], asyncio.Future[Any]]]] = {
    Acquire: _acquire,
    Release: _release,
    Renew: _renew,
    Finish: _finish,
    ReadStatus: _read_status,
    ReadPage: _read_page,
    Break: _break,
    RequestRelease: _request_release,
    Post: _post,
    ReadPosted: _read_posted,
    Downgrade: _downgrade,
    Detach: _not_handed_on,
    Adopt: _not_handed_on,
    Discard: _not_handed_on,
    Resize: _not_offered,
    MakeFence: _not_offered,
    ReportHandoff: _not_offered,
}


def _unsupported(reason: str) -> asyncio.Future[Any]:
    return _failed(Unsupported(reason))


def _failed(error: Exception) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _closed() -> StoreError:
    error = StoreError("the store is closed")
    error.refused = True
    return error
