"""One call of a script, until it is answered, on whatever connections it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiolock.protocol import WaiterId
from aiolock.store import Receiver
from aiolock.stores._retry_window import RetryWindow
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._scripts import Script


class _Nobody:
    """The receiver of an answer that is not wanted any more."""

    def done(self) -> bool:
        return True

    def resolve(self, answer: Any, /) -> None:
        """It is not wanted."""

    def set_exception(self, error: Exception, /) -> None:
        """It is not wanted."""


NOBODY: Final = _Nobody()


class Command:
    """A command, as a pipeline handles it."""

    # Defaults on the class: most commands are answered before any of these is written.
    stamp: Callable[[RetryWindow, float], bytes] | None = None
    """Makes one more argument each time that it is written: it depends on the connection."""
    waiter: str | bytes | None = None
    """The waiter whose first question it is, for `CommandQueue.forget`: its text, or that as an
    argument if the command has a head that it ``joins``."""
    joins: bytes | None = None
    """The head of its arguments, if it can be sent together with other questions of that head."""
    asks_for: WaiterId | None = None
    """The waiter whose first question it is."""
    takes: type | None = None
    """The type of the usual reply to the only copy of the command, if it is read in a shorter way:
    see `Reader.on_reply`."""
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
    unqueue: Callable[[Command], object] | None = None
    """Set while it waits for the next connection: removes it if it is not wanted any more."""
    hops = 0
    """How often a server has sent it on to another."""

    # Without `__init__`, because every acquisition makes two commands, and sets these by itself.
    script: Script
    count: int
    """How many arguments it has, without a stamp."""
    arguments: bytes
    receiver: Receiver[Any]
    born: float
    """When it was submitted."""
    sent: float
    """When it was last written."""
    must_run = True
    """It is carried out even if its answer is not wanted any more."""

    @classmethod
    def of(
        cls,
        script: Script,
        count: int,
        arguments: bytes,
        receiver: Receiver[Any],
        now: float,
        *,
        must_run: bool,
    ) -> Command:
        """One for such a call, of which the receiver gets the answer."""
        command = cls()
        command.script, command.count, command.arguments = script, count, arguments
        command.receiver, command.must_run = receiver, must_run
        command.born = command.sent = now
        return command

    @property
    def wanted(self) -> bool:
        """Whether it is to be carried out, or carried out again."""
        return self.must_run or not self.receiver.done()

    def cancel(self) -> None:
        """Its answer is not wanted any more; it is not sent again, unless it must be."""
        self.receiver = NOBODY
        if self.unqueue is not None:
            self.unqueue(self)

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

    def stand_in(self) -> Command:
        """A command that takes its place for the reply that is due, while it is sent elsewhere."""
        other = Command.of(
            self.script, self.count, self.arguments, NOBODY, self.sent, must_run=False
        )
        other.together, other.waiter, other.times = self.together, self.waiter, self.times
        other.asks_for = self.asks_for
        return other
