"""The holders of one name. No operation here looks at all of them, however many there are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Final, NamedTuple

from aiolock.protocol import Form, WaiterId
from aiolock.status import DETACHED
from aiolock.stores._sessions import Session
from aiolock.stores._shares import Shares

RESERVED: Final = "-"
"""The client of a reserved grant, which means "closed" or "done": it ends like any other, but no
client owns it."""


class Grant(NamedTuple):
    """The id of one grant: a late message about it cannot mean another grant."""

    waiter: WaiterId
    fence: int


class Holder:
    """One grant among the holders."""

    __slots__ = ("claim", "end", "form", "grant", "session", "shared")

    def __init__(
        self,
        grant: Grant,
        form: Form,
        end: int,
        *,
        shared: bool,
        claim: bool = False,
        session: str = "",
    ) -> None:
        self.grant = grant
        self.form = form
        self.end = end
        """The end of its lease, in ms, or `FOREVER` and its ttl; see `Holders.prolong`."""
        self.shared = shared
        """Whether others that share may enter: from the first, or since it was downgraded."""
        self.claim = claim
        """Whether its lease is the claim of a pushed grant that the client has not confirmed."""
        self.session = session
        """The text of the client's `Session` that it lives with; empty: its lease ends at `end`."""

    @property
    def client(self) -> str:
        return self.grant.waiter.client

    @property
    def is_reserved(self) -> bool:
        return self.client == RESERVED

    @property
    def has_client(self) -> bool:
        """Whether a client has it: it is neither reserved nor detached."""
        return self.client != RESERVED and not self.client.startswith(DETACHED)


class _End(NamedTuple):
    """The end of a lease: of those that end at the same time, the lower fence comes first."""

    time: int
    fence: int
    grant: Grant


class Holders(Mapping[Grant, Holder]):
    """The holders of one name by their grants, in the order in which they were added."""

    __slots__ = ("_by_fence", "_by_grant", "_by_waiter", "_ends", "permits", "sessions", "shares")

    def __init__(self) -> None:
        self._by_grant: dict[Grant, Holder] = {}
        self._by_waiter: dict[WaiterId, Holder] = {}
        self._by_fence: dict[int, Holder] = {}
        """Those that are not reserved: a reserved grant has the fence of the one that ended."""
        self._ends: list[_End] = []
        """The ends of all leases, in order."""
        self.permits = 0
        """How many permits they have taken."""
        self.sessions: dict[Session, int] = {}
        """The sessions that holders live with, and how many of them."""
        self.shares: Shares | None = None
        """The shares that hold or wait; None until there is one."""

    def __getitem__(self, grant: Grant) -> Holder:
        return self._by_grant[grant]

    def __iter__(self) -> Iterator[Grant]:
        return iter(self._by_grant)

    def __len__(self) -> int:
        return len(self._by_grant)

    def items(self) -> ItemsView[Grant, Holder]:
        return self._by_grant.items()

    def values(self) -> ValuesView[Holder]:
        return self._by_grant.values()

    def add(self, holder: Holder) -> None:
        """Add a holder; it replaces another with the same grant, if there is one."""
        grant = holder.grant
        self.remove(grant)
        self._by_grant[grant] = self._by_waiter[grant.waiter] = holder
        if not holder.is_reserved:
            self._by_fence[grant.fence] = holder
        insort(self._ends, _End(holder.end, grant.fence, grant))
        self.permits += holder.form.permits
        if holder.form.share:
            self.made_shares().hold(holder.form, holder.form.permits)
        if holder.session:
            self._lives_with(holder, 1)

    def made_shares(self) -> Shares:
        """The shares, of which the first is seen now, or was before."""
        if self.shares is None:
            self.shares = Shares()
        return self.shares

    def remove(self, grant: Grant) -> Holder | None:
        """Remove and return the holder with this grant; None if there is none."""
        holder = self._by_grant.get(grant)
        if holder is not None:
            self._remove_end(holder)
            self._forget(holder)
        return holder

    def take_ended(self, now: int, most: int) -> list[Holder]:
        """Remove and return holders whose lease has ended, in the order of the ends."""
        ended = min(most, bisect_right(self._ends, now, key=_time))
        holders = [self._by_grant[end.grant] for end in self._ends[:ended]]
        del self._ends[:ended]
        for holder in holders:
            self._forget(holder)
        return holders

    def prolong(self, holder: Holder, end: int, session: str = "") -> None:
        """Move the end of its lease, to later or earlier, or to that of a session."""
        self._remove_end(holder)
        if holder.session:
            self._lives_with(holder, -1)
        holder.end, holder.session = end, session
        if session:
            self._lives_with(holder, 1)
        insort(self._ends, _End(end, holder.grant.fence, holder.grant))

    def of(self, waiter: WaiterId) -> Holder | None:
        """The grant that this waiter holds, if any."""
        return self._by_waiter.get(waiter)

    def with_fence(self, fence: int) -> Holder | None:
        """The holder with this fence, if any; not a reserved one."""
        return self._by_fence.get(fence)

    @property
    def first(self) -> Holder | None:
        """The holder whose lease ends first."""
        return self._by_grant[self._ends[0].grant] if self._ends else None

    @property
    def last_end(self) -> int:
        """When the last of the leases ends, in ms; 0 if there is none."""
        return self._ends[-1].time if self._ends else 0

    @property
    def open(self) -> bool:
        """Whether shared waiters may enter: every holder shares the lock, or there is none."""
        return not self._ends or self._by_grant[self._ends[0].grant].shared

    def _lives_with(self, holder: Holder, one: int) -> None:
        session = Session(holder.client, holder.session)
        count = self.sessions.get(session, 0) + one
        if count:
            self.sessions[session] = count
        else:
            del self.sessions[session]

    def _remove_end(self, holder: Holder) -> None:
        end = _End(holder.end, holder.grant.fence, holder.grant)
        del self._ends[bisect_left(self._ends, end)]

    def _forget(self, holder: Holder) -> None:
        grant = holder.grant
        del self._by_grant[grant]
        if self._by_waiter.get(grant.waiter) is holder:
            del self._by_waiter[grant.waiter]
        if self._by_fence.get(grant.fence) is holder:
            del self._by_fence[grant.fence]
        self.permits -= holder.form.permits
        if self.shares is not None:
            self.shares.hold(holder.form, -holder.form.permits)
        if holder.session:
            self._lives_with(holder, -1)


def _time(end: _End) -> int:
    return end.time
