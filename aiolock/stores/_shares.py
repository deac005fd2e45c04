"""The shares of one name: who is next among them. No operation here looks at all of them.

Each share has an *account*: the permits that it holds, and its *start*, the virtual time at which
its next grant begins. A grant moves the start by what it costs, so less for a share of more weight;
and the virtual time of the priority moves to the start of the grant. The next is the share that
holds least for its weight; among equals, the one that starts first; among these, the one whose
first waiter came first. This is start-time fair queueing (Goyal, Vin and Cheng), with the permits
that are held before it.

A share pays when it is granted, not when it asks: a waiter that gives up costs it nothing. A share
that was idle starts at the present: it has no credit. All this is about waiters: when none with a
share is left of a priority, all starts of it are forgotten, and a grant costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from aiolock import protocol
from aiolock.protocol import Form, Participant, WaiterId


class Place(NamedTuple):
    """The place of a share among those of its priority that wait: the least is next."""

    held: int
    """The permits that it holds for its weight, in millionths."""
    start: int
    ticket: int
    waiter: WaiterId
    """Its first waiter."""


class Waiting(NamedTuple):
    """A waiter of a share."""

    ticket: int
    waiter: WaiterId
    weight: int = 0


class Account:
    """The account of one share in one priority."""

    __slots__ = ("ahead", "held", "name", "place", "queue", "start")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = 0
        """The permits that it holds."""
        self.start = 0
        self.queue = list[Waiting]()
        """Its waiters, in order of arrival."""
        self.place: Place | None = None
        """Its place, while it waits."""
        self.ahead: tuple[int, str] | None = None
        """Start and name, while it does not wait, but is ahead of the virtual time."""


class Accounts:
    """The accounts of one priority."""

    __slots__ = ("_ahead", "_by_name", "_places", "virtual")

    def __init__(self) -> None:
        self._by_name = dict[str, Account]()
        """Those that wait, or hold, or are ahead."""
        self._places = list[Place]()
        """The places of those that wait, in order."""
        self._ahead = list[tuple[int, str]]()
        """Those that are ahead and do not wait, in order."""
        self.virtual = 0
        """The virtual time: the latest start of a grant."""

    def join(self, waiting: Waiting, share: str) -> None:
        """Add a waiter to its share, at its place by its ticket."""
        account = self._taken(share)
        if not account.queue:
            account.start = max(account.start, self.virtual)
        insort(account.queue, waiting)
        self._put(account)

    def leave(self, ticket: int, waiter: WaiterId, share: str) -> None:
        """Remove a waiter from its share, which costs that nothing."""
        account = self._taken(share)
        del account.queue[bisect_left(account.queue, Waiting(ticket, waiter))]
        self._put(account)
        if not self._places:
            self._forget()

    def charge(self, share: str, cost: int) -> None:
        """Let a share pay for a grant, if another waiter is left."""
        if not self._places:
            return
        account = self._taken(share)
        self.virtual = max(account.start, self.virtual)
        account.start = self.virtual + cost
        self._put(account)
        while self._ahead and self._ahead[0][0] <= self.virtual:
            self._forget_first()

    def hold(self, share: str, permits: int) -> None:
        """Count permits that a share holds from now on; less than 0: it held them until now."""
        account = self._taken(share)
        account.held += permits
        self._put(account)

    def next(self) -> tuple[int, WaiterId]:
        """The waiter that is next, with its ticket. There must be one."""
        place = self._places[0]
        return place.ticket, place.waiter

    def queue(self, share: str) -> Sequence[Waiting]:
        """The waiters of a share, in order of arrival."""
        account = self._by_name.get(share)
        return () if account is None else account.queue

    def starts(self) -> dict[str, int]:
        """The start of each share for which it is not the virtual time."""
        return {
            name: account.start
            for name, account in sorted(self._by_name.items())
            if account.ahead or (account.place and account.start != self.virtual)
        }

    def restore(self, virtual: int, starts: Mapping[str, int]) -> None:
        """Set the virtual time, and the starts as `starts` gave them."""
        self.virtual = virtual
        for name in {**self._by_name, **starts}:
            account = self._taken(name)
            account.start = starts.get(name, virtual)
            self._put(account)

    def _taken(self, share: str) -> Account:
        """The account of a share, a new one if it has none; `_put` it back when it has changed."""
        account = self._by_name.get(share)
        if account is None:
            return Account(share)
        if account.place is not None:
            del self._places[bisect_left(self._places, account.place)]
            account.place = None
        elif account.ahead is not None:
            del self._ahead[bisect_left(self._ahead, account.ahead)]
            account.ahead = None
        return account

    def _put(self, account: Account) -> None:
        self._by_name[account.name] = account
        if account.queue:
            ticket, waiter, weight = account.queue[0]
            held = account.held * 1_000_000 // weight
            account.place = Place(held, account.start, ticket, waiter)
            insort(self._places, account.place)
        elif account.start > self.virtual:
            account.ahead = account.start, account.name
            insort(self._ahead, account.ahead)
            if len(self._ahead) > protocol.MOST_AHEAD:
                self._forget_first()
        elif account.held:
            account.start = 0  # it counts no more, so there is nothing to forget
        else:
            del self._by_name[account.name]

    def _forget(self) -> None:
        """Forget all starts: nobody waits. Those that are not ahead have none: see `_put`."""
        while self._ahead:
            self._forget_first()
        self.virtual = 0

    def _forget_first(self) -> None:
        """Forget the start of the share that is least ahead of those that do not wait."""
        _, name = self._ahead.pop(0)
        account = self._by_name[name]
        account.ahead, account.start = None, 0
        if not account.held:
            del self._by_name[name]


class Shares:
    """The shares of one name, by the priority of their waiters and grants."""

    __slots__ = ("_by_priority",)

    def __init__(self) -> None:
        self._by_priority = dict[int, Accounts]()

    def join(self, ticket: int, waiter: WaiterId, form: Form) -> None:
        """A waiter comes into the queue, or comes back."""
        self._of(form).join(Waiting(ticket, waiter, form.weight), form.share)

    def leave(self, ticket: int, waiter: WaiterId, form: Form) -> None:
        """A waiter leaves the queue, for whatever reason."""
        self._of(form).leave(ticket, waiter, form.share)

    def charge(self, form: Form) -> None:
        """Such a waiter is granted, and has left the queue."""
        cost = max(1, max(1, form.permits) * protocol.COST * 1000 // form.weight)
        self._of(form).charge(form.share, cost)

    def hold(self, form: Form, permits: int) -> None:
        """Count the permits that a grant takes, or, less than 0, no longer takes."""
        if form.share and permits:
            self._of(form).hold(form.share, permits)

    def next(self, priority: int) -> tuple[int, WaiterId]:
        """The waiter that is next among those with shares of a priority, with its ticket."""
        return self._by_priority[priority].next()

    def queue(self, form: Form) -> Sequence[Waiting]:
        """The waiters of the share of such a waiter, in order of arrival."""
        return self._of(form).queue(form.share)

    def saved(self) -> Iterator[tuple[int, int, dict[str, int]]]:
        """The part that does not follow from holders and waiters: for each priority its virtual
        time, and the starts of the shares for which it is another.
        """
        for priority, accounts in sorted(self._by_priority.items()):
            starts = accounts.starts()
            if accounts.virtual or starts:
                yield priority, accounts.virtual, starts

    def restore(self, priority: int, virtual: int, starts: Mapping[str, int]) -> None:
        """Set what `saved` gave, when all holders and waiters are here."""
        self._by_priority.setdefault(priority, Accounts()).restore(virtual, starts)

    def _of(self, form: Form) -> Accounts:
        return self._by_priority.setdefault(form.priority, Accounts())


def placed(waiters: Iterable[Participant]) -> Iterator[Participant]:
    """These waiters, in order of arrival, each at its place: in the queue, or in its share."""
    shares = Counter[str]()
    for place, waiter in enumerate(waiters, start=1):
        if waiter.share:
            shares[waiter.share] += 1
            place = shares[waiter.share]  # noqa: PLW2901  # of two kinds of place, the other
        yield waiter if waiter.place == place else replace(waiter, place=place)
