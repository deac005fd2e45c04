"""The log: a line for each thing that goes wrong, with what to do about it."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from aiolock.observer import Deadlock, Link, LockRequest, Loss, LostBody, Observer, who
from aiolock.protocol import Participant
from aiolock.text import one_line

SLOW_WAIT: Final = 10.0
SLOW_HOLD: Final = 300.0
"""Default limits, in seconds."""

_LASTING: Final = frozenset({"election"})
"""The kinds that are waited for, and held, for days on purpose."""

_BODIES: Final[dict[LostBody, str]] = {
    "cancelled": "Its body is cancelled",
    "in a thread": "Its body is in a thread, and goes on until it calls `lease.check()` or waits"
    " for a lock",
    "goes on": "Its body goes on, for on_lost='signal' only sets `lease.lost`",
    "none": "It has no body that could be cancelled, only `lease.lost`",
}

_log = logging.getLogger("aiolock")


def _limit(what: str, given: float | timedelta | None) -> float | None:
    if given is None:
        return None
    limit = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise TypeError(f"{what} must be a number of seconds, a timedelta or None, not {given!r}")
    if not limit > 0:
        raise ValueError(f"{what} must be more than 0 seconds, or None, not {given!r}")
    return limit


class Log(Observer):
    """Logs losses, links, deadlocks, and what takes long; other events cost nothing."""

    def __init__(
        self,
        *,
        slow_wait: float | timedelta | None = SLOW_WAIT,
        slow_hold: float | timedelta | None = SLOW_HOLD,
    ) -> None:
        self.slow_wait = _limit("slow_wait", slow_wait)
        self.slow_hold = _limit("slow_hold", slow_hold)

    def lost(
        self,
        request: LockRequest,
        *,
        fence: int,
        held: float,
        reason: Loss,  # noqa: ARG002  # `why` has it in words
        why: str,
        body: LostBody,
    ) -> None:
        """Log the loss: another client may have the lock now."""
        _log.warning(
            "aiolock: %r lost the %s %r (fence %d) after %.1f s: %s. %s; what it writes now may be"
            " behind what others write, so let the storage check the fence",
            request.label,
            request.kind,
            request.name,
            fence,
            held,
            why,
            _BODIES[body],
        )

    def link(self, state: Link, error: Exception | None) -> None:
        """Log that the store cannot be reached, or can again."""
        if state == "up":
            _log.warning("aiolock: the link to the store is up again")
        elif error is not None:  # it is down
            _log.warning(
                "aiolock: the link to the store broke: %s. The client reconnects, and waiters keep"
                " their places; what is held is lost unless that works before the leases end",
                one_line(error),
            )

    def waits_long(
        self, request: LockRequest, *, waited: float, holders: tuple[Participant, ...], others: int
    ) -> None:
        """Log the wait, and the holder."""
        if request.kind in _LASTING:
            return
        held = f"{who(holders[0])} holds it" if holders else "it has no holder at this moment"
        held += f", and {len(holders) - 1} more" if len(holders) > 1 else ""
        held += "; that process is gone: its lease ends by itself" * any(
            not holder.alive for holder in holders
        )
        _log.warning(
            "aiolock: %r has waited %.1f s for the %s %r%s: %s. A timeout= ends such a wait;"
            " `aiolock show` shows the queue, request_release() asks the holder, break_() takes it",
            request.label,
            waited,
            request.kind,
            request.name,
            f", as have {others} more here" if others else "",
            held,
        )

    def holds_long(self, request: LockRequest, *, fence: int, held: float) -> None:
        """Log the hold: others may wait for the lock."""
        if request.kind in _LASTING:
            return
        _log.warning(
            "aiolock: %r has held the %s %r (fence %d) for %.0f s, and goes on. If that is not"
            " meant, max_hold= bounds it",
            request.label,
            request.kind,
            request.name,
            fence,
            held,
        )

    def deadlock(self, deadlock: Deadlock) -> None:
        """Log which tasks wait for each other."""
        _log.error("aiolock: deadlock: %s", deadlock)
