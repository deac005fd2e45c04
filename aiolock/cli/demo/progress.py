"""The progress of the demo: on a terminal one line is rewritten, else a few lines are printed."""

from __future__ import annotations

from time import monotonic
from typing import Final, TextIO

from aiolock.cli.demo.kills import Kill

_PARTS: Final = 4


class Progress:
    """Prints how far it is; prints nothing without ``out``."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._terminal = out is not None and out.isatty()
        self._total = 1
        self._part = 0
        self._done = 0
        self._untold = 0
        """Items sold by workers that were killed before they could report it."""
        self._dead_until: float | None = None
        """When the lease of a killed holder will have ended (``time.monotonic``)."""

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        if self._out is not None:
            print(text, file=self._out, flush=True)

    def meanwhile(self, what: str) -> None:
        """On a terminal, print what takes a moment, until the next line."""
        if self._terminal:
            self.clear()
            print(f"  {what}", end="", file=self._out, flush=True)

    def begin(self, title: str, total: int) -> None:
        """Begin a new act, in which this many will be sold."""
        self.line(f"\n{title}")
        self._total = total
        self._part = self._done = self._untold = 0
        self._dead_until = None

    def show(self, done: int) -> None:
        """Show how many are sold, as reported."""
        done += self._untold
        text = f"{done:,} of {self._total:,} sold"
        part = _PARTS * done // self._total
        if self._terminal:
            self.meanwhile(text + self._standstill(done))
        elif self._part < part < _PARTS:
            self.line(f"  {text}")
            self._part = part

    def _standstill(self, done: int) -> str:
        """Why the sale stands still, if it does."""
        if done >= self._total:
            return "; the other requests have yet to find out"
        if self._dead_until is None:
            return ""
        left = self._dead_until - monotonic()
        if left <= 0 and done > self._done:
            self._dead_until = None
            return ""
        self._done = done
        return f"; the holder is dead, its lease ends in {max(left, 0.0):.1f} s"

    def killed(self, kill: Kill) -> None:
        """A worker was killed."""
        if kill.holding:
            when = "after" if kill.wrote else "before"
            where = f"lock in hand, {when} its write; its lease ends in {kill.lease:.1f} s"
            self._dead_until = monotonic() + kill.lease
            self._untold += kill.wrote
        elif kill.queue is None:
            where = f"{kill.waiting} of its requests were waiting"
        else:
            where = f"{kill.waiting} of its requests were in the queue"
        self.line(f"  SIGKILL for worker {kill.worker}: {where}")

    def clear(self) -> None:
        """Clear the line that would be rewritten next."""
        if self._terminal:
            print("\r\x1b[K", end="", file=self._out, flush=True)
