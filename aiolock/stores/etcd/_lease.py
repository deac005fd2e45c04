"""One lease of this client at etcd, and until when it is certainly alive."""

from __future__ import annotations

import math
import secrets
from functools import lru_cache
from typing import Final

_BITS: Final = 62
"""Of the numbers of leases, so that they are positive and never alike."""


class OwnLease:
    """A lease of this client: of its presence, or with which its holds of one ttl live.

    Its number is chosen here, so a document may name the lease before it is there. It ends once: a
    client whose lease has ended makes another one, with another number.
    """

    __slots__ = ("ended", "granted", "id", "known", "seconds", "sent", "text")

    def __init__(self, seconds: int, *, of_presence: bool = False) -> None:
        self.id = secrets.randbits(_BITS) | 1
        self.seconds = seconds
        self.text = session_text(self.id) if of_presence else f"{seconds}.{self.id:x}"
        """The text of its session in a document."""
        self.granted = False
        """Whether etcd has it."""
        self.known = False
        """Whether the key that shows it to others was written."""
        self.ended = False
        """Whether etcd has said that it is over."""
        self.sent = -math.inf
        """When the last request was sent that has prolonged it, by the loop's clock."""

    @property
    def until(self) -> float:
        """Until when it is certainly alive, by the loop's clock."""
        return -math.inf if self.ended else self.sent + self.seconds

    def prolonged(self, sent: float) -> None:
        """A request that was sent then has prolonged it."""
        self.sent = max(self.sent, sent)


def session_text(lease: int) -> str:
    """The text of the session of a presence."""
    return f"{lease:x}"


@lru_cache
def seconds_for(ttl: int) -> int:
    """The seconds of the lease with which holds of so many ms live.

    It is longer by a second at least: so it need not be prolonged for each hold that begins. Long
    ones are rounded up, so that a client which uses many ttls has few leases.
    """
    seconds = max(-(-ttl // 1000) + 1, SHORTEST)
    step = next(step for most, step in _STEPS if seconds <= most)
    return -(-seconds // step) * step


SHORTEST: Final = 2
"""Seconds of the shortest lease that etcd makes, with its usual heartbeats."""
_STEPS: Final = ((61, 1), (600, 10), (3600, 60), (math.inf, 600))
"""Leases of up to so many seconds are rounded up to a multiple of so many."""
