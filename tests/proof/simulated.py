"""A memory server and links to it on which everything that can go wrong does, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar

from aiolock.errors import StoreError
from aiolock.protocol import (
    WAS_ABSENT,
    WAS_UNKNOWN,
    Acquire,
    Break,
    Deliver,
    Downgrade,
    Event,
    Granted,
    Late,
    Operation,
    Post,
    Queued,
    ReadPosted,
    ReadStatus,
    Reconnected,
    Release,
    Renew,
    ReportHandoff,
    RequestRelease,
    Resize,
    WaiterId,
)
from aiolock.stores.memory import MemoryServer, MemoryStore
from tests.support.copies import run_copy

Value = TypeVar("Value")

LATE_AFTER: Final = 5.0
"""Seconds after which the server refuses a copy."""
LATE_WITHIN: Final = 9.0
"""Seconds within which data on a dropped link reaches the server."""
SELDOM: Final = 0.03
RARE: Final[dict[type[Operation[Any]], float]] = {
    Break: 0.6,
    Downgrade: 0.6,
    RequestRelease: 0.6,
    ReportHandoff: 0.2,
    Resize: 0.2,
}
"""How often a link is dropped while such a command is on it: more often for those that are seldom
sent, else `SELDOM`."""
STAMPED: Final = (Acquire, ReportHandoff, Renew, RequestRelease, Resize, Post)
"""The commands of which each copy says when it is to be refused."""
NEVER_MIND: Final = 0.2
"""Seconds for which a copy may act that is undone by the copy of a release behind it."""


class Refuses(Enum):
    """The commands that a server refuses for a while, by the word of the refusal."""

    NOTHING = ""
    WRITES = "MISCONF"
    EVERYTHING = "LOADING"


class Server(MemoryServer):
    """A memory server that loses pushes, refuses for a while, and looks for ghosts."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.lossy = True
        self.refuses = Refuses.NOTHING
        self.broken: set[int] = set()
        self.over = set[WaiterId]()  # waiters that are no more, as their clients have been told
        self.ghosts: list[str] = []
        self.late = Counter[str]()  # copies that came late, by command
        self.refused = 0  # and those that were refused for it
        self.answered: Callable[[], None] = lambda: None  # called when a client has an answer
        self.wrong: list[AssertionError] = []

    def now(self) -> int:
        return 1_800_000_000_000_000 + int(asyncio.get_running_loop().time() * 1e6)

    def see(self) -> None:
        """Check that all is as it must be, now that a client has an answer."""
        try:
            self.answered()
        except AssertionError as error:
            self.wrong.append(error)

    def refuses_to(self, command: _Command) -> bool:
        return self.refuses is Refuses.EVERYTHING or (
            self.refuses is Refuses.WRITES and command.writes
        )

    def push(self, client: str, event: Event) -> None:
        if self.lossy and client in self._listeners and self.dice.random() < 0.05:
            # As when the subscription breaks: heard by the server, not by the client, which
            # notices and is told that pushes may have been missed.
            deliver = self._listeners[client]
            asyncio.get_running_loop().call_later(self.dice.random(), self._again, client, deliver)
        else:
            super().push(client, event)

    def run(self, operation: Operation[Value], copies_until: int = 0) -> Value:
        if isinstance(operation, Break):
            self.broken.update(operation.fences)
        answer = super().run(operation, copies_until)
        taken = isinstance(answer, Granted | Queued)
        if taken and isinstance(operation, Acquire) and operation.waiter in self.over:
            loop = asyncio.get_running_loop()
            loop.call_later(NEVER_MIND, self._look_for, operation.name, operation.waiter)
        return answer

    def _again(self, client: str, deliver: Deliver) -> None:
        if self._listeners.get(client) is deliver:
            deliver(Reconnected())

    def _look_for(self, name: str, waiter: WaiterId) -> None:
        state = self._states.get(name)
        if state is None:
            return
        if waiter in state.waiting or state.holders.of(waiter):
            self.ghosts.append(f"{waiter} at {name}")


@dataclass(eq=False)
class _Command:
    """One command, from its call to its answer."""

    operation: Operation[Any]
    future: asyncio.Future[Any]
    written: int = 0

    @property
    def writes(self) -> bool:
        return not isinstance(self.operation, ReadStatus | ReadPosted)

    @property
    def stamped(self) -> bool:
        """It is refused after its time."""
        return isinstance(self.operation, STAMPED)

    @property
    def leaves_tombstone(self) -> bool:
        """With it, what came before is given up."""
        # A waiter that gives back one grant without entering asks again.
        operation = self.operation
        return isinstance(operation, Release) and (operation.entered or not operation.fence)

    @property
    def ends(self) -> tuple[WaiterId, ...]:
        """The waiters that have ended when this is answered."""
        if isinstance(self.operation, Release):
            return (self.operation.waiter,) if self.leaves_tombstone else ()
        match self.operation:
            case ReportHandoff(source=source, via=via):
                return (source, *via[:-1])
            case _:
                return ()

    @property
    def wanted(self) -> bool:
        return not isinstance(self.operation, Acquire) or not self.future.done()


