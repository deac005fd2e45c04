"""Limits on what the page asks of the store, keeps, and sends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold for any number of locks and viewers."""

    every: float = 1.0
    """Seconds from one look at the store to the next, at least."""
    share: float = 5.0
    """The pause after a look, as a multiple of the processor time of this thread in it, at least:
    so looks use a sixth of it. (Not of the time that the look took: that may be all latency, or
    another's work. But a pause is as long as its look, up to ``every``, to spare a busy store.) The
    search for what viewers want to see rests as long, see `Renderer`."""
    slowest: float = 10.0
    """The longest pause after a look, in seconds."""
    deadlocks_every: float = 10.0
    """Seconds between two looks for deadlocks, at least."""
    deadlocks: int = 10
    """Deadlocks that are shown, at most."""
    rows: int = 200
    """Locks on one page of the list, which is what a viewer is sent."""
    glanced: int = 50
    """Locks of each page of the list that are read once more each second, where looks are slow."""
    parties: int = 200
    """Holders, and waiters, that are shown of one lock, at most."""
    history: float = 600.0
    """Seconds for which totals and queues are remembered."""
    tracked: int = 100
    """Queues that are remembered: the longest of each look, and twice as many in all."""
    viewers: int = 50
    """Viewers at a time."""
    stream: float = 10.0
    """Seconds after which a stream ends, and the browser asks for the next. So a server that shuts
    down waits no longer, and a viewer that loses the right to see the page stops seeing it."""
    heartbeat: float = 5.0
    """Seconds of silence after which something is sent, so that the stream does not look dead."""
    patience: float = 30.0
    """Seconds that a viewer may take to accept what it is sent."""
    first: float = 1.0
    """Seconds that a viewer waits for a first look, before it gets what is known."""
    body: int = 32_768
    """Bytes of a request's body."""
    text: int = 100
    """Characters of a viewer's search."""
