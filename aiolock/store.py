"""The reference for authors of stores: `Store`, and what a store may offer.

You need not write the protocol: `aiolock.stores.machine` is all of it, without I/O.
`aiolock.stores.authors` says how to build a store on it, from anything that can load and save the
state of one name atomically, has a clock, knows which clients are alive, and can notify them.
`aiolock.protocol` has the operations, their answers, and the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, runtime_checkable

from aiolock.kinds import KINDS
from aiolock.protocol import Deliver, Operation

Value = TypeVar("Value")
Answer = TypeVar("Answer", contravariant=True)  # noqa: PLC0105  # named for what it is

ALL_KINDS: Final = frozenset({*KINDS, "rwlock"})
"""All kinds that a store may offer, by the methods of `LockClient` that make them."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server of a quorum, as a client sees it."""

    address: str
    state: str
    """``up``; or ``not voting``, if it answers but does not vote yet; or ``out``, if it does not
    answer."""
    not_voting: float = 0.0
    """Seconds for which it does not vote, because it may have forgotten its votes."""
    clock: float | None = None
    """Seconds by which its clock is ahead of the median; None if unknown."""
    votes: int = 0
    """How many of its votes this client has."""
    error: str = ""
    """Why it does not answer, or why it does not vote; empty if it does."""


@dataclass(frozen=True, eq=False)
class Features:
    """What a store offers. A store has one, which does not change while the store exists."""

    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of `ALL_KINDS` that it does not offer, never ``lock``; and ``share``, if it does not
    offer that option. For each, the reason, and what to use instead, as the end of a sentence. Such
    a kind is an error where it is described."""
    longest_ttl: float | None = None
    """The longest ttl of a lease, in seconds; a longer one is a `ValueError`. None: any."""
    shard_of: Callable[[str], Hashable] | None = None
    """The shard of a name, as far as it is known, if one shard may fail while others serve. The
    leases of one `Renew` are then all of one shard, so that a shard that fails does not delay the
    answers of the others."""
    in_order: Callable[[], bool] = bool
    """Whether it carries out what a client submits in that order, also if it is about several
    names; and what an earlier connection has left unanswered comes again before what follows."""
    servers: Callable[[], Sequence[ServerStatus]] = tuple
    """The present state of each server, if there are several of which some may fail; no I/O."""
    protocols: Callable[[], tuple[int, ...]] = tuple
    """The version of the store's own protocol, then those that other clients are known to use
    there. Clients of versions that cannot work together refuse each other by it."""


class Receiver(Protocol[Answer]):
    """What gets the answer of an operation in the very call in which it arrives, as a future."""

    def done(self) -> bool:
        """Whether it has the answer, or does not want it any more."""
        ...

    def resolve(self, answer: Answer, /) -> None:
        """The answer; ignored once it is done."""
        ...

    def set_exception(self, error: Exception, /) -> None:
        """The operation failed."""
        ...


class Submitted(Protocol):
    """An operation that was submitted, and whose answer a receiver gets."""

    def cancel(self) -> object:
        """The receiver does not want the answer any more; as for the future of `Store.submit`."""
        ...


@runtime_checkable
class Store(Protocol):
    """A place to keep locks.

    The operations are *started by the call* and give a future of the running loop: the command is
    under way whether or not anyone awaits it, and commands about one waiter are carried out in the
    order in which they were submitted. A future's exception is a `StoreError`.

    A client sends commands about its own waiters only. After it cancels the future of an `Acquire`,
    it submits a `Release` next, so the store may drop the cancelled command as long as it keeps
    that order. Every other command is carried out, even if its future is cancelled. Every future is
    resolved: a store gives up after 9.5 seconds at most.

    An open store may also have a mapping ``receiving``, from `Acquire`, `Release` and
    `ReportHandoff`, or some of them, to a function ``(operation, receiver) -> Submitted``, which
    gives the answer to a `Receiver`, never before it has returned. That is only to save the
    futures; `aiolock` uses what is there.
    """

    @property
    def features(self) -> Features:
        """What it offers: ``features = Features()`` in a store that offers everything."""
        ...

    async def open(self, client: str, deliver: Deliver) -> None:
        """Connect, and subscribe to events for ``client``; `StoreError` when that fails.

        A store that cannot count listeners considers no client dead.
        """
        ...

    async def aclose(self) -> None:
        """Wait for the commands under way, then disconnect. Idempotent; raises nothing."""
        ...

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        """Start the operation; the future has its answer, or the error."""
        ...
