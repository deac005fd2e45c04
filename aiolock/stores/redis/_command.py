"""One call of a script, until it is answered, on whatever connections it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiolock.errors import StoreError
from aiolock.stores._copies import Copies
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._scripts import LIST, PRESENCE, SLOTS, Script
from aiolock.stores.redis._slots import slot_of_key


class Called(asyncio.Future[Any]):
    """A future that calls one function as soon as it is resolved; no task awaits it."""

    def __init__(
        self, heard: Callable[[Any, Exception | None], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop=loop)
        self._heard = heard

    def set_result(self, result: Any, /) -> None:
        super().set_result(result)
        self._heard(result, None)

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        error = self.exception()
        self._heard(None, error if isinstance(error, Exception) else StoreError(str(error)))

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            error = StoreError("it was released before it was sent")
            error.refused = True
            self._heard(None, error)
        return cancelled


class Command:
    """A command, as a pipe sees it."""

    # Defaults on the class: most commands are answered before any of these is written.
    stamp: Callable[[Copies, float], bytes] | None = None
    """Makes one more argument each time that it is written: it depends on the connection."""
    waiter: str | None = None
    """The waiter whose first question it is, while that waits for a connection, or for others."""
    together = 1
    """How many commands, this one and those after it, are one call with one reply."""
    again = 0
    """How often it was written once more on the same connection."""
    times = 0
    """On how many connections it was written that may have carried it out."""
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
        future: asyncio.Future[Any],
        now: float,
        *,
        sure: bool,
    ) -> None:
        self.script = script
        self.count = count
        self.arguments = arguments
        self.future = future
        self.born = self.sent = now
        self.sure = sure

    @property
    def wanted(self) -> bool:
        """Whether it is to be carried out, or carried out again."""
        return self.sure or not self.future.done()

    @property
    def key(self) -> bytes:
        """Its first key; empty if it has none."""
        number, _, rest = self.arguments.partition(b"\r\n")[2].partition(b"\r\n")
        length, _, rest = rest.partition(b"\r\n")
        return rest[: int(length[1:])] if number not in (b"", b"0") else b""

    @property
    def slot(self) -> int:
        """The slot of its keys; less than 0 if it is about a server, and not about a name."""
        key = b"" if self.script in _OF_A_SERVER else self.key
        return slot_of_key(key) if key else -1

    def stand_in(self, nobody: asyncio.Future[Any]) -> Command:
        """A command that takes its place for the reply that is due, while it is sent elsewhere."""
        other = Command(self.script, self.count, self.arguments, nobody, self.sent, sure=False)
        other.together, other.waiter, other.times = self.together, self.waiter, self.times
        return other


_OF_A_SERVER = (PRESENCE, SLOTS, LIST)
