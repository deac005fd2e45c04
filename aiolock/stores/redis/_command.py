"""One call of a script, until it is answered, on whatever connections it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.stores._retry_window import RetryWindow
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._scripts import Script


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

    def resolve(self, result: Any, /) -> None:
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
    """A command, as a pipeline handles it."""

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
    preface = b""
    """A request that is written directly before it, each time; only a refusal of that matters."""
    preface_of: Command | None = None
    """Set for such a request: the command that is written after it."""
    refusal: Refusal | None = None
    """Why it must be written again."""
    hops = 0
    """How often a server has sent it on to another."""

    def __init__(
        self,
        script: Script,
        count: int,
        arguments: bytes,
        future: Prompt | Called,
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
        number, key = self.leading(2)
        return key if number not in {b"", b"0"} else b""

    def leading(self, count: int) -> list[bytes]:
        """Its first arguments: the number of keys, the keys, the values; empty if there is none."""
        leading, rest = list[bytes](), self.arguments
        for _ in range(count):
            length, _, rest = rest.partition(b"\r\n")
            end = int(length[1:] or 0)
            leading.append(rest[:end])
            rest = rest[end + 2 :]
        return leading

    def stand_in(self, nobody: Prompt) -> Command:
        """A command that takes its place for the reply that is due, while it is sent elsewhere."""
        other = Command(self.script, self.count, self.arguments, nobody, self.sent, must_run=False)
        other.together, other.waiter, other.times = self.together, self.waiter, self.times
        return other
