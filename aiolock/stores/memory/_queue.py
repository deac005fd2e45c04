"""The operations of one event loop on a server, in order, and not too many in one iteration."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, Protocol

from aiolock.protocol import Operation

PART: Final = 64
"""Operations in one part, each counted with the pushes that it sends."""


class Server(Protocol):
    """A server that carries out operations."""

    pushed: int
    """How many pushes it has sent."""

    def run(self, operation: Operation[Any], /) -> Any:
        """Carry out an operation; its answer."""
        ...


class OperationQueue:
    """The operations on a server, carried out in the order in which they are submitted.

    As a rule each is carried out in the very call. But what it pushes may make many tasks ask for
    more at once, each of which makes more of them ask: of ten thousand readers that leave as soon
    as they have entered, each lets in others. So after a number of operations, and of the pushes
    that they send, the rest is carried out in the next iterations of the event loop.
    """

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._server = server
        self._part = 0
        self._left = PART
        """How much may be done in this part; nothing, if operations wait for the next one."""
        self._waiting = deque[tuple[asyncio.Future[Any], Operation[Any]]]()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """The future of an operation's answer."""
        future: asyncio.Future[Any] = self.loop.create_future()
        if self._left > 0:
            self._carry_out(future, operation)
        else:
            self._waiting.append((future, operation))
        return future

    def _carry_out(self, future: asyncio.Future[Any], operation: Operation[Any]) -> None:
        before = self._server.pushed
        answer = self._server.run(operation)
        # Never at once: even a free lock takes an iteration, so no task starves the others.
        self.loop.call_soon(self._answer, self._part, future, answer)
        self._left -= 1 + self._server.pushed - before

    def _answer(self, part: int, future: asyncio.Future[Any], answer: object) -> None:
        if part == self._part:  # the first answer of that part: it is another iteration now
            self._begin_part()
        if not future.done():
            future.set_result(answer)

    def _begin_part(self) -> None:
        self._part += 1
        self._left = PART
        while self._waiting and self._left > 0:
            future, operation = self._waiting.popleft()
            try:
                self._carry_out(future, operation)
            except Exception as error:  # noqa: BLE001  # that of its caller, not of this one
                if not future.done():
                    future.set_exception(error)
