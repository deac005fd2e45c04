"""What several clocks say, as one: by which a client gives out tickets.

Every answer says what its server's clock was. Less the client's own clock when the answer came,
that is how far the server is ahead, at least: the shorter the way, the nearer. Of the servers it is
the median that counts, so a clock that is years off changes nothing.

Nothing is safe by this: tickets say who is first, and no more.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_SAMPLES: Final = 8
"""Of so many answers the best is taken: a clock that was set back is noticed after as many."""


class Clocks:
    """How far each server's clock is ahead of ours, in µs."""

    def __init__(self, servers: int) -> None:
        self._samples = [deque[int](maxlen=_SAMPLES) for _ in range(servers)]
        self._ahead: list[int | None] = [None] * servers
        self._median = 0

    def heard(self, server: int, stamp: int, received: float) -> None:
        """An answer that came at ``received`` (s, by our clock) says that its was ``stamp``."""
        samples = self._samples[server]
        samples.append(stamp - int(received * 1e6))
        best = max(samples)
        if best != self._ahead[server]:
            self._know(server, best)

    def _know(self, server: int, ahead: int | None) -> None:
        self._ahead[server] = ahead
        known = sorted(each for each in self._ahead if each is not None)
        self._median = known[(len(known) - 1) // 2] if known else 0

    def forget(self, server: int) -> None:
        """It is another server now, or was started anew."""
        self._samples[server].clear()
        self._know(server, None)

    def now(self, local: float) -> int:
        """The servers' time, in µs; ours, where nothing is known of theirs."""
        return int(local * 1e6) + self._median

    def at(self, server: int, local: float) -> int | None:
        """What this server's clock says at that time of ours, at least, in ms; None if unknown."""
        ahead = self._ahead[server]
        return None if ahead is None else (int(local * 1e6) + ahead) // 1000

    def off(self, server: int) -> float | None:
        """By how many seconds this server is ahead of the median; None where that is not known."""
        ahead = self._ahead[server]
        return None if ahead is None else (ahead - self.now(0.0)) / 1e6
