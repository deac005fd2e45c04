"""How much the page asks of the store, keeps, and sends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that bound it, however many locks there are and however many look at them."""

    every: float = 1.0
    """Seconds between two looks at the store, at least."""
    share: float = 10.0
    """And so many times as long as a look takes: the page has the store for a tenth of the time."""
    slowest: float = 30.0
    """But no more seconds than these."""
    deadlocks_every: float = 10.0
    """Seconds between two looks for deadlocks, at least."""
    deadlocks: int = 10
    """So many are shown."""
    rows: int = 200
    """So many locks are sent to a viewer; of the others it gets their number."""
    parties: int = 200
    """So many holders, and so many waiters, are shown of one lock."""
    history: float = 600.0
    """Seconds of which totals and queues are remembered."""
    tracked: int = 100
    """The queues that are remembered: the longest of each look, and twice as many in all."""
    viewers: int = 50
    """So many may look at a time."""
    stream: float = 10.0
    """Seconds after which a stream ends, and the browser asks for the next: a server that shuts
    down waits no longer for it, and who may not see the page any more does not."""
    heartbeat: float = 5.0
    """Seconds of silence after which something is sent: nobody is to take the stream for dead."""
    patience: float = 30.0
    """Seconds that a viewer may take to accept what it is sent."""
    first: float = 1.0
    """Seconds that a viewer waits for a first look, before it is told what is known."""
    body: int = 32_768
    """Bytes of a request's body."""
    text: int = 100
    """Characters of what a viewer searches for."""
