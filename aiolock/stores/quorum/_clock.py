"""One clock made of the servers' clocks; a client gives out tickets by it.

Every answer carries the time of its server. Subtract the client's own time when the answer came:
the server is ahead by at least that, and the shorter the way, the closer is this bound. The median
of all servers counts, so a clock that is years off changes nothing.

No safety depends on this: tickets only decide who is first.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from aiolock.protocol import PRIORITY

_SAMPLES: Final = 8
"""The best of so many answers counts: a clock that was set back is noticed after as many."""


class Clocks:
    """An estimate of how far each server's clock is ahead of ours, in µs."""

    def __init__(self, servers: int) -> None:
        self._samples = [deque[int](maxlen=_SAMPLES) for _ in range(servers)]
        self._ahead: list[int | None] = [None] * servers
        self._median = 0

    def learn(self, server: int, stamp: int, received: float) -> None:
        """An answer received at ``received`` (s, our clock) has ``stamp`` (µs, the server's)."""
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
        """Forget the answers of a server that was restarted or replaced."""
        self._samples[server].clear()
        self._know(server, None)

    def now(self, local: float) -> int:
        """The servers' time, in µs; the local time if no server has answered."""
        return int(local * 1e6) + self._median

    def at(self, server: int, local: float) -> int | None:
        """This server's time at a local time, in ms and at least; None if unknown."""
        ahead = self._ahead[server]
        return None if ahead is None else (int(local * 1e6) + ahead) // 1000

    def off(self, server: int) -> float | None:
        """The seconds by which this server is ahead of the median; None if unknown."""
        ahead = self._ahead[server]
        return None if ahead is None else (ahead - self._median) / 1e6


class Tickets:
    """The tickets that one client gives out."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._last: dict[int, int] = {}
        """For each priority."""

    def next(self, priority: int, now: float) -> int:
        """A newcomer's ticket: behind all earlier ones of its priority."""
        last = self._last.get(priority, 0)
        ticket = max(self._clocks.now(now) + priority * PRIORITY, last + 1)
        self._last[priority] = ticket
        return ticket
