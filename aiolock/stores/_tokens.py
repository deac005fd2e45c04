"""The tokens of a rate limit, for the waiters of one name at one moment: see `_bucket`."""

from __future__ import annotations

from aiolock._rate import Rate, rate_of
from aiolock.protocol import A_MINUTE, LOOKED_AHEAD, Answer, Busy, Form, Granted, Queued, WaiterId
from aiolock.stores._bucket import Bucket
from aiolock.stores._state import NameState


class Tokens:
    """The tokens of the name with this state.

    ``now`` (µs) and ``slack`` are those of the step; what ends by ``past`` (ms) is over.
    """

    def __init__(self, state: NameState, now: int, past: int, slack: int) -> None:
        self._state = state
        self._now = now
        self._ms = now // 1000
        self._past = past
        self._slack = slack

    def _bucket(self, form: Form) -> tuple[Bucket, Rate]:
        bucket = self._state.bucket
        if bucket is None:
            bucket = self._state.bucket = Bucket()
        rate = rate_of(self._state.permits(form.declared, self._ms))
        bucket.see(rate, self._now, self._slack)
        return bucket, rate

    def got(self, waiter: WaiterId, form: Form) -> Granted | None:
        """The grant of a waiter that got its tokens before, as long as that is remembered."""
        bucket, _ = self._bucket(form)
        if bucket.granted.get(waiter, 0) <= self._past:
            return None
        return Granted(max(bucket.full(self._now) - self._now, 1), form.claim)

    def take(self, waiter: WaiterId, form: Form) -> int:
        """Give it its tokens, which are there; see `Rule.RATE` for the number that it gets."""
        (bucket, rate), until = self._bucket(form), self._ms + form.claim
        left = bucket.take(rate, form.number, self._now)
        bucket.remember(waiter, until, self._past)
        self._state.keep(max(bucket.full_at // 1000 + 1, until) + A_MINUTE)
        return left

    def are_due(self, form: Form) -> bool:
        """Whether its tokens are there, if nobody takes any before it."""
        return self._due(form, 0) <= self._now

    def _due(self, form: Form, before: int) -> int:
        """When its tokens are there, after ``before`` others were taken (µs)."""
        bucket, rate = self._bucket(form)
        return bucket.due(rate, form.number, before, self._now)

    def answer(
        self, waiter: WaiterId, form: Form, *, wait: bool, displaced: bool, at_once: bool
    ) -> Answer:
        """The answer with the time at which its tokens are there, if all before it take theirs.

        ``at_once``: it is to ask again at once, since this step has left work.
        """
        state = self._state
        rank = state.place(waiter) - 1 if waiter in state.waiting else len(state.queue)
        ahead = [state.waiting[each][1].number for _, each in state.queue[:LOOKED_AHEAD][:rank]]
        due = self._due(form, sum(ahead) + rank - len(ahead))
        _, first = state.next(0) if wait else (0, waiter)
        if wait and state.waiting[first][1].share and first.client == waiter.client:
            due = self._due(state.waiting[first][1], 0)  # its client asks for the one that is next
        left = 0 if at_once else max(due - self._now, 1)
        if not wait:
            return Busy(left or -1)
        ticket, _ = state.waiting[waiter]
        return Queued(ticket, rank + 1, -(-left // 1000), self._now, displaced)

    def resize(self, before: int, limit: int) -> None:
        """The declared number, which stands for a rate, is another one from now on."""
        bucket = self._state.bucket = self._state.bucket or Bucket()
        bucket.see(rate_of(before), self._now, self._slack)
        bucket.resize(rate_of(before), rate_of(limit), self._now)
        moved_up(self._state)


def moved_up(state: NameState) -> None:
    """Waiters of a rate limit come earlier than they were told: some before them have left."""
    if state.bucket is not None and state.queue:
        state.bucket.outdated = state.queue[-1][0]


def client_to_tell(bucket: Bucket, state: NameState, asking: WaiterId | None) -> str | None:
    """The client that is to ask, if the first waiter was told a later time than that of its tokens.

    ``asking`` is being answered. With a share, whoever is next may have been told any time; an
    answer to its client says it.
    """
    if not state.queue:
        return None
    ticket, first = state.next(0)
    if state.waiting[first][1].share:
        of_it = asking is not None and asking.client == first.client
        answered = of_it and asking in state.waiting
        outdated = True
    else:
        answered, outdated = first == asking, ticket <= bucket.outdated
    if outdated and bucket.told != ticket and not answered:
        bucket.told = ticket
        return first.client
    return None
