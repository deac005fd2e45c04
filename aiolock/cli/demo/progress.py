"""What is said while the demo runs: on a terminal one line is rewritten, else a few are printed."""

from __future__ import annotations

from typing import Final, TextIO

from aiolock.cli.demo.kills import Kill

_PARTS: Final = 4


class Progress:
    """Says how far it is; says nothing without ``out``."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._terminal = out is not None and out.isatty()
        self._what = ""
        self._total = 1
        self._part = 0

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        if self._out is not None:
            print(text, file=self._out, flush=True)

    def begin(self, title: str, total: int, what: str) -> None:
        """A new act, in which there will be so many of what is counted."""
        self.line(f"\n{title}")
        self._what = what
        self._total = total
        self._part = 0

    def show(self, done: int) -> None:
        """So many of them are done."""
        text = f"  {done:,} of {self._total:,} {self._what}"
        part = _PARTS * done // self._total
        if self._terminal:
            self.clear()
            print(text, end="", file=self._out, flush=True)
        elif self._part < part < _PARTS:
            self.line(text)
            self._part = part

    def killed(self, kill: Kill) -> None:
        """A worker was killed."""
        if kill.holding:
            when = "after" if kill.wrote else "before"
            where = f"with the lock in hand, {when} its write: its lease must end"
        else:
            where = f"with {kill.waiting} requests in the queue"
        self.line(f"  SIGKILL for worker {kill.worker}, process {kill.pid}, {where}")

    def clear(self) -> None:
        """Take back the line that would be rewritten next."""
        if self._terminal:
            print("\r\x1b[K", end="", file=self._out, flush=True)
