"""The state of one name as `status` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from aiolock.protocol import FEW, PRIORITY, Form, Participant, ReadStatus, Status, WaiterId
from aiolock.stores._holders import RESERVED, Grant, Holder
from aiolock.stores._sessions import FOREVER
from aiolock.stores._shares import placed
from aiolock.stores._state import NameState


class View:
    """The state of ``name`` at one moment, ``now`` (µs); what ends by ``past`` (ms) is over.

    ``listens`` says whether a client is alive, and ``metadata`` gives its host and its process.
    """

    def __init__(
        self,
        name: str,
        state: NameState,
        now: int,
        past: int,
        *,
        listens: Callable[[str], bool],
        metadata: Callable[[str], tuple[str, int]],
    ) -> None:
        self._name = name
        self._state = state
        self._now = now
        self._past = past
        self._listens = listens
        self._metadata = metadata

    def status(self, asked: ReadStatus) -> Status:
        """See `ReadStatus`."""
        held = self._state.holders
        if asked.waiters:
            return self.status_of(self.holders(held), self.waiters(self._state.queue))
        few, passed = list[Grant](), 0
        for grant, holder in held.items():
            if len(few) == FEW:
                break
            passed += 1
            if holder.end > self._past:
                few.append(grant)
        found = self.status_of(self.holders(few), ())
        return replace(found, more_holders=len(held) - passed)

    def holders(self, grants: Iterable[Grant]) -> list[Participant]:
        """The holders of these grants, as far as they are held, for a status; also
        reserved ones.
        """
        held = self._state.holders
        here = (held[grant] for grant in grants if grant in held)
        return [self.holder(holder) for holder in here if holder.end > self._past]

    def waiters(self, queue: Iterable[tuple[int, WaiterId]], first: int = 1) -> list[Participant]:
        """The waiters among these, for a status; the first of them has the place ``first``."""
        waiting = self._state.waiting
        here = ((ticket, waiter) for ticket, waiter in queue if waiter in waiting)
        return [
            self._waiter(waiter, ticket, place)
            for place, (ticket, waiter) in enumerate(here, start=first)
        ]

    def status_of(self, held: Iterable[Participant], waiting: Iterable[Participant]) -> Status:
        """The status with these holders, in any order, and these waiters in order.

        A waiter may be in both: it was granted the lock after the waiters were read.
        """
        closed, holders = 0.0, list[Participant]()
        for party in held:
            if party.client == RESERVED:
                closed = max(closed, party.remaining)
            else:
                holders.append(party)
        holders.sort(key=lambda party: party.fence)
        return Status(
            *(self._name, tuple(holders), _behind(holders, waiting), closed, self._state.limit),
            now=self._now / 1e6,
        )

    def holder(self, holder: Holder) -> Participant:
        """This holder as a status shows it."""
        waiter, fence = holder.grant
        ends = holder.end - (FOREVER if holder.session else self._now / 1000)
        left = max(ends, 0) / 1000
        return self._participant(
            *(waiter, holder.form, fence / 1e6),
            fence=fence,
            remaining=left,
            shared=holder.shared,
        )

    def _waiter(self, waiter: WaiterId, ticket: int, place: int) -> Participant:
        _, form = self._state.waiting[waiter]
        since = (ticket - form.priority * PRIORITY) / 1e6
        return self._participant(waiter, form, since, place=place, shared=form.shared)

    def _participant(
        self,
        waiter: WaiterId,
        form: Form,
        since: float,
        *,
        shared: bool,
        place: int = 0,
        fence: int = 0,
        remaining: float = 0.0,
    ) -> Participant:
        host, pid = self._metadata(waiter.client)
        return Participant(
            client=waiter.client,
            host=host,
            pid=pid,
            since=since,
            place=place,
            fence=fence,
            remaining=remaining,
            shared=shared,
            permits=form.permits,
            seq=waiter.seq,
            alive=self._listens(waiter.client),
            share=form.share,
            weight=form.weight / 1000,
        )


def _behind(
    holders: Iterable[Participant], waiting: Iterable[Participant]
) -> tuple[Participant, ...]:
    """The waiters that are not holders by now, each at its place."""
    held = {(party.client, party.seq) for party in holders}
    return tuple(placed(party for party in waiting if (party.client, party.seq) not in held))
