"""The operations of one event loop on a server, in order, and not too many in one iteration."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, Generic, Protocol, TypeVar

from aiolock._prompt import Prompt

Asked = TypeVar("Asked")
Asked_contra = TypeVar("Asked_contra", contravariant=True)

PART: Final = 64
"""Operations in one part, each counted with the pushes that it sends."""


class Server(Protocol[Asked_contra]):
    """A server that carries out operations."""

    pushed: int
    """How many pushes it has sent."""

    def run(self, operation: Asked_contra, /) -> Any:
        """Carry out an operation; its answer."""
        ...


class Reply(Protocol):
    """Who is told the answer to an operation, as a future is."""

    def done(self) -> bool:
        """Whether it has been told, or wants it no more."""
        ...

    def resolve(self, answer: Any, /) -> None:
        """Tell it."""
        ...

    def set_exception(self, error: Exception, /) -> None:
        """Tell it that there is none."""
        ...


class OperationQueue(Generic[Asked]):
    """The operations on a server, carried out in the order in which they are submitted.

    As a rule each is carried out in the very call. But what it pushes may make many tasks ask for
    more at once, each of which makes more of them ask: of ten thousand readers that leave as soon
    as they have entered, each lets in others. So after a number of operations, and of the pushes
    that they send, the rest is carried out in the next iterations of the event loop.
    """

    def __init__(
        self, server: Server[Asked], loop: asyncio.AbstractEventLoop, part: int = PART
    ) -> None:
        self.loop = loop
        self._server = server
        self._part = 0
        self._most = self._left = part
        """How much may be done in this part; nothing, if operations wait for the next one."""
        self._waiting = deque[tuple[Reply, Asked]]()

    def submit(self, operation: Asked) -> asyncio.Future[Any]:
        """The future of an operation's answer."""
        future = Prompt(loop=self.loop)
        self.put(future, operation)
        return future

    def put(self, reply: Reply, operation: Asked) -> None:
        """Carry out an operation, now or later; an error in this very call is raised."""
        if self._left > 0:
            self._carry_out(reply, operation)
        else:
            self._waiting.append((reply, operation))

    def _carry_out(self, reply: Reply, operation: Asked) -> None:
        before = self._server.pushed
        answer = self._server.run(operation)
        # Never at once: even a free lock takes an iteration, so no task starves the others.
        self.loop.call_soon(self._answer, self._part, reply, answer)
        self._left -= 1 + self._server.pushed - before

    def _answer(self, part: int, reply: Reply, answer: object) -> None:
        if part == self._part:  # the first answer of that part: it is another iteration now
            self._begin_part()
        if not reply.done():
            reply.resolve(answer)

    def _begin_part(self) -> None:
        self._part += 1
        self._left = self._most
        while self._waiting and self._left > 0:
            reply, operation = self._waiting.popleft()
            try:
                self._carry_out(reply, operation)
            except Exception as error:  # noqa: BLE001  # that of its caller, not of this one
                if not reply.done():
                    reply.set_exception(error)
