"""What a client is told about an acquisition, and how long it waits for that answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.store import Busy, Done, Full, Granted, Party, Queued
from aiolock.stores._member import Crowded, InLine, Marked, Silent
from aiolock.stores.quorum._council import ANSWER_TIMEOUT, Council
from aiolock.stores.quorum._seat import Seat
from aiolock.stores.quorum._standing import Standing, lease_until

ASK_AGAIN: Final = 10_000
"""Milliseconds after which a client checks whether a majority can still be asked."""


def granted(standing: Standing, deadline: float) -> Granted:
    """The answer "entered", until ``deadline``: a lease that counts from the client's question."""
    lease = lease_until(deadline, standing.called, standing.ttl)
    # To be confirmed if the members have to know that the waiter is inside. With a period only such
    # a waiter has a run; and the end of a lease that is not renewed says nothing of its client.
    form = standing.stand.form
    claim = form.period > 0 or (form.fixed and not form.counts)
    return Granted(standing.ballot.fence, lease, claim=claim)


def queued(standing: Standing) -> Queued:
    """The answer "queued"; its clock is the client's own."""
    said = [each.place for each in standing.said if isinstance(each, InLine) and each.place]
    now = int(standing.called * 1e6)
    return Queued(standing.stand.ticket, min(said, default=1), ASK_AGAIN, now)


def denied(
    standing: Standing, seats: Sequence[Seat]
) -> Queued | Busy | Full | Done | StoreError | None:
    """Why the waiter cannot enter at once, if a majority says so; None if that is not known yet."""
    votes, quorum = standing.ballot.votes, standing.ballot.quorum
    minority = len(votes) - quorum
    if len(votes) - standing.said.count(None) <= minority and is_due(standing, seats):
        return None
    said = [each for each, vote in zip(standing.said, votes, strict=True) if vote is None]
    marked = [each.left for each in said if isinstance(each, Marked)]
    if len(marked) >= quorum:
        return Done(sorted(marked)[-quorum])
    full = [each.waiters for each in said if isinstance(each, Crowded)]
    taken = [each for each in said if isinstance(each, InLine)]
    others_first = len(full) + len(taken)
    no = others_first + sum(isinstance(each, Silent) for each in said)
    errors = [each for each in said if isinstance(each, Exception)]
    if len(full) > minority:
        return Full(max(full))  # a member may not have heard of all yet
    if no <= minority and len(errors) > minority:
        error = StoreError("; ".join(map(str, errors)))
        error.__cause__ = errors[0].__cause__ or errors[0]
        return error
    if no > minority or _falls_short(standing, seats, others_first):
        return queued(standing) if standing.wait else _busy(taken)
    return None


def is_due(standing: Standing, seats: Sequence[Seat]) -> bool:
    """Whether a member that can be reached has still to answer."""
    return any(asked and seat.in_reach for asked, seat in zip(standing.asking, seats, strict=True))


def _falls_short(standing: Standing, seats: Sequence[Seat], others_first: int) -> bool:
    """Whether a majority has voted or said that others come first, and no answer is due.

    The other members cannot be reached; or the votes are of two periods; or a member that cannot be
    reached has to be told the fence.
    """
    ballot = standing.ballot
    answered = others_first + len(ballot.votes) - ballot.votes.count(None)
    return (
        answered >= ballot.quorum
        and not is_due(standing, seats)
        and (ballot.stuck or len(ballot.together) < ballot.quorum)
    )


def _busy(taken: list[InLine]) -> Busy:
    """Another client holds the lock: the one that most members name."""
    until = max((each.until for each in taken), default=1)
    holders = dict[tuple[str, int], list[Party]]()
    for each in taken:
        if each.holder is not None:
            holders.setdefault((each.holder.client, each.holder.seq), []).append(each.holder)
    most = max(holders.values(), key=len, default=list[Party]())
    return Busy(max(1, until), max(most, key=lambda party: party.fence) if most else None)


class Patience:
    """Questions with an answer due, all after the same time, with one timer for all of them."""

    def __init__(self, council: Council) -> None:
        self._council = council
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, Prompt]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, answer: Prompt, now: float) -> None:
        """Fail the question when its time is over, unless it is answered."""
        waiting = self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()
        waiting.append((now + ANSWER_TIMEOUT, answer))
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_TIMEOUT, self._look)

    def _look(self) -> None:
        self._timer, now, waiting = None, self._council.time(), self._waiting
        while waiting and (waiting[0][1].done() or waiting[0][0] <= now):
            _, answer = waiting.popleft()
            if not answer.done():
                answer.set_exception(self._council.too_few())
        if waiting:
            left = max(0.01, waiting[0][0] - now)
            self._timer = self._loop.call_later(left, self._look)

    def close(self) -> None:
        """Cancel all questions that are still out."""
        if self._timer is not None:
            self._timer.cancel()
        for _, answer in self._waiting:
            answer.cancel()
