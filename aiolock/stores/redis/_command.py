"""One call of a script, until it is answered, on whatever connections it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiolock.errors import StoreError
from aiolock.stores._retry_window import RetryWindow
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._scripts import LIST, PRESENCE, SLOTS, Script
from aiolock.stores.redis._slots import slot_of_key


class Called:
    """A substitute for a future that no task awaits: it calls one function as soon as it is
    resolved.

    A full future costs more than all the rest of a request.
    """

    __slots__ = ("_done", "_on_reply")

    def __init__(self, on_reply: Callable[[Any, Exception | None], None]) -> None:
        self._on_reply = on_reply
        self._done = False

    def done(self) -> bool:
        """Whether it was answered, or will not be."""
        return self._done

    def set_result(self, result: Any, /) -> None:
        """It is answered."""
        self._done = True
        self._on_reply(result, None)

    def set_exception(self, error: Exception, /) -> None:
        """It failed."""
        self._done = True
        self._on_reply(None, error)

    def cancel(self) -> bool:
        """It was not sent, and never will be; whether it had no answer."""
        if self._done:
            return False
        error = StoreError("it was released before it was sent")
        error.refused = True
        self.set_exception(error)
        return True


class Command:
    """A command, as a pipe handles it."""

    # Defaults on the class: most commands are answered before any of these is written.
    stamp: Callable[[RetryWindow, float], bytes] | None = None
    """Makes one more argument each time that it is written: it depends on the connection."""
    waiter: str | None = None
    """The waiter whose first question it is, while that waits to be written."""
    together = 1
    """How many commands, this one and those after it, are one call with one reply."""
    again = 0
    """How often it was written once more on the same connection."""
    times = 0
    """The number of connections on which it was written and may have been carried out."""
    asking = False
    """Whether ASKING is sent before it: it goes to the master that its slot is being moved to."""
    hops = 0
    """How often a node has redirected it."""
    opens_for: Command | None = None
    """Set for an ASKING: the command that is written directly after it."""
    refusal: Refusal | None = None
    """Why it must be written again in a moment."""

    def __init__(
        self,
        script: Script,
        count: int,
        arguments: bytes,
        future: asyncio.Future[Any] | Called,
        now: float,
        *,
        must_run: bool,
    ) -> None:
        self.script = script
        self.count = count
        self.arguments = arguments
        self.future = future
        self.born = self.sent = now
        self.must_run = must_run

    @property
    def wanted(self) -> bool:
        """Whether it is to be carried out, or carried out again."""
        return self.must_run or not self.future.done()

    @property
    def key(self) -> bytes:
        """Its first key; empty if it has none."""
        number, rest = _first(self.arguments)
        return _first(rest)[0] if number not in (b"", b"0") else b""

    @property
    def grant(self) -> bytes:
        """The grant of a renewal of one lease: the first argument after the key."""
        _, rest = _first(self.arguments)
        _, rest = _first(rest)
        return _first(rest)[0]

    @property
    def slot(self) -> int:
        """The slot of its keys; less than 0 if it is about a server, and not about a name."""
        key = b"" if self.script in _OF_A_SERVER else self.key
        return slot_of_key(key) if key else -1

    def stand_in(self, nobody: asyncio.Future[Any]) -> Command:
        """A command that takes its place for the reply that is due, while it is sent elsewhere."""
        other = Command(self.script, self.count, self.arguments, nobody, self.sent, must_run=False)
        other.together, other.waiter, other.times = self.together, self.waiter, self.times
        return other


def _first(arguments: bytes) -> tuple[bytes, bytes]:
    """The first of these arguments, and the others; empty if there is none."""
    length, _, rest = arguments.partition(b"\r\n")
    end = int(length[1:] or 0)
    return rest[:end], rest[end + 2 :]


_OF_A_SERVER = (PRESENCE, SLOTS, LIST)
