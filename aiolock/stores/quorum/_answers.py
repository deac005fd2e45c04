"""The answers to a client about an acquisition, and how long the client waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.protocol import (
    Busy,
    Done,
    Full,
    Granted,
    GrantPushed,
    Participant,
    Queued,
    WaiterId,
    lasts,
)
from aiolock.stores._member import UNDECIDED, DoneMarker, InQueue, NotVoting, QueueIsFull
from aiolock.stores.quorum._acquisition import QuorumAcquisition, lease_until
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._membership import ANSWER_TIMEOUT, Membership
from aiolock.stores.quorum._passes import ASKED, Passes

ASK_AGAIN: Final = 10_000
"""Milliseconds after which a client checks whether a majority can still be asked."""


def granted(acquisition: QuorumAcquisition, deadline: float) -> Granted:
    """The answer "entered", until ``deadline``: a lease that counts from the client's question."""
    lease = lease_until(deadline, acquisition.called, acquisition.ttl)
    # The client must confirm this (`claim`) if the members have to know that the waiter is inside:
    # with a period only such a waiter counts as a run; and the end of a lease that is not renewed
    # proves nothing about its client.
    form = acquisition.request.form
    claim = form.period > 0 or (form.fixed and not form.counts)
    return Granted(acquisition.vote_set.fence, lease, claim=claim)


def pushed(  # noqa: PLR0917  # the grant
    acquisition: QuorumAcquisition,
    waiter: WaiterId,
    called: float,
    fence: int,
    deadline: float,
    now: float,
) -> GrantPushed:
    """The push to a queued waiter that it has entered."""
    lease, since = lease_until(deadline, now, acquisition.ttl), now
    if lease < acquisition.claim:  # as of any pushed grant, no earlier than its question
        since = max(deadline - lasts(acquisition.claim), called)
        lease = lease_until(deadline, since, acquisition.claim)
    # Two µs earlier, for rounding: it must not seem to last longer.
    when = max(int(since * 1e6) - 2, int(called * 1e6))
    request = acquisition.request
    return GrantPushed(request.name, waiter, request.form, fence, lease, when)


def granted_again(acquisition: QuorumAcquisition, ttl: int, now: float) -> Granted:
    """The answer to a waiter that asks after the lock was handed off to it: it has the lock."""
    deadline = acquisition.vote_set.deadline or 0.0
    acquisition.promised = max(acquisition.promised, deadline)
    lease = lease_until(deadline, now, ttl)
    return Granted(acquisition.vote_set.fence, lease)


def queued(acquisition: QuorumAcquisition) -> Queued:
    """The answer "queued"; its clock is the client's own."""
    said = [each.place for each in acquisition.said if isinstance(each, InQueue) and each.place]
    now = int(acquisition.called * 1e6)
    return Queued(acquisition.request.ticket, min(said, default=1), ASK_AGAIN, now)


def denied(
    acquisition: QuorumAcquisition, connections: Sequence[MemberConnection]
) -> Queued | Busy | Full | Done | StoreError | None:
    """The reason why the waiter cannot enter at once, if a majority gives one; None if it
    is open.
    """
    votes, quorum = acquisition.vote_set.votes, acquisition.vote_set.quorum
    minority = len(votes) - quorum
    if len(votes) - acquisition.said.count(None) <= minority and is_due(acquisition, connections):
        return None
    said = [each for each, vote in zip(acquisition.said, votes, strict=True) if vote is None]
    marked = [each.left for each in said if isinstance(each, DoneMarker)]
    if len(marked) >= quorum:
        return Done(sorted(marked)[-quorum])
    full = [each.waiters for each in said if isinstance(each, QueueIsFull)]
    taken = [each for each in said if isinstance(each, InQueue)]
    others_first = len(full) + len(taken)
    no = others_first + sum(isinstance(each, NotVoting) for each in said)
    errors = [each for each in said if isinstance(each, Exception)]
    if len(full) > minority:
        return Full(max(full))  # a member may not have got all requests yet
    if no <= minority and len(errors) > minority:
        error = StoreError("; ".join(map(str, errors)))
        error.__cause__ = errors[0].__cause__ or errors[0]
        return error
    if no > minority or _falls_short(acquisition, connections, others_first):
        return queued(acquisition) if acquisition.wait else _busy(taken, no - minority)
    return None


def is_due(acquisition: QuorumAcquisition, connections: Sequence[MemberConnection]) -> bool:
    """Whether an answer of a reachable member is missing."""
    return any(
        asked and connection.in_reach
        for asked, connection in zip(acquisition.asking, connections, strict=True)
    )


def _falls_short(
    acquisition: QuorumAcquisition, connections: Sequence[MemberConnection], others_first: int
) -> bool:
    """Whether a majority has voted, or has others first, and no answer is due.

    The other members cannot be reached; or the votes are of two periods; or a member that must get
    the fence cannot be reached.
    """
    vote_set = acquisition.vote_set
    answered = others_first + len(vote_set.votes) - vote_set.votes.count(None)
    return (
        answered >= vote_set.quorum
        and not is_due(acquisition, connections)
        and (vote_set.stuck or len(vote_set.together) < vote_set.quorum)
    )


def _busy(taken: list[InQueue], missing: int) -> Busy:
    """The answer that another client holds the lock: the one that most members name.

    With ``missing`` votes more there might be a majority: it asks again if these are undecided.
    """
    if sum(each.until == UNDECIDED for each in taken) >= max(1, missing):
        return Busy(-1)
    until = max((each.until for each in taken), default=1)
    holders = dict[tuple[str, int], list[Participant]]()
    for each in taken:
        if each.holder is not None:
            holders.setdefault((each.holder.client, each.holder.seq), []).append(each.holder)
    most = max(holders.values(), key=len, default=list[Participant]())
    return Busy(max(1, until), max(most, key=lambda party: party.fence) if most else None)


class Patience:
    """Questions with an answer due, all after the same time, with one timer for all of them."""

    def __init__(self, membership: Membership, passes: Passes) -> None:
        self._membership = membership
        self._passes = passes
        self._waiting: deque[tuple[float, Prompt]] = deque()
        self._timed = False
        """Whether there is a timer for the first of them, or a pass is under way."""

    def wait_for(self, answer: Prompt, now: float) -> None:
        """Fail the question when its time is over, unless it is answered."""
        waiting = self._waiting
        for _ in range(2):  # more than are added
            if waiting and waiting[0][1].done():
                waiting.popleft()
        waiting.append((now + ANSWER_TIMEOUT, answer))
        if not self._timed:
            self._timed = True
            self._passes.call_at(now + ANSWER_TIMEOUT, self._look)

    def _look(self) -> None:
        self._passes.begin(self, self._end(), self._look_again)

    def _end(self) -> Iterator[int]:
        now, waiting = self._membership.time(), self._waiting
        while waiting and (waiting[0][1].done() or waiting[0][0] <= now):
            _, answer = waiting.popleft()
            if answer.done():
                yield 1
            else:
                answer.set_exception(self._membership.too_few())
                yield ASKED

    def _look_again(self) -> None:
        self._timed = bool(self._waiting)
        if self._timed:
            when = max(self._membership.time() + 0.01, self._waiting[0][0])
            self._passes.call_at(when, self._look)

    def closing(self) -> Iterator[int]:
        """Cancel all questions that are still out, part by part."""
        while self._waiting:
            self._waiting.popleft()[1].cancel()
            yield 1
