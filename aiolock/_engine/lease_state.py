"""The states of a lease, and the reasons for which one is lost."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final


class LeaseState(StrEnum):
    """The state of a lease, as far as this client knows."""

    HELD = "held"
    AT_RISK = "at_risk"
    """A renewal has no answer yet: still ours, but lost at its deadline unless one succeeds."""
    LOST = "lost"
    RELEASED = "released"
    DETACHED = "detached"
    """It belongs to whoever has its token: see `Lease.detach`."""

    @property
    def is_alive(self) -> bool:
        """Whether the lock is ours, as far as it is known here: `held` or `at_risk`."""
        return self in ALIVE


ALIVE: Final = (LeaseState.HELD, LeaseState.AT_RISK)


class LossReason(Enum):
    """The reason for a loss; the value is the text for the user."""

    EXPIRED = "its lease ended before the store confirmed a renewal"
    REFUSED = "the store does not know it any more: it ended, was broken, or the store was reset"
    BROKEN = "somebody broke it with break_()"
    MAX_HOLD = "it was held as long as max_hold allows"
    CLOSED = "its client was closed"

    @property
    def may_be_at_store(self) -> bool:
        """Whether the client ended it, and not the store, so that the store may still have it."""
        return self in _OURS


_OURS: Final = (LossReason.EXPIRED, LossReason.MAX_HOLD, LossReason.CLOSED)
