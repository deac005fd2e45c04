"""One call of a script, from being asked for to being answered, wherever it is sent meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiolock.errors import StoreError
from aiolock.stores._copies import Copies
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._scripts import LIST, PRESENCE, SLOTS, Script
from aiolock.stores.redis._slots import slot_of_key


class Called:
    """Stands for a future where no task waits: somebody is called as soon as there is an answer.

    What a future does besides costs more than all else that is done to ask.
    """

    __slots__ = ("_done", "_heard")

    def __init__(self, heard: Callable[[Any, Exception | None], None]) -> None:
        self._heard = heard
        self._done = False

    def done(self) -> bool:
        """Whether it was answered, or will not be."""
        return self._done

    def set_result(self, result: Any, /) -> None:
        """It is answered."""
        self._done = True
        self._heard(result, None)

    def set_exception(self, error: Exception, /) -> None:
        """It failed."""
        self._done = True
        self._heard(None, error)

    def cancel(self) -> bool:
        """It was not sent, and never will be; whether it had no answer."""
        if self._done:
            return False
        error = StoreError("it was released before it was sent")
        error.refused = True
        self.set_exception(error)
        return True


class Command:
    """What a pipe knows of it."""

    # Defaults on the class: most commands are answered before any of these is written to.
    stamp: Callable[[Copies, float], bytes] | None = None
    """One argument more, computed whenever it is written, by where it is written to."""
    waiter: str | None = None
    """Whose first question it is, where that waits for a connection, or for others of its turn."""
    together = 1
    """How many, this one and those that were written next, are one call, and have one reply."""
    again = 0
    """How often it was written once more on the same connection."""
    times = 0
    """On how many connections it was written that may have carried it out."""
    asking = False
    """Whether it goes to the master that its slot is being moved to, which takes it as asked."""
    hops = 0
    """How often a node has sent it on."""
    opens_for: Command | None = None
    """This is ASKING, for that one, which is written directly after it."""
    refusal: Refusal | None = None
    """Why it is to be written again in a moment."""

    def __init__(
        self,
        script: Script,
        count: int,
        arguments: bytes,
        future: asyncio.Future[Any] | Called,
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
        """The first of its keys; empty where it has none."""
        number, _, rest = self.arguments.partition(b"\r\n")[2].partition(b"\r\n")
        length, _, rest = rest.partition(b"\r\n")
        return rest[: int(length[1:])] if number not in (b"", b"0") else b""

    @property
    def slot(self) -> int:
        """That of its keys; less than 0 where it is about a server, and not about a name."""
        key = b"" if self.script in _OF_A_SERVER else self.key
        return slot_of_key(key) if key else -1

    def stand_in(self, nobody: asyncio.Future[Any]) -> Command:
        """Who takes its place where its reply is due, while it is sent elsewhere."""
        other = Command(self.script, self.count, self.arguments, nobody, self.sent, sure=False)
        other.together, other.waiter, other.times = self.together, self.waiter, self.times
        return other


_OF_A_SERVER = (PRESENCE, SLOTS, LIST)
