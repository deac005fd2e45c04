"""One acquisition that is under way, and the deadline arithmetic of a pushed grant."""

from __future__ import annotations

import asyncio
from typing import Any

from aiolock._engine.grant import Grant, lasts
from aiolock._engine.policy import Policy
from aiolock.store import Party, Waiter


class Attempt:
    """One acquisition that is under way."""

    # Defaults on the class: a lock that is free is granted before any of these is written to.
    ticket = 0
    store_time = 0
    """The store's clock when it answered the question that was sent at `sent`."""
    answered = False
    given_up = False
    left = False
    """It waits no more."""
    asked: asyncio.Future[Any] | None = None
    """What the store will answer, or has answered, to the last question."""
    waits_for: asyncio.Future[Grant] | None = None
    """Waits for the push, once the store has answered that we are queued."""
    pushed: Grant | None = None
    """The push, where it overtook that answer."""
    void = 0
    """Grants up to this fence are not to be entered: taken away, or given back as too late."""
    claim = 0
    """The fence of the last grant that was pushed: its lease is a claim until it is confirmed."""
    asking = False
    """It asked again, and has not looked at the answer yet."""
    crossed = False
    """A question was under way when the lock was granted by a push."""
    outdated = False
    """Something happened that the answer under way may not know of: ask once more after it."""
    wanted = 0
    """Somebody asks for the grant of this fence, of which we have not heard yet."""
    interrupted: Exception | None = None
    """Why not to wait any longer; kept, for it may come while the task waits for nothing."""
    known = False
    """The store has answered once that it has something of it."""
    failing_since: float | None = None
    """When the first of the questions failed that have failed since one was answered."""
    retrying = False
    """It asks again in a moment, after a question that failed."""
    holder: Party | None = None
    """Who held it when the store said that it is not free."""
    patient: asyncio.Task[Any] | None = None
    """Its owner, where it waits for as long as it takes."""
    task: asyncio.Task[Any] | None = None
    """The task that waits in the queue, where it waits for itself and for as long as it takes."""

    def __init__(self, waiter: Waiter, policy: Policy, ttl: int, began: float) -> None:
        self.waiter = waiter
        self.policy = policy
        self.ttl = ttl
        self.began = self.sent = self.last_asked = began

    def claims(self, grant: Grant) -> bool:
        """Whether the lease of this grant is only a claim, which may be as long as the ttl."""
        return grant[0] == self.claim or grant[1] < self.ttl

    def deadline(self, lease: int, granted: int, now: float) -> float:
        """Until when a pushed lease is certainly ours, by two clocks that only need to run alike.

        The grant was made at ``granted`` µs by the store, ``granted - store_time`` after it had
        answered us, which was after we had sent that question at ``sent``. And a push cannot
        arrive before it was made.
        """
        since_answer = (granted - self.store_time) / 1e6 if self.answered else 0.0
        return min(self.sent + since_answer, now) + lasts(lease)

    def interrupt(self, error: Exception) -> None:
        """End the waiting with an error, unless the lock has been granted."""
        self.interrupted = error
        future = self.waits_for if self.waits_for is not None else self.asked
        if future is not None and not future.done():
            future.set_exception(error)
