"""What follows from a swap that was done: the holds that have begun, and what is left of them."""

from __future__ import annotations

import asyncio
from typing import Any

from aiolock.protocol import (
    WAS_HOLDER,
    Acquire,
    Finish,
    Granted,
    GrantLost,
    GrantPushed,
    Queued,
    Release,
    Renewal,
    ReportHandoff,
)
from aiolock.stores._effects import NameEvent
from aiolock.stores.etcd._attempt import Attempt
from aiolock.stores.etcd._holds import Grant, Holds
from aiolock.stores.etcd._own_leases import SHORTEST_HOLD, OwnLeases


class Outcomes:
    """Notes what has become of this client's holds, and limits what it is told of them.

    A hold lives with a lease of etcd's: it is certain for no longer than that, whatever its ttl.
    """

    def __init__(self, holds: Holds, leases: OwnLeases) -> None:
        self._holds, self._leases = holds, leases
        self._loop = asyncio.get_running_loop()

    def answered(self, attempt: Attempt, number: int) -> Any:
        """The answer to the part with this number, as the client may have it."""
        part: Any = attempt.parts[number]
        answer, lease, began = attempt.answers[number], attempt.lives[number], attempt.began
        match part, answer:
            case Acquire(), Queued():
                return answer._replace(now=int(began * 1e6))  # see `pushed`
            case Acquire(name, waiter, form), Granted(fence, ttl) if lease is not None:
                lives = None if answer.claim else lease
                self._holds.begin(Grant(name, waiter, fence), form, lives, ttl)
                return answer._replace(lease=_surely(ttl, lease.until - began))
            case Renewal(name, waiter, form, fence, ttl), True if ttl:
                if lease is None:
                    self._holds.forget(name, waiter)
                else:
                    self._holds.begin(Grant(name, waiter, fence), form, lease, ttl)
                    return True if lease.until >= began + ttl / 1000 else None
            case Renewal(name, waiter, _, fence), False:
                self._holds.forget(name, waiter, fence)
            case ((Release(name, waiter, _, fence) | Finish(name, waiter, _, fence)), _):
                self._holds.forget(name, waiter, fence)
            case ReportHandoff(name, form), found:
                self._holds.forget(name, part.source, part.source_fence)
                if found == WAS_HOLDER and form.claim >= SHORTEST_HOLD:
                    grant = Grant(name, part.target, part.fence)
                    self._holds.begin(grant, form, None, form.claim)
            case _:
                pass
        return answer

    def pushed(self, event: NameEvent, presence: int) -> NameEvent | None:
        """The event as the client may have it; None if it is about a claim that has ended.

        ``presence`` is the lease of ours for which it was sent. The client compares the time of a
        push with that of its place in the queue: so both are of the loop's clock, which does not
        err by an hour as that of a sender may.
        """
        match event:
            case GrantPushed():
                name, waiter, form, fence, claim, _ = event
                if claim >= SHORTEST_HOLD:
                    own = self._leases.presence
                    now = self._loop.time()
                    left = _surely(claim, own.until - now)
                    if presence != own.id or not left:
                        return None
                    self._holds.begin(Grant(name, waiter, fence), form, None, claim)
                    return event._replace(lease=left, now=int(now * 1e6))
            case GrantLost(name, waiter, fence):
                self._holds.forget(name, waiter, fence)
            case _:
                pass
        return event


def _surely(lease: int, seconds: float) -> int:
    """So many ms, or as many as are certain."""
    return int(max(min(lease, 1000 * seconds), 0))