class Store(MemoryStore):
    """A link that is slow, may die with its client, and loses replies (as errors: nobody knows).

    It is dropped now and then, as a connection is: what lay on it comes to the server late, all of
    it or the first part, while the client has sent the same again on the next one. So it says with
    each copy when that is to be refused, and with a release what it gives up, as the Redis store
    does.
    """

    server: Server

    def __init__(self, server: Server, dice: random.Random) -> None:
        super().__init__(server)
        self.dice = dice
        self.dead = False
        self._down = False
        self._on_the_way: list[Callable[[], None]] | None = None
        self._pending: list[_Command] = []
        self._copies_until = 0.0

    async def open(self, client: str, deliver: Deliver) -> None:
        self._deliver, self._loop = deliver, asyncio.get_running_loop()
        await super().open(client, deliver)

    async def aclose(self) -> None:
        await self._drained()
        await super().aclose()

    async def _drained(self) -> None:
        while self._pending and not self.dead:  # noqa: ASYNC110  # in virtual time it costs nothing
            await asyncio.sleep(0.05)

    # The link

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        if isinstance(operation, Resize):
            operation = replace(operation, token=f"{self._client}.{next(_resizes)}")
        command = _Command(operation, self._loop.create_future())
        if self.dead:
            return command.future  # never
        if self._client is None:
            command.future.set_exception(_refusal("the store is closed"))
            return command.future
        if self._on_the_way is None and not self._down:
            often = RARE.get(type(operation), SELDOM)
            if self.server.lossy and self.dice.random() < often:
                self._on_the_way = []
                self._loop.call_later(self.dice.choice([0.0, 0.1, 0.5]), self._drop)
            else:
                self._write(command)
                return command.future
        self._pending.append(command)
        if self._on_the_way is not None:
            command.written = 1
            self._on_the_way.append(self._copy(command))
        return command.future

    def _copies_of(self, command: _Command) -> int:
        """Until when copies may come of it, or of what it gives up; 0: there are none."""
        now = self._loop.time()
        if command.stamped:
            self._copies_until = max(self._copies_until, now + LATE_AFTER)
        elif not (command.leaves_tombstone and (self._down or now < self._dropped_copies)):
            return 0
        return self.server.now() + int(LATE_AFTER * 1e6)

    def _carry_out(self, command: _Command, copies_until: int) -> Any:
        if command.stamped:
            return run_copy(self.server, command.operation, copies_until)
        return self.server.run(command.operation, copies_until)

    _dropped_copies = 0.0
    """Until when copies may come that lay on a link that was dropped."""

    def _copy(self, command: _Command) -> Callable[[], None]:
        """The part of a command, written now, that reaches the server late."""
        copies_until = self._copies_of(command)

        def arrives() -> None:
            if self.server.refuses_to(command):
                return
            answer = self._carry_out(command, copies_until)
            self.server.late[type(command.operation).__name__] += 1
            self.server.refused += isinstance(answer, Late)
            too_late = command.stamped and 0 < copies_until < self.server.now()
            assert isinstance(answer, Late) == too_late, "it is carried out in time, or not at all"

        return arrives

    def _drop(self) -> None:
        copies, self._on_the_way, self._down = self._on_the_way, None, True
        assert copies is not None
        self._dropped_copies = self._copies_until
        torn = self.dice.choice([len(copies), self.dice.randint(0, len(copies))])
        when = self.dice.choice([self.dice.uniform(0, 1), self.dice.uniform(0, LATE_WITHIN)])
        for copy in copies[:torn]:
            self._loop.call_later(when, copy)
            when += self.dice.choice([0.0, 0.001])
        self._loop.call_later(self.dice.uniform(0.01, 1), self._up)

    def _up(self) -> None:
        pending, self._pending = self._pending, []
        if self.dead or self._client is None:
            return
        for command in pending:  # before it is up, so that releases bury their waiters
            if command.wanted:
                self._write(command)
        self._down = False
        self._deliver(Reconnected())

    def _write(self, command: _Command) -> None:
        if self.server.refuses_to(command):
            error = _refusal(self.server.refuses.value)
            error.refused = command.written == 0
            self._answer(command.future, error)
            return
        answer = self._carry_out(command, self._copies_of(command))
        assert not isinstance(answer, Late), "it is written just now"
        command.written += 1
        if command.written > 1 and command.ends and answer == WAS_ABSENT:
            answer = WAS_UNKNOWN
        self.server.over.update(command.ends)
        if self.server.lossy and self.dice.random() < 0.02:
            answer = StoreError("the reply was lost")
        self._answer(command.future, answer)

    def _answer(self, future: asyncio.Future[Any], answer: Any) -> None:
        def arrive() -> None:
            if future.done():
                return
            if isinstance(answer, StoreError):
                future.set_exception(answer)
            else:
                future.set_result(answer)
            self._loop.call_later(0.0001, self.server.see)

        self._loop.call_later(self.dice.choice([0.0, 0.0, 0.001, 0.05]), arrive)


_resizes = itertools.count(1)


def _refusal(text: str) -> StoreError:
    error = StoreError(text)
    error.refused = True
    return error
